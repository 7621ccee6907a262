"""The whole thing without a GPU: `python -m bench demo`, which `make demo` runs.

Four simulated replicas in one process, and in front of them the real proxy as a process of its own, first
with `round_robin`, then with `prefix_cost`. Each sees the same traffic at the same times: shared and one-off
prompts in one run, one-off prompts alone, and two published traces. Caches and index are emptied before each.

Requests arrive at no more than 0.8 of what round robin can carry, which a virtual clock works out beforehand,
so that the gain is not merely someone else's overload. What comes out is in `bench/out/demo`.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console

from bench import control, fleet, processes, report
from bench.engine_prompt import EnginePrompt
from bench.load import failed
from bench.profiles import PROFILES, EngineSpec, profile
from bench.scenarios import CACHE_TOKENS, SCENARIOS, SHAPE
from bench.windows import MODEL, REPLICAS, Fleet, Window, plan_window, run_window

POLICIES = ("round_robin", "prefix_cost")
OUT = Path("bench/out/demo")
MOST_SHARE = 0.8
WARM_UP = 0.15
"""Of the first scenario's requests, under another seed."""


def content(windows: Sequence[Window], spec: EngineSpec, seed: str) -> dict[str, Any]:
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
            "share_of_capacity": window.rate / window.capacity,
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
    """The table, who served what, and the gain in one line a group."""
    parts = [("", result["runs"])]
    parts += [(part["workload"]["what"], part["runs"]) for part in result["scenarios"]]
    report.print_table(console, "Round robin against prefix_cost", parts, simulated=True)
    report.print_shares(console, result["runs"])
    for group, gain in result["gain"].items():
        if gain:
            p50, p95, points = gain["ttft_p50"], gain["ttft_p95"], gain.get("hit_rate_points", 0.0)
            console.print(
                f"[bold]{group:<7}[/] time to first token {-p50:+.0%} at P50, {-p95:+.0%} at P95; "
                f"cache hits {points:+.0f} points",
                highlight=False,
            )


async def keep_running(console: Console, proxy: str, engines: Sequence[str]) -> None:
    """Leave everything up and say what to try, until Ctrl-C."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    body = '{"model":"simulated","messages":[{"role":"user","content":"Say hello"}],"max_tokens":16}'
    console.print(
        f"\n[bold]Running until Ctrl-C.[/] The dashboard: {proxy}/ui\n\nThings to try:\n", highlight=False
    )
    for line in (
        f"curl -i {proxy}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'",
        f"{sys.executable} -m proxy top --url {proxy}",
        f"curl -s {proxy}/admin/replicas",
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
        "--share", type=float, default=0.6, help="of what round robin can carry (at most 0.8)"
    )
    options.add_argument("--scale", type=float, default=1.0, help="how much longer than usual")
    options.add_argument("--only", help="scenarios, by name: mixed,random")
    options.add_argument("--seed", default="1")
    options.add_argument(
        "--random-control", type=int, metavar="SEEDS", help="only one-off prompts, so many seeds"
    )
    options.add_argument("--out", type=Path, default=OUT)
    return options


@asynccontextmanager
async def start_fleet(spec: EngineSpec, out: Path) -> AsyncIterator[Fleet]:
    """The simulated replicas, running."""
    arguments = ["--profile", spec.name, "--cache-tokens", str(spec.cache_tokens), "--model", MODEL]
    async with processes.engines(REPLICAS, arguments, out / "engines.log") as process:
        async with aiohttp.ClientSession() as session:
            facts = [await fleet.facts(session, url) for url in process.urls]
        yield Fleet(process, facts)


async def compare(arguments: argparse.Namespace, spec: EngineSpec, console: Console) -> int:
    """The demo itself."""
    out, seed, prompt = arguments.out, arguments.seed, EnginePrompt()
    names = arguments.only.split(",") if arguments.only else [scenario.name for scenario in SCENARIOS]
    async with start_fleet(spec, out) as engines:
        windows = [
            plan_window(scenario, prompt, spec, arguments.share, seed, arguments.scale)
            for scenario in SCENARIOS
            if scenario.name in names
        ]
        warm_up = plan_window(SCENARIOS[0], prompt, spec, arguments.share, f"{seed}/warm-up", WARM_UP).plan
        for window in windows:
            console.print(
                f"{window.scenario.what + ':':<18} {len(window.plan):>3} requests at {window.rate:.1f}/s; "
                f"round robin can carry {window.capacity:.1f}/s",
                highlight=False,
            )
        for policy in POLICIES:
            log = out / f"proxy-{policy}.log"
            async with processes.proxy(engines.process.urls, policy, log, port=arguments.port) as proxy:
                for window in windows:
                    before = warm_up if window is windows[0] else ()
                    await run_window(window, policy, engines, proxy, console, before)
                if policy == POLICIES[-1]:
                    reasons = conclude(console, windows, spec, seed, out)
                    if arguments.keep:
                        await keep_running(console, proxy.urls[0], engines.process.urls)
    return 1 if reasons else 0


def conclude(
    console: Console, windows: Sequence[Window], spec: EngineSpec, seed: str, out: Path
) -> list[str]:
    """Tell, write, and say why it does not count, if it does not."""
    result = content(windows, spec, seed)
    tell(console, result)
    records = {policy: measured.records for policy, measured in windows[0].measured.items()}
    for path in report.save(result, out, records):
        console.print(f"wrote {path}", highlight=False)
    reasons = [reason for w in windows for m in w.measured.values() for reason in failed(m.records)]
    for reason in reasons:
        console.print(f"[bold red]{reason}")
    return reasons


async def run(arguments: argparse.Namespace) -> int:
    """Start everything, measure, tell, end everything."""
    processes.end_on_sigterm()
    if not 0 < arguments.share <= MOST_SHARE:
        raise ValueError(
            f"--share above {MOST_SHARE} of what round robin can carry would measure its overload"
        )
    spec = profile(arguments.profile, cache_tokens=arguments.cache_tokens)
    console = Console()
    if arguments.random_control is None:
        return await compare(arguments, spec, console)
    async with start_fleet(spec, arguments.out) as engines:
        return await control.run(
            engines,
            spec,
            console,
            POLICIES,
            seeds=arguments.random_control,
            share=arguments.share,
            scale=arguments.scale,
            logs=arguments.out,
        )


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    try:
        return uvloop.run(run(arguments))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
