"""A proxy that starts against a large index in Redis: `python -m bench warmup`.

Simulated replicas are filled with prompts until they hold `--blocks` blocks together; a first proxy follows
their events and writes what they say to Redis. Then another one is started, as often as `--repeats` says.
Measured, from the start of its process: when it is ready, and when its `warmroute_index_blocks` has reached
what the replicas hold. From the moment it is ready until it is warm and a second longer it is sent a short
request every `EVERY` seconds, each of which must be answered.

Exit status 1 if a request failed or a proxy was warm later than `LIMIT` after its process was started.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from secrets import token_hex
from time import monotonic
from typing import Any

import aiohttp
import msgspec
from redis.asyncio import Redis
from rich.console import Console

from bench import fleet, processes, report
from bench.client import until
from bench.command import ended
from bench.profiles import profile
from bench.record import spread
from bench.shared_index import Shared

RESULT = Path("bench/results/warmup.json")
LOGS = Path("bench/out/warmup")
LIMIT = 5.0
"""Seconds from the start of its process until a proxy must know a million blocks."""
MODEL = "simulated"
PROFILE = "h100-8b"
EVERY = 0.1
PROMPT = 30_000
"""Tokens of a prompt that fills the replicas."""
BLOCKS = "warmroute_index_blocks"


def prompts(blocks: int, block_size: int, seed: str) -> list[bytes]:
    """Completions whose prompts, token ids that nobody else has, fill so many blocks."""
    rng, bodies = Random(seed), []
    while blocks > 0:
        full = min(PROMPT // block_size, blocks)
        ids = rng.choices(range(200, 1000), k=full * block_size)
        bodies.append(
            msgspec.json.encode({"model": MODEL, "prompt": ids, "max_tokens": 1, "ignore_eos": True})
        )
        blocks -= full
    return bodies


async def fill(session: aiohttp.ClientSession, engines: Sequence[str], bodies: Sequence[bytes]) -> None:
    """Send each prompt to one of the replicas, past any proxy; one at a time for each replica."""

    async def one(url: str, mine: Sequence[bytes]) -> None:
        for body in mine:
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/v1/completions", data=body, headers=headers) as response:
                if response.status != 200:
                    raise RuntimeError(f"{url}: {response.status} {await response.text()}")

    await asyncio.gather(*(one(url, bodies[place :: len(engines)]) for place, url in enumerate(engines)))


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> tuple[float, str | None]:
    """One short request; when it was answered after how long, and what went wrong."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Question {number}?"}],
        "max_tokens": 1,
    }
    began = monotonic()
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()
            error = None if response.status == 200 else f"status {response.status}"
    except aiohttp.ClientError as failure:
        error = str(failure) or type(failure).__name__
    return monotonic() - began, error


async def warm(
    session: aiohttp.ClientSession, engines: Sequence[str], settings: Sequence[str], blocks: int, number: int
) -> dict[str, Any]:
    """Start a proxy, and see when it is ready and when it is warm."""
    began = monotonic()
    log = LOGS / f"proxy-{number}.log"
    async with processes.proxy(engines, "prefix_cost", log, arguments=settings) as proxy:
        ready = monotonic() - began
        (url,) = proxy.urls
        answers: list[tuple[float, str | None]] = []
        asking = asyncio.ensure_future(_keep_asking(session, url, answers))
        try:

            async def reached() -> bool:
                return await fleet.total(session, url, BLOCKS) >= blocks

            await until(reached, timeout=60.0, what=f"the index did not reach {blocks} blocks", every=EVERY)
            after = monotonic() - began
            await asyncio.sleep(1.0)
            known = await fleet.total(session, url, BLOCKS)
        finally:
            asking.cancel()
        return {
            "ready": ready,
            "warm": after,
            "from_ready_to_warm": after - ready,
            "index_blocks": known,
            "answers": len(answers),
            "errors": sorted({error for _, error in answers if error is not None}),
            "latency": spread(seconds for seconds, _ in answers),
            "cpu_seconds": proxy.cpu_seconds(),
            "resident_mb": proxy.resident_bytes() / 1e6,
        }


