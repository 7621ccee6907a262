"""The whole thing without a GPU: `python -m bench demo`, which `make demo` runs.

Four simulated replicas in one process, and in front of them the real proxy as a process of its own, first
with `round_robin`, then with `prefix_cost`. Each sees the same traffic at the same times: shared and one-off
prompts in one run, one-off prompts alone, and two published traces. Caches and index are emptied before each.

Requests arrive at no more than 0.8 of what round robin can carry, which a virtual clock works out beforehand,
so that the gain is not merely someone else's overload. What comes out is in `bench/out/demo`.
"""

import argparse
import asyncio
import resource
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console

from bench import fleet, processes, report
from bench.capacity import round_robin_capacity
from bench.engine_prompt import EnginePrompt
from bench.load import Measured, failed, measure
from bench.plan import Planned, prepare
from bench.profiles import PROFILES, EngineSpec, profile
from bench.scenarios import SCENARIOS, SHAPE, Scenario

POLICIES = ("round_robin", "prefix_cost")
REPLICAS = 4
CACHE_TOKENS = 64_000
"""Less than the system prompts of `SHAPE`; four times that is more."""
MODEL = "simulated"
OUT = Path("bench/out/demo")
WARM_UP = 0.15
"""Of the first scenario's requests, under another seed."""


@dataclass(slots=True)
class Window:
    """One scenario, planned: what is sent, at which rate, and what came of it."""

    scenario: Scenario
    plan: list[Planned]
    rate: float
    capacity: float
    measured: dict[str, Measured] = field(default_factory=dict)
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)
    """Cores used, by policy and process."""


def plan_window(
    scenario: Scenario, prompt: EnginePrompt, spec: EngineSpec, share: float, seed: str, scale: float = 1.0
) -> Window:
    """A scenario's requests, at `share` of what round robin can carry of exactly them."""
    arrivals = scenario.arrivals(round(scenario.requests * scale), seed)
    plan = prepare(arrivals, prompt, model=MODEL, block_size=spec.block_size)
    capacity = round_robin_capacity(plan, spec, REPLICAS)
    rate = share * capacity
    return Window(scenario, at_rate(plan, rate), rate, capacity)


def at_rate(plan: Sequence[Planned], rate: float) -> list[Planned]:
    """The same requests in the same rhythm, from zero, on average `rate` a second."""
    first, last = plan[0].due, plan[-1].due
    stretch = (len(plan) - 1) / rate / (last - first) if last > first else 1.0
    return [replace(planned, due=(planned.due - first) * stretch) for planned in plan]


async def run_policy(
    policy: str,
    windows: Sequence[Window],
    warm_up: Sequence[Planned],
    engines: processes.Process,
    facts: Sequence[fleet.EngineFacts],
    proxy: processes.Process,
    console: Console,
) -> None:
    """All windows through one proxy."""
    for number, window in enumerate(windows):
        label = f"{policy:<12} {window.scenario.name:<9}"
        before = _cpu(engines, proxy)
        began = time.monotonic()
        with report.progress(console, label, len(window.plan)) as advance:
            measured = await measure(
                window.plan,
                warm_up if number == 0 else (),
                urls=proxy.urls,
                engines=facts,
                on_record=lambda _record: advance(),
            )
        seconds = time.monotonic() - began
        window.measured[policy] = measured
        window.cpu[policy] = {
            name: (after - before[name]) / seconds for name, after in _cpu(engines, proxy).items()
        }


def _cpu(engines: processes.Process, proxy: processes.Process) -> dict[str, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "replicas": engines.cpu_seconds(),
        "proxy": proxy.cpu_seconds(),
        "load": own.ru_utime + own.ru_stime,
    }


def content(windows: Sequence[Window], spec: EngineSpec, share: float, seed: str) -> dict[str, Any]:
    """The result file: the first window's runs, the others under `scenarios`."""
    parts = []
    for window in windows:
        runs = [
            report.summarise(policy, measured.records, measured.ceilings, measured.seconds)
            for policy, measured in window.measured.items()
        ]
        for run in runs:
            run["cpu_cores"] = window.cpu.get(run["policy"])
        workload = {
            "name": window.scenario.name,
            "what": window.scenario.what,
            "requests": len(window.plan),
            "rate": window.rate,
            "round_robin_capacity": window.capacity,
            "share_of_capacity": share,
            "capacity_is": "requests a second that round robin completes when all are queued at once, "
            "by the engines' model on a virtual clock",
            "seed": seed,
        }
        parts.append((workload, runs))
    (workload, runs), rest = parts[0], parts[1:]
    described = {**workload, "profile": spec.name, "replicas": REPLICAS, "engine": report.as_json(spec)}
    described["shape"] = report.as_json(SHAPE)
    result = report.result(runs, workload=described, simulated=True)
    result["gain"] = {group: report.gain(result, group, *POLICIES) for group in ("shared", "random")}
    result["scenarios"] = [{"workload": workload, "runs": runs} for workload, runs in rest]
    return result


