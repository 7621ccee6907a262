"""Clients that leave at any moment, a thousand at a time: what is left of them in the proxy.

Half of the requests are aborted, anywhere between the connection and the last byte: the socket is closed with
whatever is under way. The prompts are few, so that caches are warm after the first fifth and memory has no
reason to grow.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from bench import fleet, processes
from bench.client import until
from bench.prompts import word_salad

REPLICAS, MODEL = 2, "simulated"
SLICES = 5
PROMPTS, WORDS, TOKENS = 50, 60, 12
LONGEST = 1.0
"""Seconds within which a client that leaves does so."""
GROWTH = 0.05
"""How much more memory the last slice may leave than the first, as a share."""
GAUGES = ("warmroute_replica_inflight", "warmroute_replica_queued_tokens", "warmroute_queue_length")
ENDS = (b"\r\n0\r\n\r\n", b"[DONE]\n\n")


async def visit(port: int, requests: int, rng: Random, bodies: list[bytes], outcomes: Counter[str]) -> None:
    """One connection after the other, each until it is aborted or the requests are through."""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    for _ in range(requests):
        if reader is None or writer is None:
            reader, writer = await asyncio.open_connection(processes.HOST, port)
        body = rng.choice(bodies)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: proxy\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        if rng.random() < 0.5:
            try:
                async with asyncio.timeout(LONGEST * rng.random()):
                    outcomes[await _answer(reader)] += 1
                continue
            except TimeoutError:
                outcomes["aborted"] += 1
        else:
            outcome = await _answer(reader)
            outcomes[outcome] += 1
            if outcome == "200":
                continue
        writer.transport.abort()
        reader = writer = None
    if writer is not None:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> str:
    """Read one streamed answer; its status, or `cut`."""
    got = b""
    while chunk := await reader.read(65536):
        got += chunk
        if got.startswith(b"HTTP/1.1 200"):
            if got.endswith(ENDS[0]) and ENDS[1] in got:
                return "200"
        elif b"\r\n\r\n" in got and got.rstrip().endswith(b"}"):
            return got[9:12].decode()
    return "cut"


async def aborts(connections: int, requests: int, logs: Path) -> dict[str, Any]:
    """All of it; `in_flight` is what is counted once the clients are gone."""
    rng, outcomes = Random("chaos/aborts"), Counter[str]()
    bodies = [
        msgspec.json.encode(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": word_salad(f"aborts/{number}", WORDS)}],
                "max_tokens": TOKENS,
                "stream": True,
            }
        )
        for number in range(PROMPTS)
    ]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        urls = []
        for number in range(1, REPLICAS + 1):
            one = processes.engines(1, ["--model", MODEL], logs / f"aborts-{number}.log")
            urls += (await stack.enter_async_context(one)).urls
        proxy = await stack.enter_async_context(
            processes.proxy(urls, "prefix_cost", logs / "aborts.log", arguments=["--redis-url", "none"])
        )
        url = proxy.urls[0]
        port = urlsplit(url).port or 0

        async def counted() -> dict[str, float]:
            return {name: await fleet.total(session, url, name) for name in GAUGES}

        async def nothing() -> bool:
            return not any((await counted()).values())

        memory = []
        each = max(1, requests // SLICES // connections)
        for _ in range(SLICES):
            async with asyncio.TaskGroup() as visitors:
                for _ in range(connections):
                    visitors.create_task(visit(port, each, Random(rng.random()), bodies, outcomes))
            try:
                await until(nothing, timeout=30.0, what="the counts did not return to zero")
            except TimeoutError:
                break  # told below
            memory.append(proxy.resident_bytes())
        await fleet.wait_until_idle(session, urls)
        return {
            "connections": connections,
            "requests": sum(outcomes.values()),
            "outcomes": dict(outcomes),
            "in_flight": await counted(),
            "resident_mib": [round(size / 2**20, 1) for size in memory],
        }


def missed(result: Mapping[str, Any] | None) -> list[str]:
    """Targets that were not reached."""
    if result is None:
        return []
    found = [f"aborts: {name} is {value:g}" for name, value in result["in_flight"].items() if value]
    memory = result["resident_mib"]
    if len(memory) < SLICES:
        found.append("aborts: it was not carried through")
    elif memory[-1] > (1 + GROWTH) * memory[0]:
        found.append(f"aborts: memory grew from {memory[0]} to {memory[-1]} MiB")
    if odd := {name: count for name, count in result["outcomes"].items() if name not in {"200", "aborted"}}:
        found.append(f"aborts: some that stayed were not answered: {odd}")
    return found
