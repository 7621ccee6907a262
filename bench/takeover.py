"""The proxy that follows the replicas' events is killed: `python -m bench takeover`.

Three proxies share an index of simulated replicas; the first one started follows every replica's event feed.
Under load it is killed with SIGKILL. Measured, from then on: how long until the right to follow each replica
is another proxy's (as Redis says), and until a survivor applies events again (as its own metrics say). Then
the load ends, and every survivor's count of each replica's blocks, and Redis', are compared with what the
replica says it caches: a block counted twice, or kept although it is gone, would show.

Requests in flight at the killed proxy fail, as they do with any process; any other failure, a takeover that
takes longer than `LIMIT`, or a count that differs at the end makes the exit status 1.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from secrets import token_hex
from time import monotonic
from typing import Any

import aiohttp
from redis.asyncio import Redis
from rich.console import Console

from bench import fleet, processes, report
from bench.command import ended
from bench.engine_prompt import EnginePrompt
from bench.load import send
from bench.plan import prepare
from bench.profiles import profile
from bench.proxies import CACHE_TOKENS, MODEL, PREFILL, PROFILE, SHAPE
from bench.record import Record, spread
from bench.shared_index import Shared
from bench.workloads import generate

RESULT = Path("bench/results/takeover.json")
LOGS = Path("bench/out/takeover")
LIMIT = 10.0
"""Seconds within which another proxy must follow every replica."""
PATIENCE = 30.0
SETTLE = 20.0
"""Seconds that predictions may take to be confirmed or dropped after the last request."""
EVERY = 0.02
EVENTS = "warmroute_index_events_total"
HELD = "warmroute_replica_cache_blocks"

Counts = dict[str, dict[str, int]]
"""Replica to who counted how many blocks of it."""


async def applied(session: aiohttp.ClientSession, urls: Sequence[str]) -> float:
    """Events that these proxies have applied themselves."""
    return sum([await fleet.total(session, url, EVENTS) for url in urls])


async def takeover(
    session: aiohttp.ClientSession, shared: Shared, survivors: Sequence[str], victim: processes.Process
) -> dict[str, float]:
    """Kill it; seconds until others have its claims, and until they apply events."""
    before, events = await shared.claims(), await applied(session, survivors)
    killed = monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    took: dict[str, float] = {}
    while len(took) < 2:
        now = await shared.claims()
        anew = all(now.get(replica, token) != token for replica, token in before.items())
        if "claimed" not in took and anew:
            took["claimed"] = monotonic() - killed
        if "following" not in took and await applied(session, survivors) > events:
            took["following"] = monotonic() - killed
        if monotonic() - killed > PATIENCE:
            raise TimeoutError(f"nobody took over within {PATIENCE:g} s; so far: {took}")
        await asyncio.sleep(EVERY)
    return took


async def counted(
    session: aiohttp.ClientSession, shared: Shared, survivors: Sequence[str], engines: Sequence[str]
) -> Counts:
    """Blocks of each replica: as it says itself (`cached`), in Redis, in each survivor."""
    counts: Counts = {}
    for number, url in enumerate(engines, 1):
        async with session.get(f"{url}/simulated/cache") as response:
            counts[f"r{number}"] = {"cached": int((await response.json())["blocks"])}
    for replica, blocks in (await shared.blocks()).items():
        counts[replica]["redis"] = blocks
    for number, url in enumerate(survivors, 1):
        for labels, held in await fleet.samples(session, url, HELD):
            counts[labels["replica"]][f"survivor {number}"] = int(held)
    return counts


def agree(counts: Counts, tellers: int) -> bool:
    """Whether everybody counts the same."""
    return all(len(each) == tellers and len(set(each.values())) == 1 for each in counts.values())


async def settled(
    session: aiohttp.ClientSession, shared: Shared, survivors: Sequence[str], engines: Sequence[str]
) -> Counts:
    """The counts once they agree, or after `SETTLE` seconds as they are."""
    deadline = monotonic() + SETTLE
    while True:
        counts = await counted(session, shared, survivors, engines)
        if agree(counts, 2 + len(survivors)) or monotonic() > deadline:
            return counts
        await asyncio.sleep(0.2)


async def once(arguments: argparse.Namespace, seed: str, redis: str) -> tuple[dict[str, Any], list[Record]]:
    """One kill."""
    namespace = f"takeover-{os.getpid()}-{token_hex(4)}"
    common = ["--redis-url", redis, "--namespace", namespace, "--secret", token_hex(32)]
    common += ["--probes.interval", "5"]
    prompt, spec = EnginePrompt(), profile(PROFILE, prefill_tokens_per_s=PREFILL, cache_tokens=CACHE_TOKENS)
    shape = replace(SHAPE, rate=arguments.rate, requests=round(arguments.rate * arguments.duration))
    plan = prepare(generate("shared", shape, seed), prompt, model=MODEL, block_size=spec.block_size)
    engine = ["--profile", PROFILE, "--prefill-tokens-per-s", str(PREFILL), "--model", MODEL]
    engine += ["--cache-tokens", str(CACHE_TOKENS), "--kv-events", "vllm"]
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(
            processes.engines(arguments.replicas, engine, LOGS / "engines.log")
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        connection = await stack.enter_async_context(Redis.from_url(redis))
        shared = Shared(connection, namespace)
        first = await stack.enter_async_context(
            processes.proxy(engines.urls, "prefix_cost", LOGS / "proxy-first.log", arguments=common)
        )
        await shared.claimed(arguments.replicas)
        others = await stack.enter_async_context(
            processes.proxies(arguments.proxies - 1, engines.urls, "prefix_cost", LOGS, arguments=common)
        )
        survivors = [other.urls[0] for other in others]
        alive, rng = [*first.urls, *survivors], Random(f"{seed}/balancer")
        load = asyncio.ensure_future(send(plan, alive, balance=lambda _urls: rng.choice(alive)))
        try:
            await asyncio.sleep(arguments.duration / 3)
            alive.remove(first.urls[0])
            took = await takeover(session, shared, survivors, first)
            records = await load
        finally:
            load.cancel()
        await fleet.wait_until_idle(session, engines.urls)
        counts = await settled(session, shared, survivors, engines.urls)
        double = [await fleet.total(session, url, "warmroute_index_blocks") for url in survivors]
    failures = [record.error for record in records if record.error is not None]
    one = {
        "seed": seed,
        **took,
        "requests": len(records),
        "failed": len(failures),
        "errors": sorted(set(failures)),
        "blocks": counts,
        "index_blocks": double,
        "agree": agree(counts, 2 + len(survivors)),
    }
    return one, records


def reasons(runs: Sequence[dict[str, Any]], most_in_flight: int) -> list[str]:
    """Why it does not count as reached."""
    found = []
    for run in runs:
        slow = max(run["claimed"], run["following"])
        if slow > LIMIT:
            found.append(f"{run['seed']}: it took {slow:.1f} s until another followed")
        if not run["agree"]:
            found.append(f"{run['seed']}: the counts of blocks differ: {run['blocks']}")
        if run["failed"] > most_in_flight:
            found.append(f"{run['seed']}: {run['failed']} requests failed: {run['errors'][:3]}")
    return found


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench takeover`."""
    options = argparse.ArgumentParser(prog="python -m bench takeover", description=__doc__)
    options.add_argument("--proxies", type=int, default=3)
    options.add_argument("--replicas", type=int, default=2)
    options.add_argument("--rate", type=float, default=8.0, help="requests a second")
    options.add_argument("--duration", type=float, default=30.0, help="seconds of load; killed after a third")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, default=RESULT)
    return options


