"""The log of a pool: one stream that every proxy appends to and follows.

Each entry carries a number one higher than the entry before it, whoever wrote that: Redis counts. So a reader
that was skipped entries (XREAD says nothing of those trimmed) or a log that was lost is noticed at the next
entry. `Outbox` sends what this proxy tells the others: whatever is waiting goes as one entry, at once unless
much is told. Bounded at both ends; what does not reach Redis is lost, and counted.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
import time
from collections import deque
from math import exp

from redis.exceptions import RedisError

from proxy.logs import logger
from proxy.shared import scripts
from proxy.shared.base import Counts
from proxy.shared.client import Link
from proxy.shared.layout import Forgotten, Names, Predicted, Record, escape, pack
from proxy.shared.lease import KEEP, ms

ENTRIES = 50_000
BYTES = 64 << 20
"""The most that the log may take of Redis's memory, by the average entry of late."""
ENTRY_OVERHEAD = 96
"""Bytes of an entry beside its body."""
WAITING_BYTES = 8 << 20
"""Publications that wait for Redis; more are dropped."""
PAUSE = 0.1
"""Seconds after a removal failed."""
BODY = 64 << 10
"""Bytes after which an entry takes no further publication."""


class Log:
    """Where the log is, how long it may be, and how far it lags."""

    def __init__(self, link: Link, names: Names, origin: str) -> None:
        self.link = link
        self.names = names
        self.origin = origin
        self.agreed = asyncio.Event()
        """Set while this proxy's settings are known to be the namespace's."""
        self._average = 1024.0
        self._sample: tuple[bytes, float] | None = None
        self._lag = 0.0

    @property
    def up(self) -> bool:
        """Whether it can be written."""
        return self.link.up and self.agreed.is_set()

    @property
    def most(self) -> int:
        """Entries that it may hold now."""
        return max(256, min(ENTRIES, int(BYTES / self._average)))

    @property
    def lag(self) -> float:
        """Seconds from publishing something here to reading it back, of the last sample."""
        if self._sample is None:
            return self._lag
        return max(self._lag, time.monotonic() - self._sample[1])

    def sending(self, body: bytes, since: float) -> None:
        """An entry that has waited since then is about to be sent; one at a time is timed."""
        if self._sample is None:
            self._sample = (body, since)

    def unsent(self, body: bytes) -> None:
        """It was not sent after all, or nobody knows."""
        if self._sample is not None and self._sample[0] == body:
            self._sample = None

    def read(self, body: bytes, *, own: bool) -> None:
        """An entry was read."""
        self._average += (len(body) + ENTRY_OVERHEAD - self._average) / 64
        if own and self._sample is not None and self._sample[0] == body:
            self._lag = time.monotonic() - self._sample[1]
            self._sample = None

    async def publish(self, body: bytes) -> None:
        """Append an entry."""
        keys = (self.names.log, self.names.number)
        await self.link.script(scripts.PUBLISH, keys, (self.origin, body, self.most, ms(KEEP)))

    async def forget(self, replica: str) -> None:
        """Delete all that is shared of a replica, and say so: one step."""
        names = self.names
        keys = (names.own(replica), names.rep(replica), names.replicas, names.log, names.number)
        body = pack(Forgotten(replica))
        args = (escape(replica), self.origin, body, self.most, ms(KEEP))
        await self.link.script(scripts.FORGET, keys, args)


LINGER = 0.01
"""Seconds between two entries, and between two readings, while much is told: each costs as much as routing
several requests, here, in Redis and at every reader."""
MUCH = 300.0
"""Records a second from which on they are told together; up to there each is told at once."""
RATE_SECONDS = 0.1
"""Time constant of that rate."""


class Pace:
    """Whether so much is told that it is worth waiting for more."""

    def __init__(self) -> None:
        self._rate = 0.0
        """Records a second, of late."""
        self._at = time.monotonic()

    def count(self, records: int) -> None:
        """So many more have been sent, or read, at once."""
        now = time.monotonic()
        elapsed, self._at = max(now - self._at, 1e-6), now
        self._rate += (records / elapsed - self._rate) * (1 - exp(-elapsed / RATE_SECONDS))

    @property
    def busy(self) -> bool:
        """True from `MUCH` on."""
        return self._rate > MUCH


class Outbox:
    """What this proxy has to tell the others, until it is told."""

    def __init__(self, log: Log, counts: Counts) -> None:
        self._log = log
        self._counts = counts
        self._waiting: deque[tuple[Record, int]] = deque()
        self._bytes = 0
        self._since = 0.0
        self._pace = Pace()
        self._forgotten: dict[str, None] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, record: Record) -> None:
        """Queue a publication. No I/O."""
        size = 32 + 8 * len(record.keys) if isinstance(record, Predicted) else 32
        if not self._log.up or self._bytes + size > WAITING_BYTES:
            self._counts.publications_dropped += 1
            return
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append((record, size))
        self._bytes += size
        self._start()

    def forget(self, replica: str) -> None:
        """Queue a removal, which is tried until it succeeds."""
        self._forgotten[replica] = None
        self._start()

    def forgets(self, replica: str) -> bool:
        """Whether its removal waits."""
        return replica in self._forgotten

    async def forgetting(self, replica: str) -> None:
        """Make a removal that waits, if there is one, now. RedisError if it cannot be made."""
        if replica in self._forgotten:
            await self._log.forget(replica)
            self._forgotten.pop(replica, None)

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting or self._forgotten:
                try:
                    full = await self._send()
                    if not full and (self._waiting or self._pace.busy):
                        await asyncio.sleep(LINGER)
                except Exception as error:  # noqa: BLE001 - whatever it was, the next may be sent
                    self._counts.failures += 1
                    if not isinstance(error, RedisError):
                        logger.exception("something could not be told to the other proxies")
                    if self._forgotten:
                        await asyncio.sleep(PAUSE)
                        await self._log.link.wait_up()
            self._idle.set()

    async def flush(self) -> None:
        """Return when nothing waits."""
        await self._idle.wait()

    async def _send(self) -> bool:
        """Send an entry; whether it is full."""
        await self._log.agreed.wait()
        for replica in tuple(self._forgotten):
            await self.forgetting(replica)
        if not self._waiting:
            return False
        since, sent, parts, size = self._since, 0, [], 0
        while self._waiting and size < BODY:
            record, cost = self._waiting.popleft()
            self._bytes -= cost
            part = pack(record)
            parts.append(part)
            size += len(part)
            sent += 1
        self._since = time.monotonic()  # close enough for what is left
        self._pace.count(sent)
        body = b"".join(parts)
        self._log.sending(body, since)
        try:
            await self._log.publish(body)
        except RedisError:
            self._log.unsent(body)
            self._counts.publications_dropped += sent
            raise
        self._counts.published += sent
        return size >= BODY

    def _start(self) -> None:
        self._idle.clear()
        self._work.set()
