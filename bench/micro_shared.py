"""What sharing an index through Redis costs: time to be seen, CPU a change, time to start, bytes a block.

Everything runs against a private Valkey on this machine, over its Unix socket, by the product's own code.
*Visible*: one process publishes a placement, another notes when it is told of it, by the same clock.
*Change*: a block stored or removed, half of each, written with its handle through `commit`, as fast as it
goes; CPU is what the proxy's process and the server's each used. *Warm*: a proxy that starts has read
everything into its index; meanwhile a ticker looks how long the event loop was ever busy. *Memory*: the
server's used_memory. Keys are random numbers, as chained hashes look. No engine and no request takes part.

Run: python -m bench micro shared --out bench/results/shared.json (an idle machine of at least two cores)
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
import json
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from statistics import quantiles
from typing import Any

import uvloop

from proxy.index.handles import Delta
from proxy.index.memory import MemoryIndex
from proxy.index.truth import TrueIndex
from proxy.redis_url import parse
from proxy.shared.base import Claim, Mode
from proxy.shared.client import Link
from proxy.shared.pool import SharedPool, settings

NAMESPACE = "bench"
LARGE, LARGEST = 1_000_000, 5_000_000
SMALL_BATCHES, LARGE_BATCHES = 400_000, 1_000_000
"""Block changes."""
SAMPLES = 2_000
QUICK = {
    "LARGE": 40_000,
    "LARGEST": 200_000,
    "SMALL_BATCHES": 1_600,
    "LARGE_BATCHES": 10_000,
    "SAMPLES": 20,
}
"""What `--quick` measures instead."""
RATE_US = 1e6 / 300_000
"""Microseconds a block change may take at 300,000 a second."""

Row = dict[str, Any]
Delays = list[float]


class Told:
    """A listener that puts everything into an index, and notes how old placements are when they come."""

    def __init__(self) -> None:
        self.index = TrueIndex(MemoryIndex(), time.monotonic)
        self.delays: Delays = []

    def changed(
        self,
        replica: str,
        epoch: str,  # noqa: ARG002 - of the protocol, like the others below
        cleared: bool,  # noqa: FBT001
        removed: array[int],
        stored: array[int],
    ) -> None:
        """Events."""
        self.index.apply(replica, cleared=cleared, removed=removed, stored=stored)

    def snapshot(self, replica: str, epoch: str, keys: array[int], *, first: bool) -> None:  # noqa: ARG002
        """What was known before."""
        self.index.apply(replica, cleared=first, removed=array("Q"), stored=keys)

    def predicted(self, origin: str, number: int, replica: str, keys: array[int]) -> None:  # noqa: ARG002
        """`number` is when it was said, in nanoseconds."""
        self.delays.append((time.monotonic_ns() - number) / 1e6)

    def retracted(self, origin: str, number: int) -> None:
        """Nothing to note."""

    def reported(self, origin: str, number: int, predicted: int, reported: int) -> None:
        """Nothing to note."""

    def forgotten(self, replica: str) -> None:
        """Everything of it."""
        self.index.forget(replica)

    def mode(self, replica: str, epoch: str, mode: Mode) -> None:  # noqa: ARG002
        """As said."""
        self.index.set_mode(replica, mode)

    def lost_track(self) -> None:
        """It would spoil the measurement."""
        raise AssertionError("entries of the log were missed")


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[Link]:
    """One proxy's link."""
    link = Link(parse(url))
    await link.start()
    assert link.up, link.why
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def sharing(link: Link, origin: str) -> AsyncIterator[tuple[SharedPool, Told]]:
    """One proxy, which knows everything."""
    told = Told()
    known = settings(b"bench", 16, "bench")
    pool = SharedPool(link, told, namespace=NAMESPACE, pool="model", origin=origin, settings=known)
    await pool.start()
    try:
        await until(lambda: pool.synced)
        yield pool, told
    finally:
        await pool.close()


async def until(done: Callable[[], bool]) -> None:
    """Wait, a millisecond at a time."""
    while not done():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


def fresh(blocks: int, rng: Random) -> array[int]:
    """Keys never seen before."""
    return array("Q", rng.randbytes(8 * blocks))


def batch(stored: array[int], removed: array[int]) -> Delta:
    """What one step of an engine changes; the handle of a block is its key with one bit changed."""
    return Delta(
        removed=removed,
        stored=stored,
        handles_gone=[key ^ 1 for key in removed],
        handles=[(key ^ 1, key, 1) for key in stored],
    )


def _written(pool: SharedPool, commits: int) -> bool:
    return pool.counts.commits >= commits


async def server(link: Link, section: str) -> dict[str, str]:
    """What the server says of itself."""
    lines = (await link.call("INFO", section)).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


async def cpu(link: Link) -> float:
    """Seconds that the server has computed."""
    said = await server(link, "cpu")
    return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])


async def claim_of(pool: SharedPool, replica: str) -> Claim:
    """The right to write it."""
    claim = await pool.claim(replica)
    assert claim is not None
    return claim


