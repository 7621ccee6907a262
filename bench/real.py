"""Round robin against prefix_cost on real replicas: `python -m bench real --engines A,B,C`.

The replicas are started beforehand and are all that a run does not start itself. Both proxies run all the
time, each in front of all replicas, and take turns window by window, so that a machine that grows slower or
faster treats them alike; both see the same prompts at the same times, and each repeat has a seed of its own.
Before a window: warm-up with other prompts, replicas idle, caches and index emptied.

Writes `vllm-cpu.json` (every window, and their medians as the result file's runs) and `vllm-cpu.md` (the
table) to --out, both even if a window failed, which the exit status and the table then tell.
"""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import uvloop
from rich.console import Console

from bench import fleet, processes, real_table, report
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.load import failed, measure
from bench.plan import Planned, prepare
from bench.workloads import Shape, generate

POLICIES = ("round_robin", "prefix_cost")
OUT = Path("bench/results")
LOGS = Path("bench/out/real")
LOOK_SECONDS = 2.0
SHAPE = Shape(groups=24, prefix=1200, question=100, output=8)
"""24 system prompts of 1,200 tokens are 28,800: more than one replica's 16,384, less than three replicas'."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas, as they describe themselves, and how their prompts are made."""

    facts: Sequence[fleet.EngineFacts]
    prompt: EnginePrompt
    version: str | None
    """Of the first replica."""

    def plan(self, workload: str, shape: Shape, seed: str) -> list[Planned]:
        """The requests of a window."""
        first = self.facts[0]
        arrivals = generate(workload, shape, seed)
        return prepare(arrivals, self.prompt, model=first.model, block_size=first.block_size)


async def window(
    engines: Fleet,
    proxy: processes.Process,
    plan: Sequence[Planned],
    warm_up: Sequence[Planned],
    console: Console,
    *,
    policy: str,
    label: str,
) -> tuple[dict[str, Any], list[str]]:
    """One measured window, and why it does not count."""
    async with aiohttp.ClientSession() as session:
        await fleet.wait_until_idle(session, [engine.url for engine in engines.facts])
    others, began, cpu = await _busy_cores(), datetime.now(UTC), proxy.cpu_seconds()
    with report.progress(console, f"{label} {policy:<12}", len(plan)) as advance:
        measured = await measure(
            plan,
            warm_up,
            urls=proxy.urls,
            engines=engines.facts,
            on_record=lambda _record: advance(),
        )
    one = report.summarise(policy, measured.records, measured.ceilings, measured.seconds)
    one |= {
        "began": began.isoformat(timespec="seconds"),
        "seconds": measured.seconds,
        "busy_cores_before": others,
        "proxy_cpu_seconds": proxy.cpu_seconds() - cpu,
    }
    return one, failed(measured.records)


async def _busy_cores() -> float | None:
    """Cores in use while the fleet has nothing to do: what else runs here; None where /proc does not tell."""
    before = _machine_seconds()
    await asyncio.sleep(LOOK_SECONDS)
    after = _machine_seconds()
    return None if before is None or after is None else (after - before) / LOOK_SECONDS


