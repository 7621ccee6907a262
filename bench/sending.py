"""Sends a plan over HTTP and notes what came of each request.

Open loop: requests go out when they are due, whether or not earlier ones were answered, and every latency
counts from the time a request was *due*: a stalled server cannot slow its own examination. Closed loop
(`concurrency`): so many requests at a time, each sent when another has ended; latency counts from sending,
so a stall hides the requests that it kept from being sent. Failures are records, never raised.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from bench.client import Client, Reply
from bench.plan import Planned
from bench.record import Record

GROUPS = ("shared", "random")
"""The traffic groups that the proxy knows without being told."""


async def send(
    plan: Sequence[Planned],
    urls: Sequence[str],
    *,
    balance: Callable[[Sequence[str]], str] | None = None,
    concurrency: int | None = None,
    timeout: float | None = None,
    stop: asyncio.Event | None = None,
    on_record: Callable[[Record], None] = lambda _record: None,
    headers: Mapping[str, str] = {},
) -> list[Record]:
    """Send a plan and wait for every answer; after `stop`, send no more and drop what is under way.

    Each request goes to the URL that `balance` picks when it is due, as a balancer in front of proxies does;
    without it they take turns. `timeout`: seconds for one request; without one, the client's own limits.
    """
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    records: list[Record] = []
    tasks: set[asyncio.Task[None]] = set()
    ordered = sorted(plan, key=lambda planned: planned.due)
    async with Client() as client:

        async def one(number: int, due: float) -> None:
            planned = ordered[number]
            url = urls[number % len(urls)] if balance is None else balance(urls)
            record = Record(planned.group, due - start, monotonic() - due, number, planned.prompt_tokens)
            own = {"Content-Type": "application/json", **headers}
            if planned.group in GROUPS:
                own["X-Warmroute-Group"] = planned.group
            reply = await client.stream(f"{url}/v1/chat/completions", planned.body, own, timeout=timeout)
            note(record, reply, due)
            if record.replica is None and len(urls) > 1 and balance is None:
                record.replica = url
            records.append(record)
            on_record(record)

        async def worker() -> None:
            for number in left:
                if stop.is_set():
                    return
                await one(number, monotonic())

        left = iter(range(len(ordered)))
        start = monotonic() + (0.05 if concurrency is None else 0.0)
        try:
            if concurrency is not None:
                tasks.update(loop.create_task(worker()) for _ in range(concurrency))
                for task in tasks:
                    task.add_done_callback(tasks.discard)
            for number in left if concurrency is None else ():
                due = start + ordered[number].due
                if await _stopped_within(stop, due - monotonic()):
                    break
                task = loop.create_task(one(number, due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            while tasks and not await _stopped_within(stop, 0.05):
                pass
        finally:  # also where the command itself is told to end
            running = list(tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return records


def note(record: Record, reply: Reply, due: float) -> None:
    """Take over what a reply tells; `due` is on the clock of its times."""
    record.status, record.error = reply.status, reply.error
    told = reply.headers
    record.shed = reply.status == 429 or (reply.status == 503 and "retry-after" in told)
    record.replica = told.get("x-warmroute-replica")
    record.decision = told.get("x-warmroute-decision")
    record.queue = _seconds(told.get("x-warmroute-queue-ms"))
    record.overhead = _seconds(told.get("x-warmroute-overhead-ms"))
    predicted = told.get("x-warmroute-predicted-cached-tokens", "")
    record.predicted_tokens = int(predicted) if predicted.isdecimal() else None
    if reply.first_token is not None:
        record.ttft = reply.first_token - due
    if reply.end is not None:
        record.e2e = reply.end - due
    record.gaps = reply.gaps
    if reply.usage is not None:
        record.prompt_tokens = reply.usage.prompt_tokens
        record.cached_tokens = reply.usage.cached_tokens
        record.output_tokens = reply.usage.completion_tokens
    tokens = record.output_tokens or len(reply.gaps) + 1
    if tokens > 1 and reply.first_token is not None and reply.last_token is not None:
        record.tpot = (reply.last_token - reply.first_token) / (tokens - 1)


def _seconds(milliseconds: str | None) -> float | None:
    try:
        return None if milliseconds is None else float(milliseconds) / 1000
    except ValueError:
        return None


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, unless `stop` is or becomes set."""
    if seconds > 0 and not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            pass
    return stop.is_set()
