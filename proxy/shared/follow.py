"""Following the log: what the other proxies say, in order, after one reading of what they had said before.

At the start, and whenever entries were missed, the log's end is noted first, then every replica is read
whole, then the log from there; so nothing that changes meanwhile is lost, and it waits in the log, not here.
Predictions of late for replicas whose events nobody follows are read back too, so that a new proxy knows what
the others have learned.

Invariant: entries are applied in order, each once, as `proxy.shared.hearing` says; or it is known that they
were not, and everything is read anew.
"""

import asyncio
import time
from collections.abc import Set as AbstractSet

from redis.exceptions import RedisError

from proxy.logs import logger
from proxy.shared.base import Counts
from proxy.shared.hearing import Hearing
from proxy.shared.layout import Changed, Followed, unpack
from proxy.shared.log import LINGER, Log, Pace
from proxy.shared.snapshot import Held, Reader, Tail

BLOCK = 1.0
"""Seconds to wait for an entry before it is checked that the log is still the same."""
COMPARE = 5.0
"""Seconds between two looks at which replicas and epochs there are: a listing that had been evicted when
everything was read tells now what it could not tell then."""
PAUSE = 0.1
"""Seconds after a failure."""
ENTRIES = 64
SLICE = 0.002
"""Seconds of the event loop after which others get their turn."""
UNKNOWN_AFTER = 5.0
"""Seconds without Redis after which what the others said is no longer to be relied upon: engines have evicted
since (ten seconds of late events cost 0.4 to 2.6 points of hits in the design's simulations)."""

_Entry = tuple[bytes, list[bytes]]


class LostTrackError(Exception):
    """Entries of the log are missing."""


