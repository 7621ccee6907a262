"""Other routers on the same fleet: `python -m bench peers run`.

    python -m bench peers install [NAME ...]          each in a venv of its own
    python -m bench peers run --routers direct,smg,sglang-router,vllm-router,warmroute --cases all
    python -m bench peers run --engines A,B,C ...     on running real replicas: prompts shorter, rates lower,
                                                      without restarts of replicas and small caches
    python -m bench peers run ... ours='COMMAND'      any router; {port} and {replicas} are filled in

Routers take turns window by window (A B C A B C), each repeat with a seed of its own, the same for all of
them. A router is started anew for every window, warmed up with other prompts, and the replicas' caches are
emptied; no router is told so. What is compared: token hit rate as the replicas reported it, TTFT from the
time a request was due, how evenly the replicas computed, CPU a request and memory of the router's whole
process tree (with the Valkey, where it has one).

Results are written after every window, so that an interrupted run keeps what it has.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import aiohttp
from rich.console import Console

from bench import account, endpoint, peers_table, processes, report, routers
from bench.command import ended
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.intervals import SHARES
from bench.measures import spread as unevenness
from bench.peers_cases import Case, chosen, of_trace, on_real
from bench.peers_plans import Fleet, plans
from bench.plan import Planned, best_hits
from bench.record import Record, hit_rate, quantile
from bench.routers import Router, Running, Shared
from bench.sending import send

OUT = Path("bench/out/peers")
TIMEOUT = 60.0
"""Seconds for one request."""
DOWN_SECONDS = 0.5
"""That a restarted replica is away."""


@dataclass(slots=True)
class Window:
    """One router in one case with one seed."""

    records: list[Record]
    figures: dict[str, Any]


async def window(
    router: Router,
    case: Case,
    fleet: Fleet,
    plan: Sequence[Planned],
    warm_up: Sequence[Planned],
    logs: Path,
    seed: str,
    valkey: processes.Process | None = None,
) -> Window:
    """Start, warm up, empty the caches, measure, end.

    Through `valkey`, in a namespace of the window's own, our proxies share their index; it outlives their
    restart, as it would.
    """
    ours = router.command is not None and "{shared}" in router.command
    shared = Shared.of(valkey) if valkey is not None and ours else None
    balance = Random(f"{seed}/balancer").choice
    ordered = sorted(plan, key=lambda planned: planned.due)
    half = len(ordered) // 2 if case.midway == "router" else 0
    async with AsyncExitStack() as stack:
        running = await _start(stack, router, case, fleet, shared, logs)
        urls = [one.url for one in running] or list(fleet.urls)
        turns = None if not running or len(urls) == 1 else balance
        for url in urls if running else urls[:1]:
            await send(warm_up, [url] if running else urls, timeout=TIMEOUT)
        async with aiohttp.ClientSession() as session:
            await endpoint.idle(session, fleet.urls)
            for url in fleet.urls:
                if why := await endpoint.reset(session, url):
                    raise RuntimeError(why)
            if half:
                await send(ordered[:half], urls, balance=turns, timeout=TIMEOUT)
                if running:
                    await stack.aclose()
                    running = await _start(stack, router, case, fleet, shared, logs)
                    urls = [one.url for one in running]
            measured = _from_zero(ordered[half:])
            before = await endpoint.counters(session, fleet.urls)
            cpu, began = _cpu(running, shared), monotonic()
            event = asyncio.ensure_future(_midway(case, fleet, measured, session))
            records = await send(measured, urls, balance=turns, timeout=TIMEOUT)
            seconds = monotonic() - began
            cpu = _cpu(running, shared) - cpu
            memory = sum(one.memory_mib() for one in running)
            event.cancel()
            await endpoint.idle(session, fleet.urls)
            after = await endpoint.counters(session, fleet.urls)
    best = best_hits(ordered, blocks=fleet.blocks * len(fleet.urls), block_size=fleet.block_size)[half:]
    work = [  # a replica that was restarted counts from zero: then nothing can be said
        now.since(then).queries - now.since(then).hits
        for url in fleet.urls
        if (now := after[url]) and (then := before[url]) and case.midway != "replica"
    ]
    whole = [record for record in records if record.error is None]
    figures = {
        "requests": len(records),
        "errors": len(records) - len(whole),
        "error_kinds": account.outcomes(records, account.Slo())["error_kinds"],
        "hit_rate": hit_rate(whole),
        "ceiling": sum(best) / max(1, sum(planned.prompt_tokens for planned in measured)),
        "ttft": {
            **{name: quantile(ttfts, share) for name, share in SHARES.items()},
            "mean": sum(ttfts) / len(ttfts),
        }
        if (ttfts := [r.ttft for r in whole if r.ttft is not None])
        else None,
        "spread": unevenness(work) if work else None,
        "cpu_ms_per_request": 1000 * cpu / max(1, len(records)),
        "memory_mib": memory,
        "seconds": seconds,
    }
    return Window(sorted(records, key=lambda record: record.number), figures)


async def _start(
    stack: AsyncExitStack, router: Router, case: Case, fleet: Fleet, shared: Shared | None, logs: Path
) -> list[Running]:
    """As many as the case has; none for the client's own turns."""
    if router.command is None:
        return []
    return [
        await stack.enter_async_context(
            routers.started(
                router, fleet.urls, logs / f"{router.name}-{number}.log", model=fleet.model, shared=shared
            )
        )
        for number in range(1, case.proxies + 1)
    ]


