"""`python -m bench trial`: canaries of a running proxy, over HTTP, in front of simulated replicas.

Short, and with few requests a second, so that two slow cores carry it: fewer requests to a comparison, and
stages of seconds. `python -m bench canary` has the default settings, on a virtual clock.

better      round_robin, and prefix_cost tried beside it: should have all traffic in the end
bad         prefix_cost, and random tried beside it: should be gone, for its hit rate or its first tokens
"""

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp

from bench import processes, report
from bench.command import ended
from bench.demo import start_fleet
from bench.engine_prompt import EnginePrompt
from bench.plan import Planned, prepare
from bench.profiles import profile
from bench.sending import send
from bench.windows import MODEL
from bench.workloads import Shape, generate

OUT = Path("bench/out/trial")
STORIES = (
    ("better", "round_robin", "prefix_cost", "complete"),
    ("bad", "prefix_cost", "random", "rolled_back"),
)
TERMS = {
    "stages": "20,50,100",
    "baseline-seconds": "10",
    "settle-seconds": "5",
    "stage-seconds": "15",
    "window-seconds": "30",
    "min-requests": "40",
}


def main(argv: list[str]) -> int:
    """Run the command; 1 if a story did not end as it should."""
    parser = argparse.ArgumentParser(
        prog="bench trial", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=150.0, help="of traffic at most, for each story")
    parser.add_argument("--groups", type=int, default=90, help="system prompts")
    parser.add_argument("--cache-tokens", type=int, default=40_000, help="of each replica")
    parser.add_argument("--json", type=Path, default=OUT / "result.json", metavar="FILE")
    OUT.mkdir(parents=True, exist_ok=True)
    return ended(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> int:
    processes.end_on_sigterm()
    spec = profile("h100x2-32b", cache_tokens=args.cache_tokens)
    shape = Shape(rate=args.rate, requests=round(args.rate * args.seconds), groups=args.groups, output=16)
    plan = prepare(
        generate("shared", shape, "trial"), EnginePrompt(), model=MODEL, block_size=spec.block_size
    )
    runs = []
    async with start_fleet(spec, OUT) as engines:
        for name, policy, tried, ends in STORIES:
            flags = [f"--canary.policy={tried}", *(f"--canary.{key}={value}" for key, value in TERMS.items())]
            log = OUT / f"proxy-{name}.log"
            async with processes.proxy(engines.process.urls, policy, log, arguments=flags) as proxy:
                run = await _watch(proxy.urls[0], plan)
            told = {"story": name, "policy": f"{tried} beside {policy}", "groups": {}}
            runs.append({**told, **run, "as_it_should": run["phase"] == ends})
            took, why = run["stages"][-1][0], run["why"]
            print(f"{name}: {run['phase']} after {took:.0f} s ({why}); {run['stages']}", flush=True)
    workload = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    report.write(report.result(runs, workload={**workload, **TERMS}, simulated=True), args.json)
    return 0 if all(run["as_it_should"] for run in runs) else 1


async def _watch(url: str, plan: Sequence[Planned]) -> dict[str, Any]:
    """Send the plan until the canary has ended, one way or the other, and note its stages."""
    stop, began = asyncio.Event(), monotonic()
    load = asyncio.create_task(send(plan, [url], stop=stop))
    stages: list[tuple[float, float]] = []
    canary: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        while not load.done():
            async with session.get(f"{url}/admin/canary") as response:
                canary = (await response.json())["canary"]
            if not stages or stages[-1][1] != canary["percent"]:
                stages.append((round(monotonic() - began, 1), canary["percent"]))
            if canary["phase"] in ("complete", "rolled_back"):
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(load), 0.5)
    stop.set()
    records = await load
    failed = [record.error for record in records if record.error is not None]
    return {
        "phase": canary["phase"],
        "reason": canary["reason"],
        "why": canary["why"],
        "stages": stages,
        "arms": canary["arms"],
        "requests": len(records),
        "errors": len(failed),
    }
