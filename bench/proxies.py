"""Several proxies in front of one fleet: `python -m bench proxies`.

Do proxies that share an index hit as one proxy does? Three arms take turns over the same prompts at the same
times: one proxy; `--proxies` of them that share a Redis; as many with an index of their own each. Which proxy
gets a request is drawn at random under a seed, as a balancer that knows nothing would. Zipf-distributed
system prompts, together more than one simulated replica caches and less than the fleet does.

Everything is new in every window: replicas, proxies, and the namespace in Redis. So no window inherits what
another one left, and each counts the prefixes that had to be computed once.

Exit status 1 if a request failed or sharing proxies hit less than `TARGET` of what one does.
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from secrets import token_hex
from time import monotonic
from typing import Any

import aiohttp
from rich.console import Console

from bench import fleet, processes, report
from bench.client import until
from bench.command import ended
from bench.engine_prompt import EnginePrompt
from bench.load import failed, send
from bench.plan import Planned, ceilings, prepare
from bench.profiles import EngineSpec, profile
from bench.proxies_table import TARGET, Pooled, compare, missed, summary, table
from bench.record import Record, hit_rate
from bench.workloads import Shape, generate

RESULT = Path("bench/results/proxies.json")
LOGS = Path("bench/out/proxies")
REDIS = "WARMROUTE_REDIS_URL"
MODEL = "simulated"
PROFILE = "h100x2-32b"
PREFILL = 6000.0
"""Tokens a second, about a third of the profile's: so the few requests a second that two slow cores can send
through eight proxies are a load to the replicas."""
CACHE_TOKENS = 44_000
SHAPE = Shape(rate=10.0, requests=400, groups=32, zipf=1.0, prefix=3000, question=200, output=16)
"""32 system prompts of 3,000 tokens are 96,000: more than a replica's 44,000, less than four replicas'."""
PROBES = ("--probes.interval", "5", "--probes.timeout", "5")
"""Eight proxies that look at four replicas every two seconds would be a load of their own."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the set-ups that are compared."""

    name: str
    proxies: int
    shared: bool

    def settings(self, redis: str, number: int, secret: str) -> list[str]:
        """Flags of its proxies in window `number`."""
        if not self.shared:
            return ["--redis-url", "none", *PROBES]
        where = ["--redis-url", redis, "--namespace", f"bench-{os.getpid()}-{number}", "--secret", secret]
        return [*where, *PROBES]


def arms(proxies: int) -> tuple[Arm, ...]:
    """One proxy, and so many with and without a common index."""
    return (
        Arm("one", 1, shared=False),
        Arm("shared", proxies, shared=True),
        Arm("private", proxies, shared=False),
    )


async def index_modes(urls: Sequence[str]) -> dict[str, int]:
    """How many of the proxies' views of a replica are in each mode."""
    modes: dict[str, int] = {}
    async with aiohttp.ClientSession() as session:
        for url in urls:
            for labels, value in await fleet.samples(session, url, "warmroute_replica_index_mode"):
                if value:
                    modes[labels["mode"]] = modes.get(labels["mode"], 0) + 1
    return modes