async def visible(link: Link) -> AsyncIterator[Row]:
    """One placement at a time, of 500 blocks."""
    rng = Random(1)
    socket = (await link.call("CONFIG", "GET", "unixsocket"))[1].decode()
    listener = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.micro_shared", f"unix://{socket}", str(SAMPLES)),
        stdout=subprocess.PIPE,
    )
    assert listener.stdout is not None
    await listener.stdout.readline()
    async with sharing(link, "speaks") as (pool, _):
        for _ in range(SAMPLES):
            pool.predicted(time.monotonic_ns(), "r", fresh(500, rng))
            await asyncio.sleep(0.002 + 0.004 * rng.random())
    delays: Delays = json.loads(await listener.stdout.readline())
    await listener.wait()
    cuts = quantiles(delays, n=1000)
    words = "placement of 500 blocks, until told in another process"
    yield row(f"{words}, p50", cuts[499], "ms", 2.0)
    yield row(f"{words}, p99", cuts[989], "ms", 20.0)
    yield row(f"{words}, most", max(delays), "ms", None)


async def listen(url: str, samples: int) -> None:
    """Be the other process."""
    async with linked(url) as link, sharing(link, "listens") as (_, told):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await until(lambda: len(told.delays) == samples)
        sys.stdout.write(json.dumps(told.delays) + "\n")


async def changes(link: Link, *, size: int, total: int) -> AsyncIterator[Row]:
    """One replica of 20,000 blocks that stores and removes as much in each batch."""
    rng = Random(2)
    async with sharing(link, f"writes {size}") as (pool, _):
        claim = await claim_of(pool, f"replica {size}")
        held = fresh(20_000, rng)
        pool.commit(claim, "e", 0, batch(held, array("Q")))
        await until(lambda: pool.counts.commits == 1)
        batches = []
        for at in range(total // size):
            stored = fresh(size // 2, rng)
            held += stored
            batches.append(batch(stored, held[at * (size // 2) : (at + 1) * (size // 2)]))
        before, ours, start = await cpu(link), time.process_time(), time.perf_counter()
        for seq, each in enumerate(batches, 1):
            pool.commit(claim, "e", seq, each)
            if seq % max(1, 2000 // size) == 0:
                await asyncio.sleep(0)
                await until(partial(_written, pool, seq - 50_000 // size))
        await until(lambda: pool.counts.commits == len(batches) + 1)
        seconds = time.perf_counter() - start
        used, theirs = time.process_time() - ours, await cpu(link) - before
        assert pool.counts.rewrites == pool.counts.commits_dropped == 0
    words = f"a block change, batches of {size}"
    yield row(f"{words}, elapsed", seconds / total * 1e6, "us", RATE_US)
    yield row(f"{words}, CPU of the proxy", used / total * 1e6, "us", RATE_US)
    yield row(f"{words}, CPU of Valkey", theirs / total * 1e6, "us", RATE_US)


async def fill(link: Link, blocks: int, replicas: int) -> None:
    """Replicas that hold so many blocks together."""
    rng = Random(3)
    async with sharing(link, f"fills {blocks}") as (pool, _):
        for replica in range(replicas):
            claim = await claim_of(pool, f"full {replica}")
            written = pool.counts.commits
            for seq, _ in enumerate(range(0, blocks // replicas, 5_000)):
                pool.commit(claim, "e", seq, batch(fresh(5_000, rng), array("Q")))
                await asyncio.sleep(0)
            expected = written + blocks // replicas // 5_000
            await until(partial(_written, pool, expected))


async def warm(link: Link) -> AsyncIterator[Row]:
    """A proxy that starts while everything is there."""
    await fill(link, LARGE, 8)
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, before = max(longest, now - before - 0.001), now

    ticker = asyncio.create_task(tick())
    used, start = time.process_time(), time.perf_counter()
    async with sharing(link, "starts") as (_, told):
        seconds, used = time.perf_counter() - start, time.process_time() - used
        ticker.cancel()
        assert sum(told.index.confirmed_blocks(f"full {replica}") for replica in range(8)) == LARGE
    yield row("1M blocks of 8 replicas, until a proxy that starts knows them", seconds, "s", 5.0)
    yield row("the same, CPU of the proxy", used, "s", None)
    yield row("the same, longest that its event loop was busy", longest * 1e3, "ms", None)


async def memory(link: Link) -> AsyncIterator[Row]:
    """Sets and handles of 40 replicas, without the log."""
    before = int((await server(link, "memory"))["used_memory"])
    await fill(link, LARGEST, 40)
    after = int((await server(link, "memory"))["used_memory"])
    log = await link.call("MEMORY", "USAGE", f"{{{NAMESPACE}:v1:model}}:log", "SAMPLES", 0)
    megabytes = (after - before - log) / 1e6
    yield row("5M blocks in Valkey, sets and handles", megabytes, "MB", 700.0)
    yield row("their log, at the end", log / 1e6, "MB", 64 * 1.048576)


def row(name: str, value: float, unit: str, target: float | None) -> Row:
    """One figure."""
    return {"name": name, "value": value, "unit": unit, "target": target}


async def measure() -> list[Row]:
    """Every part on a server of its own."""
    parts: tuple[Callable[[Link], AsyncIterator[Row]], ...] = (
        *(
            visible,
            partial(changes, size=16, total=SMALL_BATCHES),
            partial(changes, size=1000, total=LARGE_BATCHES),
        ),
        *(warm, memory),
    )
    found: list[Row] = []
    for part in parts:
        async with linked("embedded") as link:
            found += [each async for each in part(link)]
    return found


def rows() -> list[Row]:
    """Every figure: name, value, unit, and the most it should be, None where nothing is asked."""
    return uvloop.run(measure())


if __name__ == "__main__":
    uvloop.run(listen(sys.argv[1], int(sys.argv[2])))
