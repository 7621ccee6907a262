"""One model pool, shared with other proxies through Redis: composes the parts, and holds the claims.

What a request calls here is synchronous and only queues; everything that waits for Redis runs in tasks of its
own, which no failure of Redis ends. Invariants: a replica is either ingested by this proxy (it has a writer
here) or followed from Redis, never both; nothing is shared before the namespace's settings were found to
agree, nor after they were found not to.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
from array import array
from collections.abc import Mapping

from redis.exceptions import RedisError

from proxy.description import Load
from proxy.index.handles import Delta
from proxy.logs import logger
from proxy.shared import scripts
from proxy.shared.base import Claim, Counts, Disagreement, Listener, Mode, Resume
from proxy.shared.client import Link
from proxy.shared.commits import Writer
from proxy.shared.follow import Follower
from proxy.shared.hearing import Hearing
from proxy.shared.layout import VERSION, Names, Predicted, Reported, Retracted, fingerprint
from proxy.shared.lease import KEEP, RENEW, Leases, ms
from proxy.shared.loads import Loads, Source
from proxy.shared.log import Log, Outbox
from proxy.shared.snapshot import Reader
from proxy.tasks import Tasks

AGREE = 10.0
"""Seconds between two looks at the namespace's settings."""
GOODBYE = 1.0
"""Seconds that closing may take to send what waits."""


def settings(secret: bytes, block_size: int, tokenizer: str) -> dict[str, str]:
    """What all proxies of a namespace must have alike, in the order in which differences are told."""
    return {
        "layout": VERSION,
        "secret": fingerprint(secret),
        "block size": str(block_size),
        "tokenizer": tokenizer,
    }