class Follower:
    """One proxy's reading of a pool's log."""

    def __init__(self, log: Log, hearing: Hearing, counts: Counts) -> None:
        self._log = log
        self._hearing = hearing
        self._counts = counts
        self._reader = Reader(log.link, log.names)
        self._origin = log.origin.encode()
        self._reading: set[str] = set()
        self._reread_at = 0
        """The log's number when a replica was last read whole, perhaps ahead of where the log was read.
        Until there our own words count too, or what others said before them would stand."""
        self._at: Tail | None = None
        self._seen = self._compared = time.monotonic()
        self._turn = 0.0
        self._told = False
        self._has_recalled = False
        self._pace = Pace()

    @property
    def synced(self) -> bool:
        """Whether everything that is shared has been read."""
        return self._at is not None and not self._hearing.again and not self._reading

    def again(self, replica: str) -> None:
        """Read this replica whole: it was ingested here, and is not any more."""
        self._hearing.epochs.pop(replica, None)
        self._hearing.again.add(replica)

    async def run(self) -> None:
        """Follow for ever."""
        while True:
            if not self._log.agreed.is_set():
                self._forget()
                await self._log.agreed.wait()
            try:
                await self._step()
                self._seen, self._told = time.monotonic(), False
            except LostTrackError:
                self._counts.gaps += 1
                self._forget()
                await asyncio.sleep(PAUSE)
            except RedisError:
                self._counts.failures += 1
                await self._away()
            except Exception:  # noqa: BLE001 - whatever it was, reading everything anew may help
                logger.exception("the log in Redis could not be followed")
                self._forget()
                await asyncio.sleep(BLOCK)

    async def _step(self) -> None:
        if self._at is None:
            await self._begin()
        elif time.monotonic() > self._compared + COMPARE:
            await self._compare()
        if self._hearing.again:
            await self._reread()
        at = self._at
        assert at is not None
        reply = await self._log.link.blocking(
            *("XREAD", "COUNT", ENTRIES, "BLOCK", int(BLOCK * 1000), "STREAMS", self._log.names.log, at.id),
            seconds=BLOCK,
        )
        if reply:
            ((_name, entries),) = reply
            before = self._counts.received
            await self._apply(entries, replay=False)
            self._pace.count(self._counts.received - before)
            if self._pace.busy and len(entries) < ENTRIES:
                await asyncio.sleep(LINGER)
        else:
            await self._check(at)

    async def _begin(self) -> None:
        """Read everything, then go on from where the log ended before."""
        tail = await self._reader.tail()
        fleet = await self._reader.fleet()
        self._hearing.epochs.clear()
        self._hearing.again.clear()
        self._reread_at = 0
        await self._read(fleet)
        if not self._has_recalled:
            await self._recall(tail, {held.replica for held in fleet})
            self._has_recalled = True
        self._at = tail

    async def _compare(self) -> None:
        fleet = await self._reader.fleet()
        hearing = self._hearing
        for held in fleet:
            if hearing.epochs.get(held.replica) != held.epoch and not hearing.ours(held.replica):
                hearing.again.add(held.replica)
        self._compared = time.monotonic()

    async def _reread(self) -> None:
        hearing = self._hearing
        self._reading, hearing.again = hearing.again, set()
        try:
            self._reread_at = (await self._reader.tail()).number
            fleet = [held for held in await self._reader.fleet() if held.replica in self._reading]
            await self._read(fleet)
        except BaseException:
            hearing.again |= self._reading
            self._reading = set()
            raise
        for replica in self._reading - {held.replica for held in fleet}:
            if not hearing.ours(replica):
                hearing.unknown(replica)
        self._reading = set()

    async def _read(self, fleet: list[Held]) -> None:
        hearing = self._hearing
        for held in fleet:
            if hearing.ours(held.replica):
                continue
            hearing.reading(held)
            first = True
            async for keys in self._reader.blocks(held.key):
                if hearing.ours(held.replica):
                    break
                hearing.listener.snapshot(held.replica, held.epoch, keys, first=first)
                first = False
            else:
                hearing.read(held)

    async def _recall(self, tail: Tail, followed: set[str]) -> None:
        """What was predicted before the log's end, for replicas of which nothing better is known."""
        link, key, start = self._log.link, self._log.names.log, b"-"
        while tail.id != b"0-0":
            entries = await link.call("XRANGE", key, start, tail.id, "COUNT", ENTRIES)
            if not entries:
                return
            await self._apply(entries, replay=True, followed=followed)
            start = b"(" + entries[-1][0]

    async def _check(self, at: Tail) -> None:
        """After a quiet second: a log that was lost may have begun anew where we would never look."""
        tail = await self._reader.tail()
        if tail.number > at.number:
            lost = _place(tail.id) <= _place(at.id)
        else:  # an empty log with its number says that nothing was missed
            lost = tail.number < at.number or tail.id not in {at.id, b"0-0"}
        if lost:
            raise LostTrackError

    async def _apply(
        self, entries: list[_Entry], *, replay: bool, followed: AbstractSet[str] = frozenset()
    ) -> None:
        self._turn = time.monotonic() + SLICE
        for place, flat in entries:
            fields = dict(zip(flat[::2], flat[1::2], strict=False))
            try:
                number, origin, body = int(fields[b"n"]), fields[b"o"], fields[b"b"]
                own = origin == self._origin
                records = list(unpack(body)) if replay or not own or number <= self._reread_at else []
                if own and not replay:
                    records = [each for each in records if isinstance(each, Changed | Followed)]
            except (KeyError, ValueError) as error:
                self._counts.broken += 1
                logger.warning("an entry of the log in Redis cannot be read: %r", error)
                if replay:
                    continue
                raise LostTrackError from error
            if not replay:
                assert self._at is not None
                if number != self._at.number + 1:
                    raise LostTrackError
                self._at = Tail(place, number)
                self._log.read(body, own=own)
            for record in records:
                if replay:
                    self._hearing.recalled(origin.decode(), record, followed)
                else:
                    self._hearing.heard(origin.decode(), record)
            if time.monotonic() > self._turn:
                await asyncio.sleep(0)
                self._turn = time.monotonic() + SLICE

    def _forget(self) -> None:
        self._at = None
        self._told = True
        self._hearing.lost()

    async def _away(self) -> None:
        """Wait for Redis; after a while, what was read is no longer to be relied upon."""
        await asyncio.sleep(PAUSE)
        while True:
            left = self._seen + UNKNOWN_AFTER - time.monotonic()
            if left <= 0 and not self._told:
                logger.warning("Redis is away: what other proxies know of the replicas is no longer used")
                self._forget()
            try:
                async with asyncio.timeout(None if self._told else max(left, 0.0)):
                    await self._log.link.wait_up()
            except TimeoutError:
                continue
            return


def _place(entry: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry.partition(b"-")
    return int(milliseconds), int(sequence or 0)
