"""What a fleet loses when it is harmed under load: `python -m bench chaos`.

killed    one of the simulated replicas is killed (SIGKILL) at 60 % load and started again after a while. A
          request is *lost* if its answer had not begun and never came, *broken* if it had. Throughput has
          recovered from the first moment on from which as many answers are complete as were due.
rolling   all replicas one after the other: killed as they are, and again with a drain before it. With the
          drain nothing at all may fail; without, only what had begun.
aborts    1,000 connections, 10,000 requests, half of whose clients leave at any moment: what is in flight
          afterwards, in the proxy's counts and the engines', and the proxy's memory after each fifth.

No prompt shares anything with another in the first two, so that 60 % means the same under every policy.
Generated twice: more answers complete at a replica that lives than the proxy has relayed from it.
Exit status 1 if a target is missed.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
from rich.console import Console

from bench import chaos_aborts, fleet, processes, report
from bench.capacity import round_robin_capacity
from bench.chaos_fleet import LOGS, MODEL, PREFILL, PROFILE, Fleet
from bench.command import ended
from bench.engine_prompt import EnginePrompt
from bench.load import send
from bench.plan import Planned, prepare
from bench.profiles import profile
from bench.record import Record, quantile, spread
from bench.workloads import Shape, generate

RESULT = Path("bench/results/chaos.json")
SHAPE = Shape(prefix=500, question=100, output=16)
RECOVERY_SECONDS = 10.0
WINDOW, ENOUGH = 5.0, 0.95
"""Seconds over which throughput is compared with what was due, and how much of it is all of it."""


def plan_for(seconds: float, share: float, replicas: int, seed: str) -> tuple[list[Planned], float]:
    """Requests for so many seconds at a share of what the replicas can carry; and how many a second."""
    prompt, spec = EnginePrompt(), profile(PROFILE, prefill_tokens_per_s=PREFILL)

    def made(rate: float, requests: int) -> list[Planned]:
        shape = replace(SHAPE, rate=rate, requests=requests)
        return prepare(generate("random", shape, seed), prompt, model=MODEL, block_size=spec.block_size)

    rate = share * round_robin_capacity(made(1.0, 100 * replicas), spec, replicas)
    return made(rate, round(rate * seconds)), rate


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """What became of the requests."""
    lost = [record for record in records if record.status != 200]
    broken = [record for record in records if record.status == 200 and record.error is not None]
    return {
        "requests": len(records),
        "lost": len(lost),
        "broken": len(broken),
        "errors": dict(Counter((record.error or "")[:120] for record in [*lost, *broken])),
        "ttft": spread(record.ttft for record in records),
    }


def recovered(records: Sequence[Record], killed: float) -> float | None:
    """Seconds after the kill from which on as much is completed as is due; None if that never comes."""
    whole = [record for record in records if record.error is None and record.e2e is not None]
    usual = quantile([record.e2e or 0.0 for record in whole if record.due < killed - WINDOW], 0.5)
    ends = [record.due + (record.e2e or 0.0) - usual for record in whole]
    last = max(record.due for record in records) - WINDOW
    at = killed
    while at <= last:
        due = sum(at <= record.due < at + WINDOW for record in records)
        began = sum(at <= end < at + 1 for end in ends)  # no burst at the end of the window makes up for it
        if began >= due / WINDOW / 2 and sum(at <= end < at + WINDOW for end in ends) >= ENOUGH * due:
            return round(at - killed, 2)
        at += 0.25
    return None


async def under_load(
    arguments: argparse.Namespace,
    seconds: float,
    seed: str,
    harm: Callable[[Fleet, float], Awaitable[dict[str, Any]]],
) -> tuple[dict[str, Any], list[Record]]:
    """Send for so many seconds and do some harm meanwhile; `harm` is told when the load began."""
    plan, rate = plan_for(seconds, arguments.load, arguments.replicas, seed)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        replicas = Fleet(session, arguments.replicas)
        await replicas.start(stack)
        load, began = asyncio.ensure_future(send(plan, [replicas.url])), monotonic()
        try:
            told = await harm(replicas, began)
            if monotonic() - began > seconds:
                raise RuntimeError(f"{seconds:g} s of load were over before the harm was done")
            records = await load
        finally:
            load.cancel()
        told["generated_twice"] = await replicas.generated_twice(records)
        left = await fleet.total(session, replicas.url, "warmroute_replica_inflight")
    return {"rate": round(rate, 2), **told, **summary(records), "in_flight_after": left}, records


async def killed(arguments: argparse.Namespace) -> dict[str, Any]:
    """One is killed and comes back."""

    async def harm(replicas: Fleet, began: float) -> dict[str, Any]:
        await asyncio.sleep(15.0 - (monotonic() - began))
        at = monotonic() - began
        await replicas.replicas[0].kill()
        await asyncio.sleep(5.0)
        await replicas.replicas[0].start()
        await replicas.all_up()
        return {"killed_at": round(at, 2), "up_again_after": round(monotonic() - began - at, 2)}

    one, records = await under_load(arguments, 45.0, "chaos/killed", harm)
    one["recovered_after"] = recovered(records, one["killed_at"])
    return one


async def rolling(arguments: argparse.Namespace, *, drained: bool) -> dict[str, Any]:
    """All of them, one after the other."""

    async def harm(replicas: Fleet, began: float) -> dict[str, Any]:
        await asyncio.sleep(5.0)
        for replica in replicas.replicas:
            if drained:
                await replicas.drain(replica)
            await replica.kill()
            await replica.start()
            await replicas.all_up()
            if drained:
                await replicas.let(replica)
            await asyncio.sleep(2.0)
        return {"took": round(monotonic() - began - 5.0, 1)}

    one, _ = await under_load(arguments, arguments.rolling, f"chaos/rolling/{drained}", harm)
    return one


def missed(result: dict[str, Any]) -> list[str]:
    """Targets that were not reached."""
    found = []
    for name in ("killed", "rolling", "rolling_drained"):
        if (one := result.get(name)) is None:
            continue
        if one["lost"]:
            found.append(f"{name}: {one['lost']} requests were lost whose answer had not begun")
        if one["generated_twice"]:
            found.append(f"{name}: {one['generated_twice']} answers were generated twice")
        if one["in_flight_after"]:
            found.append(f"{name}: {one['in_flight_after']:g} still count as in flight")
        if name == "rolling_drained" and one["broken"]:
            found.append(f"{name}: {one['broken']} answers were broken off")
    if (one := result.get("killed")) is not None:
        after = one["recovered_after"]
        if after is None or after > RECOVERY_SECONDS:
            found.append(f"killed: throughput recovered after {after} s")
    return found + chaos_aborts.missed(result.get("aborts"))


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench chaos`."""
    options = argparse.ArgumentParser(prog="python -m bench chaos", description=__doc__)
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--load", type=float, default=0.6, help="share of what they can carry")
    options.add_argument("--rolling", type=float, default=45.0, help="seconds of load for a rolling restart")
    options.add_argument("--connections", type=int, default=1000)
    options.add_argument("--requests", type=int, default=10_000)
    options.add_argument("--only", help="some of killed,rolling,rolling_drained,aborts")
    options.add_argument("--out", type=Path, default=RESULT)
    return options