class SharedPool:
    """A `Pool` of proxies that share a Redis. See `proxy.shared.base`."""

    def __init__(
        self,
        link: Link,
        listener: Listener,
        *,
        namespace: str,
        pool: str,
        origin: str,
        settings: Mapping[str, str],
        load: Source = dict,
    ) -> None:
        """`origin`: a random name of this process. `load`: what this proxy has in flight, by replica."""
        names = Names(namespace, pool)
        self.counts = Counts()
        self._link = link
        self._names = names
        self._settings = dict(settings)
        self._log = Log(link, names, origin)
        self._outbox = Outbox(self._log, self.counts)
        self._leases = Leases(link, names, origin)
        self._reader = Reader(link, names)
        self._loads = Loads(self._log, load, self.counts)
        self._writers: dict[str, Writer] = {}
        self._claiming: set[str] = set()
        hearing = Hearing(listener, self.counts, ours=self._writers.__contains__, removed=self._lose)
        self._follower = Follower(self._log, hearing, self.counts)
        self._tasks = Tasks()
        self._look = asyncio.Event()

    @property
    def up(self) -> bool:
        """See `Pool.up`."""
        return self._log.up

    @property
    def lag(self) -> float:
        """See `Pool.lag`."""
        return self._log.lag

    @property
    def synced(self) -> bool:
        """Whether all that is shared has been read since the start, or since entries were missed."""
        return self._follower.synced

    @property
    def proxies(self) -> int:
        """Other proxies that live, a few hundredths of a second ago."""
        return self._loads.proxies

    async def agree(self) -> None:
        """See `Pool.agree`. RedisError if Redis cannot be asked."""
        names, ours = self._names, self._settings
        keys = (names.meta, names.log, names.number, names.fence, names.replicas, names.load)
        flat = [part for pair in ours.items() for part in pair]
        reply = await self._link.script(scripts.AGREE, keys, (ms(KEEP), *flat))
        held = dict(zip(reply[::2], reply[1::2], strict=True))
        for what, value in ours.items() if held else ():
            theirs = held.get(what.encode(), b"-").decode(errors="replace")
            if theirs != value:
                self._log.agreed.clear()
                raise Disagreement(what, value[:16], theirs[:16])
        self._log.agreed.set()

    async def start(self) -> None:
        """See `Pool.start`. If Redis is away, everything begins when it is there."""
        try:
            await self.agree()
        except RedisError:
            self.counts.failures += 1
        self._link.on_up(self._look.set)
        self._tasks.start("shared settings", self._keep_agreeing())
        self._tasks.start("shared log, written", self._outbox.run())
        self._tasks.start("shared log, read", self._follower.run())
        self._tasks.start("shared loads", self._loads.run())
        self._tasks.every("leases", RENEW, self._renew)

    async def close(self) -> None:
        """See `Pool.close`."""
        claims = [writer.claim for writer in self._writers.values()]
        try:
            async with asyncio.timeout(GOODBYE):
                await asyncio.gather(*map(self.release, claims), self._outbox.flush())
        except TimeoutError:
            pass
        await self._tasks.close()
        await self._loads.close()

    async def claim(self, replica: str) -> Claim | None:
        """See `Pool.claim`."""
        if not self.up or replica in self._writers or replica in self._claiming:
            return None
        self._claiming.add(replica)
        try:
            await self._outbox.forgetting(replica)
            claim = await self._leases.claim(replica)
        except RedisError:
            self.counts.failures += 1
            return None
        finally:
            self._claiming.discard(replica)
        if claim is None:
            return None
        writer = self._writers[replica] = Writer(claim, self._log, self.counts, self._lost)
        self._tasks.start(f"writing {replica}", writer.run())
        return claim

    async def release(self, claim: Claim) -> None:
        """See `Pool.release`."""
        writer = self._writers.get(claim.replica)
        if writer is None or writer.claim is not claim:
            return
        try:
            async with asyncio.timeout(GOODBYE):
                await writer.flush()
        except TimeoutError:
            pass
        writer.lose()
        await self._give_up(claim)

    async def resume(self, claim: Claim) -> Resume | None:
        """See `Pool.resume`."""
        writer = self._writer(claim)
        if writer is None:
            return None
        try:
            resume = await self._reader.resume(claim)
        except (RedisError, ValueError):
            self.counts.failures += 1
            return None
        if resume is not None:
            writer.resumed(resume.epoch)
        return resume

    def commit(self, claim: Claim, epoch: str, seq: int, delta: Delta) -> None:
        """See `Pool.commit`."""
        writer = self._writer(claim)
        if writer is None:
            self.counts.commits_refused += 1
        else:
            writer.commit(epoch, seq, delta)

    def announce(self, claim: Claim, epoch: str, mode: Mode) -> None:
        """See `Pool.announce`."""
        if (writer := self._writer(claim)) is not None:
            writer.announce(epoch, mode)

    def predicted(self, number: int, replica: str, keys: array[int]) -> None:
        """See `Pool.predicted`."""
        self._outbox.put(Predicted(number, replica, keys))

    def retracted(self, number: int) -> None:
        """See `Pool.retracted`."""
        self._outbox.put(Retracted(number))

    def reported(self, number: int, predicted: int, reported: int) -> None:
        """See `Pool.reported`."""
        self._outbox.put(Reported(number, predicted, reported))

    def forgotten(self, replica: str) -> None:
        """See `Pool.forgotten`."""
        self._outbox.forget(replica)
        self._lose(replica)

    def others(self, replica: str) -> Load:
        """See `Pool.others`."""
        return self._loads.others(replica)

    def _writer(self, claim: Claim) -> Writer | None:
        writer = self._writers.get(claim.replica)
        return writer if writer is not None and writer.claim is claim else None

    def _lose(self, replica: str) -> None:
        if (writer := self._writers.get(replica)) is not None:
            writer.lose()

    def _lost(self, claim: Claim) -> None:
        del self._writers[claim.replica]
        self._follower.again(claim.replica)
        if not self._outbox.forgets(
            claim.replica
        ):  # that takes the lease too, before anybody else can have it
            self._tasks.start(f"releasing {claim.replica}", self._give_up(claim))

    async def _give_up(self, claim: Claim) -> None:
        """Release the lease if it is still this claim's."""
        try:
            await self._leases.release(claim)
        except RedisError:
            self.counts.failures += 1

    async def _keep_agreeing(self) -> None:
        """Look now and then, and whenever Redis is there again, perhaps empty, perhaps somebody else's."""
        said = ""
        while True:
            self._look.clear()
            try:
                await self.agree()
            except Disagreement as error:
                if str(error) != said:
                    said = str(error)
                    logger.error("nothing is shared any more: %s", error)
                for replica in tuple(self._writers):
                    self._lose(replica)
            except RedisError:
                self.counts.failures += 1
            try:
                async with asyncio.timeout(AGREE):
                    await self._look.wait()
            except TimeoutError:
                pass

    async def _renew(self) -> None:
        if self.up:
            await asyncio.gather(*map(self._renew_one, tuple(self._writers.values())))

    async def _renew_one(self, writer: Writer) -> None:
        try:
            reply = await self._leases.renew(writer.claim)
        except RedisError:
            self.counts.failures += 1
            return
        if reply == scripts.FENCED:
            writer.lose()
        elif reply != scripts.HELD:
            writer.rewrite()
