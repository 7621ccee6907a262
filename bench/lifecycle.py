"""One run from start to end: warm up, empty what was left, prime, measure, cool down, count.

    warm-up    traffic of another seed, so that connections, compilers and learned rates are there and nothing
               that is measured is cached
    reset      engines idle, their prefix caches emptied, the proxy's index emptied; what cannot be emptied is
               named in the report
    prime      (asked for) each prefix that the window shares is sent once, in turn: the window starts warm
    window     what is measured
    cool-down  traffic goes on and is not measured, so that the window's last requests do not run on a fleet
               that empties
    count      the engines' own counters over window and cool-down, against what the answers said

Interrupting keeps what was measured so far.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from time import monotonic

import aiohttp

from bench import endpoint
from bench.endpoint import Counters, Endpoint
from bench.plan import Planned, best_hits
from bench.record import Record
from bench.sending import send

UNLIMITED = 10**9
"""Blocks that no run fills."""
SETTLE = 0.6
"""Seconds until a proxy has booked its last answers, and engines their counters."""
CACHEABLE = 16
"""Tokens of a block where an engine does not tell; for the ceiling only."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and who can be asked."""

    urls: Sequence[str]
    """One, or several that take turns."""
    engines: Sequence[Endpoint]
    """Behind them, or they themselves; may be empty."""
    proxy: str | None = None
    """Whose index is emptied and whose waterfall is read."""
    admin_token: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    balance: str | None = None
    """`random`: a balancer in front of the URLs that draws one for each request."""

    @property
    def block_size(self) -> int:
        """Of the first engine that tells."""
        return next((e.block_size for e in self.engines if e.block_size), CACHEABLE)

    @property
    def blocks(self) -> int | None:
        """Of all engines together; None unless all tell."""
        sizes = [engine.blocks for engine in self.engines]
        return None if not sizes or None in sizes else sum(size or 0 for size in sizes)


@dataclass(slots=True)
class Window:
    """What came of a run."""

    plan: Sequence[Planned]
    """What was to be measured."""
    records: list[Record]
    """Of the window."""
    cooling: list[Record]
    """Of the cool-down."""
    seconds: float
    """From its start to its last answer."""
    best: list[int]
    """By number in the plan, tokens that one LRU of the fleet's size would hold."""
    unlimited: list[int]
    """Likewise, if nothing were ever given up."""
    counted: dict[str, Counters | None]
    """By engine."""
    stages: dict[tuple[str, str], float]
    """This proxy's waterfall, (group, stage) to tokens; empty for anything else."""
    notes: list[str]
    """What could not be done as it should be."""
    lost: int = 0
    """Requests under way when the run was interrupted."""


def primes(plan: Sequence[Planned]) -> list[Planned]:
    """The first request of the plan behind each prefix that several share.

    A prefix is a first full block.
    """
    shared = Counter(planned.keys[0] for planned in plan if planned.keys)
    first: dict[int, Planned] = {}
    for planned in plan:
        if planned.keys and shared[planned.keys[0]] > 1:
            first.setdefault(planned.keys[0], planned)
    return [replace(planned, due=0.0) for planned in first.values()]


async def carry_out(
    plan: Sequence[Planned],
    target: Target,
    *,
    warm_up: Sequence[Planned] = (),
    cool_down: Sequence[Planned] = (),
    prime: bool = False,
    cold: bool = True,
    concurrency: int | None = None,
    timeout: float | None = None,
    seed: str = "",
    stop: asyncio.Event | None = None,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> Window:
    """Do all of it. `cold`: empty caches and index before the window."""
    stop = stop or asyncio.Event()
    names = [engine.url for engine in target.engines]
    notes: list[str] = []
    balance = Random(f"{seed}/balancer").choice if target.balance == "random" else None
    common = {"timeout": timeout, "stop": stop, "headers": target.headers, "balance": balance}
    if warm_up:
        warmed = await send(warm_up, target.urls, concurrency=concurrency, **common)  # type: ignore[arg-type]
        if bad := [record.error for record in warmed if record.error is not None]:
            notes.append(f"warm-up: {len(bad)} of {len(warmed)} requests failed, the first with: {bad[0]}")
    primed: Sequence[Planned] = ()
    async with aiohttp.ClientSession() as session:
        if cold:
            notes += await make_cold(session, target)
        if prime:
            primed = primes(plan)
            await send(primed, target.urls, concurrency=1, **common)  # type: ignore[arg-type]
        before = await endpoint.counters(session, names)
        told = await endpoint.stages(session, target.proxy) if target.proxy else {}
        everything = [*plan, *_after(plan, cool_down)]
        measured = len(plan)
        began, ended = monotonic(), 0.0

        def note(record: Record) -> None:
            nonlocal ended
            if record.number < measured:
                ended = monotonic()
                on_record(record)

        records = await send(
            everything,
            target.urls,
            concurrency=concurrency,
            on_record=note,
            **common,  # type: ignore[arg-type]
        )
        if not stop.is_set():
            await asyncio.sleep(SETTLE)
        after = await endpoint.counters(session, names)
        finally_told = await endpoint.stages(session, target.proxy) if target.proxy else {}
    ordered = sorted(plan, key=lambda planned: planned.due)
    with_primes, size = [*primed, *ordered], target.block_size
    best = best_hits(with_primes, blocks=target.blocks or UNLIMITED, block_size=size)[len(primed) :]
    unlimited = best_hits(with_primes, blocks=UNLIMITED, block_size=size)[len(primed) :]
    window = Window(
        plan=ordered,
        records=[record for record in records if record.number < measured],
        cooling=[record for record in records if record.number >= measured],
        seconds=max(ended - began, 1e-9),
        best=best,
        unlimited=unlimited,
        counted={
            url: now.since(then) if (now := after[url]) and (then := before[url]) else None for url in names
        },
        stages={key: value - told.get(key, 0.0) for key, value in finally_told.items()},
        notes=notes,
    )
    if stop.is_set():
        window.lost = len(plan) - len(window.records)
    return window


async def make_cold(session: aiohttp.ClientSession, target: Target) -> list[str]:
    """Empty the engines' caches and the proxy's index; what could not be."""
    names = [engine.url for engine in target.engines]
    notes = []
    if not await endpoint.idle(session, names):
        notes.append("the engines were still busy a minute after the warm-up")
    failures = [await endpoint.reset(session, url) for url in names]
    notes += [f"cache not emptied: {why}" for why in failures if why]
    if (
        target.proxy is not None
        and target.proxy not in names
        and (why := await endpoint.flush(session, target.proxy, target.admin_token))
    ):
        notes.append(why)
    return notes


def _after(plan: Sequence[Planned], cool_down: Sequence[Planned]) -> list[Planned]:
    """The cool-down, none of it due before the last of the plan."""
    end = max((planned.due for planned in plan), default=0.0) + 1e-6
    return [replace(planned, due=max(planned.due, end)) for planned in cool_down]
