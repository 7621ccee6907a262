"""What one ingester knows of its replica, on its way to Redis: in order, each call once, or all of it anew.

Batches wait here while others are being written and go together. A call whose reply was lost is repeated; the
number it carries keeps Redis from doing it twice. So a short outage costs nothing, and what Redis holds stays
a true past of the feed: nothing that follows a lost batch is ever written.

When Redis has lost what was written (restarted empty, evicted), has no memory left, or too much waits, what
waits is dropped and the replica is written whole, from what its ingester knows: clear, then everything,
under the same claim. Replaying the engine's events instead would not do: its buffer holds the last few
thousand steps, and a prefix that is older but still cached would be lost to everybody for good. An ingester
that cannot tell the whole loses its claim, and begins again as any new one does.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
import time
from array import array
from collections import deque
from collections.abc import Callable

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from proxy.index.handles import Delta
from proxy.logs import logger
from proxy.shared import scripts
from proxy.shared.base import Claim, Counts, Mode
from proxy.shared.client import LinkDown
from proxy.shared.layout import Changed, Followed, block_bytes, escape, handle_bytes, pack
from proxy.shared.lease import KEEP, LEASE, ms
from proxy.shared.log import Log
from proxy.shared.pending import Call, Part, Pending
from proxy.shared.wire import Argument

WAITING = 500_000
"""Block and handle changes that may wait; beyond that the whole is shorter."""
AGAIN_FIRST, AGAIN_LAST = 2.0, 300.0
"""Seconds until a Redis that is full, or that lost the replica again, is tried again: doubled each time."""
QUIET = 60.0
"""Seconds after which a replica that was lost once may be written anew at once."""
REFUSALS = 5
"""Errors other than a lost connection after which the claim is given up."""
PAUSE = 0.05
"""Seconds after a failure."""
_FULL = b"full"
_NONE: array[int] = array("Q")


class Writer:
    """One claim's way to Redis."""

    def __init__(self, claim: Claim, log: Log, counts: Counts, on_lost: Callable[[Claim], None]) -> None:
        self.claim = claim
        self.epoch: str | None = None
        """The epoch that Redis holds, or will once what waits is written."""
        self._log = log
        self._counts = counts
        self._on_lost = on_lost
        self._past: deque[str] = deque(maxlen=16)
        self._pending: Pending | None = None
        self._whole_due = False
        self._mode: Mode = "events"
        self._announced: Mode | None = "events"
        self._written = False
        self._calls = 0
        self._most = WAITING
        self._full = False
        self._wait = 0.0
        self._rewritten = -QUIET
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def commit(self, epoch: str, seq: int, delta: Delta) -> None:
        """Queue one batch. No I/O."""
        if self.claim.lost.is_set():
            self._counts.commits_refused += 1
            return
        if epoch != self.epoch:
            if epoch in self._past:  # late words of a process that is gone
                self._counts.commits_refused += 1
                self.lose()
                return
            if self.epoch is not None:
                self._past.append(self.epoch)
            self.epoch = epoch
            self._pending = Pending(epoch, begin=True)
        if self._whole_due:
            self._counts.commits_dropped += 1  # what is written instead has it
            return
        if self._pending is None:
            self._pending = Pending(epoch, begin=False)
        self._pending.add(seq, delta)
        if self._pending.size > self._most:
            self._pending.merge()
            self._most = max(WAITING, 2 * self._pending.size)
            if self._pending.size > WAITING and not self._pending.whole:
                self.rewrite()
                return
        self._start()

    def resumed(self, epoch: str) -> None:
        """Redis holds this epoch, and what follows continues it; in which mode is not known."""
        self.epoch = epoch
        self._announced = None
        self._written = True

    def announce(self, epoch: str, mode: Mode) -> None:
        """Queue how well the feed is followed. No I/O."""
        if epoch == self.epoch and not self.claim.lost.is_set():
            self._mode = mode
            self._start()

    def rewrite(self) -> None:
        """Replace what Redis holds by all that the ingester knows."""
        if not self._written and not self._full:
            return  # nothing is there to be lost
        if self._pending is not None:
            self._counts.commits_dropped += self._pending.count
            self._pending = None
        self._whole_due = True
        self._start()

    def lose(self) -> None:
        """Stop: another proxy ingests this replica, or may."""
        if not self.claim.lost.is_set():
            if self._pending is not None:
                self._counts.commits_dropped += self._pending.count
                self._pending = None
            self._whole_due = False
            self.claim.lost.set()
            self._on_lost(self.claim)
            self._start()

    async def run(self) -> None:
        """Write until the claim is lost."""
        try:
            while not self.claim.lost.is_set():
                await self._work.wait()
                self._work.clear()
                while self._whole_due or (self._pending is not None and self._pending.count):
                    if self._whole_due:
                        await self._hold_off()
                    if (part := self._take()) is not None:
                        await self._write(part)
                if self._mode != self._announced:
                    await self._announce()
                self._idle.set()
        except Exception:  # noqa: BLE001 - whatever it was, the claim must not be held by nobody
            logger.exception("what is known of %s could not be written", self.claim.replica)
            self.lose()

    async def flush(self) -> None:
        """Return when nothing waits."""
        await self._idle.wait()

    def _start(self) -> None:
        self._idle.clear()
        self._work.set()

    def _take(self) -> Part | None:
        """What is to be written next."""
        if self._whole_due:
            whole = self.claim.whole() if self.claim.whole is not None else None
            if whole is None:
                self.lose()
                return None
            self._whole_due = False
            self._counts.rewrites += 1
            self._pending = Pending(whole.epoch, begin=True)
            self._pending.add(whole.seq, whole.delta)
        if self._pending is None or not self._pending.count:
            return None
        return self._pending.take()

    async def _write(self, part: Part) -> None:
        """Make the calls of a part; while Redis does one, the next is made ready."""
        sent: asyncio.Task[bytes] | None = None
        try:
            for call in part.calls():
                self._calls += 1
                keys, args = self._command(part, call, self._calls)
                if sent is not None and not await self._went_well(await sent, part):
                    return
                sent = asyncio.create_task(self._send(keys, args), name="a call of a commit")
                await asyncio.sleep(0)
                self._counts.changes += len(call.removed) + len(call.stored)
            if sent is not None and await self._went_well(await sent, part):
                self._counts.commits += part.batches
                if part.begin:
                    self._announced = "events"
        finally:
            if sent is not None:
                sent.cancel()

    async def _went_well(self, reply: bytes, part: Part) -> bool:
        """Whether the next call may be made; whatever else must be done has been done."""
        if reply in {scripts.HELD, scripts.DONE}:
            self._written = True
            return True
        if self.claim.lost.is_set():
            return False
        if reply == scripts.FENCED:
            self._counts.commits_refused += part.batches
            self.lose()
        elif reply == _FULL:
            self._full = True
            self._counts.commits_dropped += part.batches
            self.rewrite()
        else:
            logger.info("Redis has lost what it held of %s (%s)", self.claim.replica, reply.decode())
            self._counts.commits_dropped += part.batches
            self.rewrite()
        return False

    def _command(self, part: Part, call: Call, number: int) -> tuple[tuple[str, ...], tuple[Argument, ...]]:
        names, log, claim = self._log.names, self._log, self.claim
        replica, epoch = claim.replica, part.epoch
        body = pack(Changed(replica, epoch, call.begin, call.removed, call.stored))
        keys = (
            *(names.own(replica), names.rep(replica)),
            *(names.blocks(replica, epoch), names.handles(replica, epoch)),
            *(names.replicas, names.log, names.number),
        )
        args = (
            *(claim.token, ms(LEASE), ms(KEEP), escape(replica), escape(epoch)),
            *(number, int(call.begin), int(call.last), part.seq),
            *(len(call.removed), len(call.stored), body, block_bytes(call.gone), handle_bytes(call.handles)),
            *(log.origin, log.most),
        )
        return keys, args

    async def _send(self, keys: tuple[str, ...], args: tuple[Argument, ...]) -> bytes:
        """Make one call, again and again until there is an answer to it."""
        log, claim = self._log, self.claim
        refusals = 0
        while not claim.lost.is_set():
            try:
                return bytes(await log.link.script(scripts.COMMIT, keys, args))
            except LinkDown:
                await log.link.wait_up()
            except OutOfMemoryError:
                self._counts.full += 1
                return _FULL
            except RedisError as error:
                self._counts.failures += 1
                refusals += isinstance(error, ResponseError)
                if refusals >= REFUSALS:
                    logger.warning("Redis refuses what is known of %s: %s", claim.replica, error)
                    self.lose()
                await asyncio.sleep(PAUSE)
        return scripts.FENCED

    async def _hold_off(self) -> None:
        """Wait before a replica is written whole, if that would be too often; what is there goes first."""
        soon = time.monotonic() - self._rewritten < QUIET
        self._wait = min(max(2 * self._wait, AGAIN_FIRST), AGAIN_LAST) if soon or self._full else 0.0
        if self._wait:
            why = "full" if self._full else "losing it again and again"
            logger.warning("Redis is %s: %s is not shared for %g s", why, self.claim.replica, self._wait)
            await self._drop()
            await asyncio.sleep(self._wait)
        self._full = False
        self._rewritten = time.monotonic()

    async def _drop(self) -> None:
        """Delete what Redis holds of the replica, which is not kept up any more."""
        names, claim, log, epoch = self._log.names, self.claim, self._log, self.epoch or ""
        body = pack(Changed(claim.replica, epoch, cleared=True, removed=_NONE, stored=_NONE))
        body += pack(Followed(claim.replica, epoch, "learned"))
        keys = (names.own(claim.replica), names.rep(claim.replica), names.log, names.number)
        try:
            args = (claim.token, log.origin, body, log.most, ms(KEEP))
            await log.link.script(scripts.DROP, keys, args)
        except RedisError:
            self._counts.failures += 1

    async def _announce(self) -> None:
        names, log, claim, mode = self._log.names, self._log, self.claim, self._mode
        epoch = self.epoch or ""
        body = pack(Followed(claim.replica, epoch, mode))
        keys = (names.own(claim.replica), names.rep(claim.replica), names.log, names.number)
        try:
            args = (claim.token, escape(epoch), mode, log.origin, body, log.most, ms(KEEP))
            await log.link.script(scripts.ANNOUNCE, keys, args)
        except RedisError:
            self._counts.failures += 1  # said again with the next batch
        else:
            self._announced = mode