async def run(arguments: argparse.Namespace) -> int:
    """Kill, measure, tell, write."""
    processes.end_on_sigterm()
    console = Console()
    runs, records = [], []
    async with processes.valkey(LOGS / "valkey.log") as server:
        for number in range(1, arguments.repeats + 1):
            one, some = await once(arguments, f"takeover/{number}", server.urls[0])
            runs.append(one)
            records += some
            console.print(
                f"{number}: claimed after {one['claimed']:.2f} s, following after {one['following']:.2f} s; "
                f"{one['failed']} of {one['requests']} requests failed; counts "
                f"{'agree' if one['agree'] else 'DIFFER'}",
                highlight=False,
            )
    result = {
        "simulated": True,
        **report.where(),
        "target_seconds": LIMIT,
        "proxies": arguments.proxies,
        "replicas": arguments.replicas,
        "rate": arguments.rate,
        "claimed": spread(run["claimed"] for run in runs),
        "following": spread(run["following"] for run in runs),
        "ttft": spread(record.ttft for record in records),
        "runs": runs,
    }
    report.write(result, arguments.out)
    console.print(f"wrote {arguments.out} (SIMULATED replicas)", highlight=False)
    # What was in flight at the first proxy: its share of some seconds of requests.
    why = reasons(runs, most_in_flight=round(2 * arguments.rate))
    for reason in why:
        console.print(f"[bold red]{reason}")
    return 1 if why else 0


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    return ended(run(parser().parse_args(argv)))