def tell(console: Console, result: dict[str, Any]) -> None:
    """The tables, and the gain in one line a group."""
    report.print_tables(console, result, "shared and one-off prompts in one run")
    for part in result["scenarios"]:
        report.print_tables(console, {**result, **part}, part["workload"]["what"])
    for group, gain in result["gain"].items():
        if gain:
            points = gain.get("hit_rate_points", 0.0)
            console.print(
                f"[bold]{group}[/]: TTFT P50 {-gain['ttft_p50']:+.0%}, P95 {-gain['ttft_p95']:+.0%}, "
                f"token hits {points:+.0f} points under prefix_cost"
            )


async def keep_running(console: Console, proxy: str, engines: Sequence[str], stop: asyncio.Event) -> None:
    """Leave everything up and say what to try."""
    body = '{"model":"simulated","messages":[{"role":"user","content":"Say hello"}],"max_tokens":16}'
    console.print("\n[bold]Running until Ctrl-C.[/] Things to try:\n")
    for line in (
        f"curl -i {proxy}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f"curl -s {proxy}/admin/route -H 'Content-Type: application/json' -d '{body}'",
        f"curl -s {proxy}/ready",
        f"curl -s {proxy}/metrics | grep ^warmroute_",
        f"curl -s {engines[0]}/metrics | grep ^vllm:",
        f"{sys.executable} -m bench load --url {proxy} --engines {','.join(engines)} --workload multiturn",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False, markup=False)
    await stop.wait()


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench demo`."""
    options = argparse.ArgumentParser(prog="python -m bench demo", description=__doc__)
    options.add_argument("--keep", action="store_true", help="leave proxy and replicas running at the end")
    options.add_argument("--port", type=int, default=8080, help="the proxy's, if it is free")
    options.add_argument("--profile", default="h100x2-32b", choices=sorted(PROFILES), help="whose speed")
    options.add_argument("--cache-tokens", type=int, default=CACHE_TOKENS, help="a replica's KV cache")
    options.add_argument(
        "--share", type=float, default=0.75, help="of what round robin can carry (at most 0.8)"
    )
    options.add_argument(
        "--scale", type=float, default=1.0, help="longer or shorter than the usual minute and a half"
    )
    options.add_argument("--only", help="scenarios, by name: mixed,random")
    options.add_argument("--seed", default="1")
    options.add_argument(
        "--random-control", type=int, metavar="SEEDS", help="only one-off prompts, so many seeds"
    )
    options.add_argument("--out", type=Path, default=OUT)
    return options


async def run(arguments: argparse.Namespace) -> int:
    """Start everything, measure, tell, end everything."""
    console = Console()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if arguments.share > 0.8:
        raise ValueError("--share above 0.8 of what round robin can carry would measure its overload")
    spec = profile(arguments.profile, cache_tokens=arguments.cache_tokens)
    prompt = EnginePrompt()
    seed, out = arguments.seed, arguments.out
    engine_arguments = ["--profile", spec.name, "--cache-tokens", str(spec.cache_tokens), "--model", MODEL]
    async with AsyncExitStack() as stack:
        log = out / "engines.log"
        engines = await stack.enter_async_context(processes.engines(REPLICAS, engine_arguments, log))
        async with aiohttp.ClientSession() as session:
            facts = [await fleet.facts(session, url) for url in engines.urls]
        wanted = arguments.only.split(",") if arguments.only else [s.name for s in SCENARIOS]
        windows = [
            plan_window(scenario, prompt, spec, arguments.share, seed, arguments.scale)
            for scenario in SCENARIOS
            if scenario.name in wanted
        ]
        warm_up = plan_window(SCENARIOS[0], prompt, spec, arguments.share, f"{seed}/warm-up", WARM_UP).plan
        for window in windows:
            console.print(
                f"{window.scenario.name}: {len(window.plan)} requests at {window.rate:.1f}/s, "
                f"{arguments.share:g} of the {window.capacity:.1f}/s that round robin can carry"
            )
        for policy in POLICIES:
            last = policy == POLICIES[-1]
            owner = stack if last else await stack.enter_async_context(AsyncExitStack())
            proxy = await owner.enter_async_context(
                processes.proxy(engines.urls, policy, out / f"proxy-{policy}.log", port=arguments.port)
            )
            await run_policy(policy, windows, warm_up, engines, facts, proxy, console)
            if not last:
                await owner.aclose()
        result = content(windows, spec, arguments.share, seed)
        records = {policy: measured.records for policy, measured in windows[0].measured.items()}
        tell(console, result)
        for path in report.save(result, out, records):
            console.print(f"wrote {path}")
        reasons = [
            reason for window in windows for m in window.measured.values() for reason in failed(m.records)
        ]
        for reason in reasons:
            console.print(f"[bold red]{reason}")
        if arguments.keep:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, stop.set)
            await keep_running(console, proxy.urls[0], engines.urls, stop)
    return 1 if reasons else 0


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    try:
        return uvloop.run(run(arguments))
    except KeyboardInterrupt:
        return 130
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