async def _keep_asking(
    session: aiohttp.ClientSession, url: str, answers: list[tuple[float, str | None]]
) -> None:
    """Ask again and again, whether or not the last one was answered."""

    async def one(number: int) -> None:
        answers.append(await ask(session, url, number))

    async with asyncio.TaskGroup() as group:
        number = 0
        while True:
            number += 1
            group.create_task(one(number))
            await asyncio.sleep(EVERY)


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench warmup`."""
    options = argparse.ArgumentParser(prog="python -m bench warmup", description=__doc__)
    options.add_argument("--blocks", type=int, default=1_000_000, help="of all replicas together")
    options.add_argument("--replicas", type=int, default=4)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--out", type=Path, default=RESULT)
    return options


async def run(arguments: argparse.Namespace) -> int:
    """Fill, start, measure, tell, write."""
    processes.end_on_sigterm()
    console, spec = Console(), profile(PROFILE)
    room = (arguments.blocks // arguments.replicas + 2 * PROMPT // spec.block_size) * spec.block_size
    engine = ["--profile", PROFILE, "--prefill-tokens-per-s", "1e9", "--cache-tokens", str(room)]
    engine += ["--model", MODEL, "--kv-events", "vllm"]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(processes.valkey(LOGS / "valkey.log"))
        engines = await stack.enter_async_context(
            processes.engines(arguments.replicas, engine, LOGS / "engines.log")
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        redis = await stack.enter_async_context(Redis.from_url(server.urls[0]))
        namespace = f"warmup-{os.getpid()}"
        settings = ["--redis-url", server.urls[0], "--namespace", namespace, "--secret", token_hex(32)]
        settings += ["--probes.interval", "5"]
        first = await stack.enter_async_context(
            processes.proxy(engines.urls, "prefix_cost", LOGS / "proxy-first.log", arguments=settings)
        )
        shared = Shared(redis, namespace)
        await shared.claimed(arguments.replicas)
        before, target = first.cpu_seconds(), int(arguments.blocks)
        began = monotonic()
        await fill(session, engines.urls, prompts(arguments.blocks, spec.block_size, "warmup"))

        async def written() -> bool:
            held: int = sum((await shared.blocks()).values())
            return held >= target

        await until(written, timeout=120.0, what="not every block reached Redis")
        used = int((await redis.info("memory"))["used_memory"])
        console.print(
            f"{arguments.blocks:,} blocks in Redis after {monotonic() - began:.0f} s, in "
            f"{used / 1e6:.0f} MB; the first proxy used {first.cpu_seconds() - before:.1f} s of CPU for them "
            f"and now has {first.resident_bytes() / 1e6:.0f} MB",
            highlight=False,
        )
        runs = []
        for number in range(1, arguments.repeats + 1):
            one = await warm(session, engines.urls, settings, arguments.blocks, number)
            runs.append(one)
            console.print(
                f"{number}: ready after {one['ready']:.1f} s, warm after {one['warm']:.1f} s; "
                f"{one['answers']} requests answered meanwhile, {len(one['errors'])} kinds of failure",
                highlight=False,
            )
        result = {
            "simulated": True,
            **report.where(),
            "target_seconds": LIMIT,
            "blocks": arguments.blocks,
            "replicas": arguments.replicas,
            "redis_used_memory_mb": used / 1e6,
            "first_proxy_resident_mb": first.resident_bytes() / 1e6,
            **{name: spread(run[name] for run in runs) for name in ("ready", "warm", "from_ready_to_warm")},
            "runs": runs,
        }
    report.write(result, arguments.out)
    console.print(f"wrote {arguments.out} (SIMULATED replicas)", highlight=False)
    why = reasons(runs)
    for reason in why:
        console.print(f"[bold red]{reason}")
    return 1 if why else 0


def reasons(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Why it does not count as reached."""
    found = []
    for number, one in enumerate(runs, 1):
        if one["warm"] > LIMIT:
            found.append(f"start {number} was warm only after {one['warm']:.1f} s")
        if one["errors"] or not one["answers"]:
            found.append(f"start {number}: requests failed meanwhile: {one['errors']}")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    return ended(run(parser().parse_args(argv)))