async def _midway(case: Case, fleet: Fleet, plan: Sequence[Planned], session: aiohttp.ClientSession) -> None:
    """Restart a replica in the middle of the window, where the case has that."""
    if case.midway == "replica":
        await asyncio.sleep(plan[-1].due / 2)
        async with session.post(f"{fleet.urls[0]}/simulated/restart", json={"down_s": DOWN_SECONDS}):
            pass


def _from_zero(plan: Sequence[Planned]) -> list[Planned]:
    return [replace(planned, due=planned.due - plan[0].due) for planned in plan]


def _cpu(running: Sequence[Running], shared: Shared | None) -> float:
    own = sum(one.cpu_seconds() for one in running)
    return own + (processes.Process(shared.pid, []).cpu_seconds() if shared else 0.0)


async def run(arguments: argparse.Namespace, command: str) -> int:
    """Measure, write, tell."""
    console = Console()
    arms = [routers.arm(name) for name in [*arguments.routers.split(","), *arguments.others]]
    cases = chosen(arguments.cases) if arguments.cases else []
    cases += [
        of_trace(
            source,
            replicas=arguments.replicas,
            scale_tokens=arguments.scale_tokens,
            rate=arguments.rate,
            cache=arguments.cache,
        )
        for source in arguments.trace
    ]
    if arguments.engines:
        cases = [real for case in cases if (real := on_real(case)) is not None]
    windows: list[dict[str, Any]] = []
    records: dict[tuple[str, str], list[list[Record]]] = {}
    failures: dict[str, str] = {}
    processes.end_on_sigterm()
    async with processes.valkey(arguments.out / "valkey.log") as valkey:
        for case in cases:
            async with AsyncExitStack() as stack:
                fleet = await _fleet(stack, case, arguments)
                for number in range(1, arguments.repeats + 1):
                    seed = f"{arguments.seed}/{case.name}/{number}"
                    plan, warm_up = plans(case, fleet, seed, arguments.duration, arguments.warm_up, number)
                    for router in arms:
                        if router.name in failures:
                            continue
                        try:
                            done = await window(
                                router, case, fleet, plan, warm_up, arguments.out, seed, valkey
                            )
                        except (RuntimeError, OSError, aiohttp.ClientError) as error:
                            failures[router.name] = f"{case.name}: {str(error) or type(error).__name__}"
                            console.print(f"[red]{router.name} is left out: {error}", soft_wrap=True)
                            _write(arguments, arms, cases, windows, records, failures, command, fleet)
                            continue
                        records.setdefault((case.name, router.name), []).append(done.records)
                        windows.append(
                            {"case": case.name, "router": router.name, "seed": seed, **done.figures}
                        )
                        console.print(peers_table.one_line(windows[-1]), highlight=False)
                        _write(arguments, arms, cases, windows, records, failures, command, fleet)
    console.print(f"wrote {arguments.out}/peers.json and peers.md", highlight=False)
    return 1 if failures else 0


