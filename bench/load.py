"""Open-loop load over HTTP: `python -m bench load --url http://127.0.0.1:8080 --engines A,B --rate 8`.

Requests go out when they are due, whether or not earlier ones were answered, and every latency counts from
the time a request was *due*: a stalled server cannot slow its own examination. With several --url they take
turns, which is round robin without a router.

A run: warm up with prompts of another seed, wait until the engines are idle, empty their caches and the
proxy's index, measure. Exit status 1 if a request failed or if random prompts hit the cache, 130 after
Ctrl-C, which keeps what was measured.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import aiohttp
import uvloop
from rich.console import Console

from bench import fleet, report
from bench.client import Client
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.plan import Planned, ceilings, prepare
from bench.record import Record, hit_rate
from bench.workloads import WORKLOADS, Shape, generate

GROUPS = ("shared", "random")
"""The traffic groups that the proxy knows without being told."""

RANDOM_HIT_LIMIT = 0.01
"""Random prompts that hit more than this share something after all: the run would prove nothing."""


async def send(
    plan: Sequence[Planned],
    urls: Sequence[str],
    *,
    balance: Callable[[Sequence[str]], str] | None = None,
    stop: asyncio.Event | None = None,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> list[Record]:
    """Send a plan and wait for every answer; after `stop`, send no more and drop what is under way.

    Each request goes to the URL that `balance` picks when it is due, as a balancer in front of proxies does;
    without it they take turns.
    """
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    records: list[Record] = []
    tasks: set[asyncio.Task[None]] = set()
    async with Client() as client:

        async def one(number: int, planned: Planned) -> None:
            due = start + planned.due
            url = urls[number % len(urls)] if balance is None else balance(urls)
            record = Record(planned.group, planned.due, monotonic() - due)
            headers = {"Content-Type": "application/json"}
            if planned.group in GROUPS:
                headers["X-Warmroute-Group"] = planned.group
            reply = await client.stream(f"{url}/v1/chat/completions", planned.body, headers)
            record.status, record.error = reply.status, reply.error
            record.replica = reply.headers.get("x-warmroute-replica") or (url if len(urls) > 1 else None)
            if reply.first_token is not None:
                record.ttft = reply.first_token - due
            if reply.end is not None:
                record.e2e = reply.end - due
            if reply.usage is not None:
                record.prompt_tokens = reply.usage.prompt_tokens
                record.cached_tokens = reply.usage.cached_tokens
                record.output_tokens = reply.usage.completion_tokens
                if (
                    record.output_tokens > 1
                    and reply.first_token is not None
                    and reply.last_token is not None
                ):
                    record.tpot = (reply.last_token - reply.first_token) / (record.output_tokens - 1)
            records.append(record)
            on_record(record)

        start = monotonic() + 0.05
        for number, planned in enumerate(sorted(plan, key=lambda planned: planned.due)):
            if await _stopped_within(stop, start + planned.due - monotonic()):
                break
            task = loop.create_task(one(number, planned))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks and not await _stopped_within(stop, 0.05):
            pass
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return records


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, unless `stop` is or becomes set."""
    if seconds > 0 and not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            pass
    return stop.is_set()


@dataclass(frozen=True, slots=True)
class Measured:
    """A window's records, with what they are compared with."""

    records: list[Record]
    ceilings: dict[str, float]
    seconds: float