def _machine_seconds() -> float | None:
    """User, nice, system, interrupt and steal time of all cores."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def medians(windows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figure by figure, the median of some windows of one policy; counts of requests are sums."""
    groups: dict[str, Any] = {}
    for group in sorted({group for one in windows for group in one["groups"]}, reverse=True):
        repeats = [one["groups"][group] for one in windows if group in one["groups"]]
        groups[group] = {
            "requests": sum(one["requests"] for one in repeats),
            "errors": sum(one["errors"] for one in repeats),
            **{name: _median([one[name] for one in repeats]) for name in ("hit_rate", "ceiling")},
            **{
                kind: {name: _median([one[kind][name] for one in repeats]) for name in repeats[0][kind]}
                for kind in ("ttft", "tpot", "e2e")
                if all(one[kind] for one in repeats)
            },
        }
    replicas: dict[str, int] = {}
    for one in windows:
        for name, count in one["replicas"].items():
            replicas[name] = replicas.get(name, 0) + count
    return {
        "policy": windows[0]["policy"],
        "groups": groups,
        "throughput": median(one["throughput"] for one in windows),
        "replicas": dict(sorted(replicas.items())),
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench real`."""
    options = argparse.ArgumentParser(prog="python -m bench real", description=__doc__)
    options.add_argument("--engines", required=True, help="URLs of running replicas: A,B,C")
    options.add_argument("--shared-rate", type=float, default=4.0, help="requests a second, 0: none")
    options.add_argument("--random-rate", type=float, default=2.5, help="requests a second, 0: none")
    options.add_argument("--duration", type=float, default=60.0, help="seconds of a window")
    options.add_argument("--warm-up", type=float, default=6.0, help="seconds before it")
    options.add_argument("--repeats", type=int, default=3, help="windows of each policy and workload")
    options.add_argument("--seed", default="real")
    options.add_argument("--out", type=Path, default=OUT, help="where the result and its page go")
    options.add_argument("--logs", type=Path, default=LOGS, help="where the proxies' logs go")
    return options


async def run(arguments: argparse.Namespace, command: str) -> int:
    """Measure, write, tell."""
    console = Console()
    urls = [url.rstrip("/") for url in arguments.engines.split(",")]
    async with aiohttp.ClientSession() as session:
        facts = [await fleet.facts(session, url) for url in urls]
        async with session.get(f"{urls[0]}/version") as response:
            version = (await response.json())["version"] if response.status == 200 else None
    engines = Fleet(facts, EnginePrompt(facts[0].tokenizer or TOKENIZER), version)
    rates = {"shared": arguments.shared_rate, "random": arguments.random_rate}
    windows: list[dict[str, Any]] = []
    reasons: list[str] = []
    async with AsyncExitStack() as stack:
        proxies = {
            policy: await stack.enter_async_context(
                processes.proxy(urls, policy, arguments.logs / f"{policy}.log")
            )
            for policy in POLICIES
        }
        for workload, rate in rates.items():
            if not rate:
                continue
            shape = replace(SHAPE, rate=rate, requests=round(rate * arguments.duration))
            warm_shape = replace(shape, requests=round(rate * arguments.warm_up))
            for number in range(1, arguments.repeats + 1):
                seed = f"{arguments.seed}/{number}"
                plan = engines.plan(workload, shape, seed)
                warm_up = engines.plan(workload, warm_shape, f"{seed}/warm-up")
                for policy, proxy in proxies.items():
                    label = f"{workload} {rate:g}/s, {number} of {arguments.repeats},"
                    one, why = await window(
                        engines, proxy, plan, warm_up, console, policy=policy, label=label
                    )
                    windows.append({"workload": workload, "rate": rate, "seed": seed, **one})
                    reasons += [f"{label} {policy}: {reason}" for reason in why]
    result = content(arguments, engines, windows, command)
    report.print_table(
        console, "Medians", [("", result["runs"])], simulated=any(one.simulated for one in facts)
    )
    report.write(result, arguments.out / "vllm-cpu.json")
    (arguments.out / "vllm-cpu.md").write_text(real_table.page(result, reasons))
    console.print(f"wrote {arguments.out}/vllm-cpu.json and .md", highlight=False)
    for reason in reasons:
        console.print(f"[bold red]{reason}")
    return 1 if reasons else 0


def content(
    arguments: argparse.Namespace, engines: Fleet, windows: Sequence[dict[str, Any]], command: str
) -> dict[str, Any]:
    """The result file: medians as runs, and every window."""
    first = engines.facts[0]
    workload = {
        "name": "shared and random, in windows of their own",
        **{name: getattr(SHAPE, name) for name in ("groups", "prefix", "question", "output")},
        "duration": arguments.duration,
        "repeats": arguments.repeats,
        "rates": {"shared": arguments.shared_rate, "random": arguments.random_rate},
    }
    result = report.result(
        [medians([one for one in windows if one["policy"] == policy]) for policy in POLICIES],
        workload=workload,
        simulated=any(engine.simulated for engine in engines.facts),
    )
    return result | {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "engines": {
            "replicas": len(engines.facts),
            "version": engines.version,
            "model": first.model,
            "block_size": first.block_size,
            "blocks": first.blocks,
            "cache_tokens": first.cache_tokens,
        },
        "gain": {group: report.gain(result, group, *POLICIES) for group in ("shared", "random")},
        "windows": list(windows),
    }


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    try:
        return uvloop.run(run(arguments, shlex.join(["python", "-m", "bench", "real", *argv])))
    except KeyboardInterrupt:
        return 130
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