async def _fleet(stack: AsyncExitStack, case: Case, arguments: argparse.Namespace) -> Fleet:
    """The case's replicas: simulated ones of its own, or those that run."""
    if arguments.engines:
        urls = [url.rstrip("/") for url in arguments.engines.split(",")]
    else:
        spec = case.spec
        flags = ["--profile", spec.name, "--cache-tokens", str(spec.cache_tokens), "--kv-events", "vllm"]
        flags += ["--prefill-tokens-per-s", str(spec.prefill_tokens_per_s)]
        started = processes.engines(case.replicas, flags, arguments.out / "engines.log")
        urls = (await stack.enter_async_context(started)).urls
    async with aiohttp.ClientSession() as session:
        first = await endpoint.look(session, urls[0], None)
    if first.model is None or first.block_size is None or first.blocks is None:
        raise RuntimeError(f"{urls[0]} tells no model or no cache size")
    prompt = EnginePrompt(first.tokenizer or TOKENIZER)
    return Fleet(urls, first.model, first.block_size, first.blocks, prompt, first.simulated)


def _write(
    arguments: argparse.Namespace,
    arms: Sequence[Router],
    cases: Sequence[Case],
    windows: Sequence[dict[str, Any]],
    records: dict[tuple[str, str], list[list[Record]]],
    failures: dict[str, str],
    command: str,
    fleet: Fleet,
) -> None:
    result = report.result(
        peers_table.runs(cases, windows, records),
        workload={
            "name": "peers",
            "duration": arguments.duration,
            "repeats": arguments.repeats,
            "seed": arguments.seed,
            "cases": {case.name: report.as_json(case) for case in cases},
        },
        simulated=fleet.simulated,
        command=command,
        routers={router.name: {"package": router.package, "note": router.note} for router in arms},
        left_out=failures,
        windows=list(windows),
    )
    report.write(result, arguments.out / "peers.json")
    (arguments.out / "peers.md").write_text(peers_table.page(result))


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench peers`."""
    options = argparse.ArgumentParser(
        prog="python -m bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = options.add_subparsers(dest="command", required=True)
    installer = commands.add_parser("install", help="each in a venv of its own")
    installer.add_argument("names", nargs="*", choices=[*routers.KNOWN, []], help="default: all")
    runner = commands.add_parser("run", help="measure")
    runner.add_argument("others", nargs="*", metavar="NAME=COMMAND", help="more routers")
    runner.add_argument("--routers", default="direct,smg,sglang-router,vllm-router,warmroute")
    runner.add_argument("--cases", default="all", help=f"of {', '.join(case.name for case in chosen('all'))}")
    runner.add_argument("--trace", action="append", default=[], metavar="FORMAT:PATH", help="a case more")
    runner.add_argument("--scale-tokens", type=int, default=64, help="of a trace: tokens for each of its ids")
    runner.add_argument("--rate", type=float, default=8.0, help="of a trace: requests a second")
    runner.add_argument("--replicas", type=int, default=8, help="of a trace: simulated replicas")
    runner.add_argument("--cache", type=float, default=1.0, help="of a trace: caches, of the usual")
    runner.add_argument("--engines", help="running real replicas: A,B,C; default: simulated ones")
    runner.add_argument("--repeats", type=int, default=3)
    runner.add_argument("--duration", type=float, default=30.0, help="seconds of a window")
    runner.add_argument("--warm-up", type=float, default=2.0, help="seconds before it")
    runner.add_argument("--seed", type=int, default=1)
    runner.add_argument("--out", type=Path, default=OUT)
    return options


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    if arguments.command == "install":
        routers.install(arguments.names or list(routers.KNOWN))
        print(f"installed in {routers.HOME}")
        return 0
    try:
        chosen(arguments.cases or "all")
        for name in [*arguments.routers.split(","), *arguments.others]:
            routers.arm(name)
    except ValueError as error:
        print(f"bench peers: {error}", file=sys.stderr)
        return 2
    return ended(run(arguments, shlex.join(["python", "-m", "bench", "peers", *argv])))