async def window(
    arm: Arm,
    plan: Sequence[Planned],
    warm_up: Sequence[Planned],
    console: Console,
    *,
    arguments: argparse.Namespace,
    events: bool,
    settings: Sequence[str],
    label: str,
    seed: str,
) -> tuple[list[Record], dict[str, Any]]:
    """Start everything, send the plan, end everything."""
    engine = ["--profile", PROFILE, "--prefill-tokens-per-s", str(PREFILL), "--model", MODEL]
    engine += ["--cache-tokens", str(CACHE_TOKENS), *(["--kv-events", "vllm"] if events else [])]
    async with AsyncExitStack() as stack:
        log = LOGS / "engines.log"
        engines = await stack.enter_async_context(processes.engines(arguments.replicas, engine, log))
        proxies = await stack.enter_async_context(
            processes.proxies(arm.proxies, engines.urls, "prefix_cost", LOGS / arm.name, arguments=settings)
        )
        urls = [url for proxy in proxies for url in proxy.urls]
        for url in urls:  # each proxy has answered before it is measured
            await send(warm_up, [url])
        mode = "events" if events else "learned"

        async def known() -> bool:
            return set(await index_modes(urls)) == {mode}

        await until(known, timeout=30.0, what=f"not every proxy knows every replica as {mode}")
        async with aiohttp.ClientSession() as session:
            await fleet.wait_until_idle(session, engines.urls)
        cpu, began = sum(proxy.cpu_seconds() for proxy in proxies), monotonic()
        with report.progress(console, label, len(plan)) as advance:
            records = await send(
                plan,
                urls,
                balance=Random(f"{seed}/balancer").choice,
                on_record=lambda _record: advance(),
            )
        seconds = monotonic() - began
        one = {
            "arm": arm.name,
            "events": events,
            "seed": seed,
            "seconds": seconds,
            "hit_rate": hit_rate(records),
            "index_modes": await index_modes(urls),
            "proxy_cpu_seconds": sum(proxy.cpu_seconds() for proxy in proxies) - cpu,
        }
    return records, one


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench proxies`."""
    options = argparse.ArgumentParser(prog="python -m bench proxies", description=__doc__)
    options.add_argument("--proxies", type=int, default=8)
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--kv-events", choices=("on", "off", "both"), default="on", help="of the replicas")
    options.add_argument("--rate", type=float, default=SHAPE.rate, help="requests a second")
    options.add_argument("--requests", type=int, default=SHAPE.requests, help="in each window")
    options.add_argument("--groups", type=int, default=SHAPE.groups, help="system prompts of 3,000 tokens")
    options.add_argument("--zipf", type=float, default=SHAPE.zipf, help="how uneven they are; 0: even")
    options.add_argument("--seeds", type=int, default=2, help="windows of each arm and mode")
    options.add_argument(
        "--arms", default="one,shared,private", help="one is what the others are compared with"
    )
    options.add_argument(
        "--redis-url",
        default=os.environ.get(REDIS),
        help=f"default: {REDIS}, or else a Valkey of this bench's own",
    )
    options.add_argument("--out", type=Path, default=RESULT)
    return options


async def run(arguments: argparse.Namespace) -> int:
    """Measure every arm, mode and seed; tell; write."""
    processes.end_on_sigterm()
    console, prompt = Console(), EnginePrompt()
    spec = profile(PROFILE, prefill_tokens_per_s=PREFILL, cache_tokens=CACHE_TOKENS)
    shape = replace(
        SHAPE, rate=arguments.rate, requests=arguments.requests, groups=arguments.groups, zipf=arguments.zipf
    )
    plans = _plans(shape, prompt, spec, arguments.seeds)
    (_, warm_up), *_ = _plans(replace(shape, requests=2, rate=100.0), prompt, spec, 1, "warm-up").items()
    room = arguments.replicas * spec.blocks
    best = [ceilings(plan, blocks=room, block_size=spec.block_size)["shared"] for plan in plans.values()]
    ceiling = sum(best) / len(best)
    compared = [arm for arm in arms(arguments.proxies) if arm.name in arguments.arms.split(",")]
    modes = {"on": (True,), "off": (False,), "both": (True, False)}[arguments.kv_events]
    pooled = {(events, arm.name): Pooled() for events in modes for arm in compared}
    secret, number = token_hex(32), 0
    async with AsyncExitStack() as stack:
        redis = arguments.redis_url
        if redis is None and any(arm.shared for arm in compared):
            server = await stack.enter_async_context(processes.valkey(LOGS / "valkey.log"))
            redis = server.urls[0]
        for turn, (seed, plan) in enumerate(plans.items()):
            for events in modes:
                for arm in compared if turn % 2 == 0 else compared[::-1]:
                    number += 1
                    records, one = await window(
                        arm,
                        plan,
                        warm_up,
                        console,
                        arguments=arguments,
                        events=events,
                        settings=arm.settings(redis or "none", number, secret),
                        label=f"{seed}, events {'on' if events else 'off'}, {arm.proxies} {arm.name}",
                        seed=seed,
                    )
                    into = pooled[events, arm.name]
                    into.records += records
                    into.seconds += one["seconds"]
                    into.windows.append(one)
    return conclude(console, arguments, spec, shape, compared, pooled, ceiling)


def conclude(
    console: Console,
    arguments: argparse.Namespace,
    spec: EngineSpec,
    shape: Shape,
    compared: Sequence[Arm],
    pooled: Mapping[tuple[bool, str], Pooled],
    ceiling: float,
) -> int:
    """Tell, write, and say what was missed."""
    named = {arm.name: arm for arm in compared}
    runs = [
        {
            **summary(name, named[name].proxies, one, ceiling, arguments.replicas),
            "events": events,
        }
        for (events, name), one in pooled.items()
    ]
    compare(runs)
    workload = {"name": "shared", **report.as_json(shape), "seeds": arguments.seeds}
    result = report.result(
        runs,
        workload=workload,
        simulated=True,
        engine=report.as_json(spec),
        engines=arguments.replicas,
        target=TARGET,
        windows=[each for one in pooled.values() for each in one.windows],
    )
    console.print(table(runs, arguments.replicas))
    console.print(
        "hits: prompt tokens that replicas reported as cached; spread: uncached tokens, most over mean\n"
        "best: one LRU of the whole fleet's size, fed the same requests in order",
        style="dim",
        highlight=False,
    )
    report.write(result, arguments.out)
    console.print(f"wrote {arguments.out}", highlight=False)
    reasons = [reason for one in pooled.values() for reason in failed(one.records)] + missed(runs)
    for reason in reasons:
        console.print(f"[bold red]{reason}")
    return 1 if reasons else 0


def _plans(
    shape: Shape, prompt: EnginePrompt, spec: EngineSpec, seeds: int, name: str = "proxies"
) -> dict[str, list[Planned]]:
    make = partial(prepare, prompt=prompt, model=MODEL, block_size=spec.block_size)
    names = [f"{name}/{number}" for number in range(1, seeds + 1)]
    return {seed: make(generate("shared", shape, seed)) for seed in names}


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    return ended(run(parser().parse_args(argv)))