async def measure(
    plan: Sequence[Planned],
    warm_up: Sequence[Planned],
    *,
    urls: Sequence[str],
    engines: Sequence[fleet.EngineFacts],
    stop: asyncio.Event | None = None,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> Measured:
    """Warm up, make everything cold, send the plan."""
    proxy = urls[0] if len(urls) == 1 else None
    names = [engine.url for engine in engines]
    if warm_up:
        await send(warm_up, urls, stop=stop)
    async with aiohttp.ClientSession() as session:
        await fleet.wait_until_idle(session, names)
        await fleet.make_cold(session, names, proxy)
    began = monotonic()
    records = await send(plan, urls, stop=stop, on_record=on_record)
    blocks, size = sum(engine.blocks for engine in engines), engines[0].block_size
    return Measured(records, ceilings(plan, blocks=blocks, block_size=size), monotonic() - began)


def failed(records: Sequence[Record]) -> list[str]:
    """Why a run does not count; empty if it does."""
    reasons = []
    if errors := [record.error for record in records if record.error is not None]:
        reasons.append(f"{len(errors)} of {len(records)} requests failed, the first with: {errors[0]}")
    rate = hit_rate([record for record in records if record.group == "random"])
    if rate is not None and rate > RANDOM_HIT_LIMIT:
        reasons.append(f"random prompts hit the cache ({rate:.1%}): something else shares it, or they do")
    return reasons


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench load`."""
    options = argparse.ArgumentParser(prog="python -m bench load", description=__doc__)
    options.add_argument("--url", required=True, help="the proxy, or several engines: A,B,C")
    options.add_argument("--engines", help="the engines' URLs; default: those of --url")
    options.add_argument("--workload", default="mixed", choices=sorted(WORKLOADS))
    options.add_argument("--rate", type=float, default=8.0, help="requests a second")
    options.add_argument("--duration", type=float, default=30.0, help="seconds that are measured")
    options.add_argument("--warm-up", type=float, default=5.0, help="seconds before them")
    options.add_argument("--groups", type=int, default=24, help="system prompts")
    options.add_argument("--prefix", type=int, default=1200, help="tokens of a system prompt")
    options.add_argument("--question", type=int, default=100, help="tokens of a question")
    options.add_argument("--output", type=int, default=64, help="tokens of an answer")
    options.add_argument("--zipf", type=float, default=0.0, help="how uneven the groups are; 0: even")
    options.add_argument(
        "--tokenizer", type=Path, help="a directory; default: the engine's own, or the bench's"
    )
    options.add_argument("--policy", default="direct", help="what to call this run in the result")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, help="where result.json and the plots go")
    return options


async def run(arguments: argparse.Namespace) -> int:
    """Measure and report."""
    console = Console()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    urls = [url.rstrip("/") for url in arguments.url.split(",")]
    names = [url.rstrip("/") for url in arguments.engines.split(",")] if arguments.engines else urls
    async with aiohttp.ClientSession() as session:
        engines = [await fleet.facts(session, url) for url in names]
    first = engines[0]
    prompt = EnginePrompt(arguments.tokenizer or first.tokenizer or TOKENIZER)
    shape = Shape(
        rate=arguments.rate,
        requests=round(arguments.rate * arguments.duration),
        groups=arguments.groups,
        zipf=arguments.zipf,
        prefix=arguments.prefix,
        question=arguments.question,
        output=arguments.output,
    )
    warm_shape = replace(shape, requests=round(arguments.rate * arguments.warm_up))
    plan, warm_up = (
        prepare(generate(arguments.workload, a, seed), prompt, model=first.model, block_size=first.block_size)
        for a, seed in ((shape, f"{arguments.seed}"), (warm_shape, f"{arguments.seed}/warm-up"))
    )
    with report.progress(console, "measuring", len(plan)) as advance:
        measured = await measure(
            plan, warm_up, urls=urls, engines=engines, stop=stop, on_record=lambda _record: advance()
        )
    simulated = any(engine.simulated for engine in engines)
    one = report.summarise(arguments.policy, measured.records, measured.ceilings, measured.seconds)
    workload = {"name": arguments.workload, **report.as_json(shape), "seed": arguments.seed}
    result = report.result([one], workload=workload, simulated=simulated)
    report.print_table(console, arguments.workload, [("", [one])], simulated=simulated)
    report.print_shares(console, [one])
    if arguments.out is not None:
        report.save(result, arguments.out, {arguments.policy: measured.records})
    if stop.is_set():
        console.print(f"stopped after {len(measured.records)} of {len(plan)} requests")
        return 130
    for reason in (reasons := failed(measured.records)):
        console.print(f"[bold red]{reason}")
    return 1 if reasons else 0


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    try:
        return uvloop.run(run(parser().parse_args(argv)))
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