async def run(arguments: argparse.Namespace) -> int:
    """Harm, measure, tell, write."""
    processes.end_on_sigterm()
    console = Console()
    parts: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "killed": lambda: killed(arguments),
        "rolling": lambda: rolling(arguments, drained=False),
        "rolling_drained": lambda: rolling(arguments, drained=True),
        "aborts": lambda: chaos_aborts.aborts(arguments.connections, arguments.requests, LOGS),
    }
    result: dict[str, Any] = {
        "simulated": True,
        **report.where(),
        "command": f"python -m bench chaos {' '.join(sys.argv[2:])}".strip(),
        "replicas": arguments.replicas,
        "load": arguments.load,
        "profile": PROFILE,
        "prefill_tokens_per_s": PREFILL,
        "target_recovery_seconds": RECOVERY_SECONDS,
    }
    for name in arguments.only.split(",") if arguments.only else parts:
        result[name] = await parts[name]()
        console.print(f"{name}: {result[name]}", highlight=False)
    report.write(result, arguments.out)
    console.print(f"wrote {arguments.out} (SIMULATED replicas)", highlight=False)
    reasons = missed(result)
    for reason in reasons:
        console.print(f"[bold red]{reason}")
    return 1 if reasons else 0


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    return ended(run(parser().parse_args(argv)))
