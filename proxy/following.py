"""One replica's feed, followed under one claim: feed -> sequence -> handles -> index and other proxies.

What a batch changes is applied to the index here at once and then committed to the shared pool; nothing waits
for Redis. It never decides who follows, and is never used again once closed: a new process of the replica, a
new claim and a new keyer each begin with a new one, so nothing that still comes of the old can be applied.
"""

import asyncio
import time
from array import array
from collections import deque
from itertools import islice
from typing import Literal

from proxy.description import FeedSpec
from proxy.index.events import decode
from proxy.index.feed import Feed
from proxy.index.handles import HandleBook, Root
from proxy.index.sequence import Apply, Check, Replay, Restarted, Sequencer, Stale, Step
from proxy.logs import logger
from proxy.shared.base import Claim, Pool, Resume, Whole
from proxy.standing import Standing, Surroundings

RESUMED_AT_ONCE = 4_096
"""Blocks of another proxy's knowledge that are taken over in one step of the event loop."""


class Following:
    """One claim's following of one process of one replica. `closed` once, for good."""

    def __init__(
        self,
        around: Surroundings,
        replica: str,
        spec: FeedSpec,
        *,
        pool: Pool,
        claim: Claim,
        epoch: str,
        lasting: bool,
        root: Root,
        block_size: int,
        copies: Literal["counted", "unknown"],
    ) -> None:
        """`epoch` names this process among all that bore the name. `lasting`: other proxies name it alike."""
        self.closed = False
        self.misfit: int | None = None
        """The engine's block size, once it has turned out to fit no multiple of ours."""
        self._around = around
        self._replica = replica
        self._claim = claim
        self._base = epoch
        self._lasting = lasting
        self._replays = spec.replay is not None
        self._begun = 0
        """How often the numbers have begun anew in this process."""
        self._standing = Standing(replica, spec, around, pool, claim, epoch)
        self._book = HandleBook(root, block_size, copies=copies)
        self._sequencer = Sequencer()
        self._steps: deque[Step] = deque()
        self._heard = False
        """Whether the publisher has said a word, be it that it has nothing to say."""
        self._asking = self._checking = self._looking = False
        self._replays_due = 0
        """Replays among the steps that wait: what the one under way still brings counts no more."""
        self._feed = Feed(
            around.context,
            around.turns,
            self,
            endpoint=spec.endpoint,
            bind=spec.bind,
            topic=spec.topic,
            replay=spec.replay,
        )

    async def open(self, resume: Resume | None) -> None:
        """Take over what another proxy has known of this process, and subscribe. Raises Unreachable."""
        self._claim.whole = self._whole
        if resume is not None and self._lasting and resume.epoch.partition("+")[0] == self._base:
            await self._take_over(resume)
        else:
            self._standing.begin()
        if not self.closed:
            self._feed.open()

    def close(self) -> None:
        """Stop at once: what is still on its way is not applied any more."""
        self.closed = True
        self._steps.clear()
        self._around.turns.forget(self._step)
        self._feed.close()

    def served(self) -> None:
        """The replica has answered, and should have stored a block for it: an event should follow."""
        if self._standing.served():
            self._around.counts.silent += 1
            self._standing.commit(self._book.clear())

    def flushed(self) -> None:
        """The engine has dropped its cache, and may say so only with its next step."""
        mode = self._standing.mode
        self._around.forget(self._replica)
        self._around.index.set_mode(self._replica, mode)
        self._standing.commit(self._book.clear())

    def resync(self, why: str) -> None:
        """What is known does not agree with what the replica reports: read all that it still tells."""
        logger.warning("replica %s: its KV events are read anew: %s", self._replica, why)
        self._begin_again()

    def tick(self) -> None:
        """See whether what is waited for has come; to be called every second or so."""
        if self._claim.lost.is_set():
            self.close()
        elif self._standing.mode == "stale":
            self._settle()

    # ---- what the feed tells; see `proxy.index.feed.Owner` ----

    def live(self, sequence: int, payload: bytes) -> None:
        """A message was published."""
        if self._claim.lost.is_set():  # another proxy goes on from what was committed
            self.close()
            return
        self._standing.heard()
        if self._standing.silent:
            logger.info("replica %s publishes its KV events again", self._replica)
            self._begin_again()
        steps = self._sequencer.live(sequence, payload)
        self._around.counts.gaps += Replay in map(type, steps)
        self._do(steps)

    def replayed(self, sequence: int, payload: bytes) -> None:
        """A message of the replay that was asked for."""
        if not self._replays_due:
            self._do(self._sequencer.replayed(sequence, payload))

    def replay_over(self, *, whole: bool) -> None:
        """The replay has ended, or has failed."""
        if self._replays_due:
            return
        self._asking = False
        self._heard |= whole
        self._do(self._sequencer.replay_ended() if whole else self._sequencer.replay_failed())

    def joined(self) -> None:
        """The publisher is connected: perhaps another process, and what it said meanwhile is missing."""
        if self._replays:
            self._sequencer.parted()  # what it says before the look is not to be mixed with what waits
        self._around.start(f"joining the events of {self._replica}", self._join())

    def dropped(self) -> None:
        """The publisher's connection is gone: perhaps its process is."""
        if not self._looking:
            self._looking = True
            self._around.start(f"look at {self._replica}", self._look())

    async def _join(self) -> None:
        await self._around.look(self._replica)
        if not self.closed and self._replays:  # else the next message tells what is missing
            self._do(self._sequencer.resync())

    async def _look(self) -> None:
        try:
            await self._around.look(self._replica)
        finally:
            self._looking = False

    async def _check(self) -> None:
        told = await self._around.look(self._replica)
        self._checking = False
        if not self.closed:  # as it is when the process was found to be another one
            self._do(self._sequencer.checked(restarted=False if told and self._lasting else None))

    def _whole(self) -> Whole | None:
        """All that is known, for a Redis that has lost it."""
        if self.closed:
            return None
        return Whole(self._standing.epoch, self._standing.applied, self._book.whole())

    # ---- steps ----

    def _do(self, steps: list[Step]) -> None:
        """Take these steps after those that wait, each feed in its turn."""
        kinds = set(map(type, steps))
        if Replay in kinds:
            self._asking = True
            self._replays_due += sum(isinstance(step, Replay) for step in steps)
        self._checking |= Check in kinds
        self._steps += steps
        if len(self._steps) > 1:
            self._around.turns.ready(self._step)
        elif self._steps:
            self._step()
        else:
            self._settle()

    def _step(self) -> bool:
        """Take one step; False if none is left."""
        if self._steps:
            step = self._steps.popleft()
            if isinstance(step, Apply):
                self._apply(step.seq, step.payload)
            elif isinstance(step, Replay):
                self._replays_due -= 1
                self._feed.replay(step.start)
            elif isinstance(step, Check):
                self._around.start(f"look at {self._replica}", self._check())
            elif isinstance(step, Restarted):
                self._restarted()
            else:
                self._lost(step)
            if not self._steps:
                self._settle()
        return bool(self._steps)

    def _settle(self) -> None:
        if self._heard and not (self.closed or self._asking or self._checking or self._standing.silent):
            self._standing.settle()

    def _apply(self, seq: int, payload: bytes) -> None:
        counts, standing = self._around.counts, self._standing
        counts.batches += 1
        standing.applied = seq
        self._heard = True
        batch = decode(payload)
        if batch is None:  # it may have told of removals
            counts.skipped += 1
            self._lost(Stale("a batch of them could not be read"))
            return
        delta = self._book.apply(batch)
        standing.tell(delta)
        counts.events.update(map(_kind, batch.events))
        counts.skipped += batch.skipped
        counts.unkeyed += delta.unkeyed
        if batch.published:
            counts.lag = time.time() - batch.published
        if self._book.misfit is not None:
            self.misfit = self._book.misfit
            standing.set("learned")
            standing.commit(self._book.clear())
            self.close()

    def _restarted(self) -> None:
        """Another process speaks, although the start time does not tell."""
        logger.warning("replica %s: its KV events begin anew, so its cache is forgotten", self._replica)
        self._around.counts.restarts += 1
        self._begun += 1
        self._standing.epoch = f"{self._base}+{self._begun}"
        self._standing.applied = -1
        self._standing.whole()
        self.flushed()

    def _lost(self, step: Stale) -> None:
        self._around.counts.lost += 1
        self._standing.lost(step.why)
        self._standing.tell(self._book.clear())

    def _begin_again(self) -> None:
        """Read all that the publisher still has, as if nothing were known."""
        self._heard = self._asking = self._checking = False
        self._steps.clear()
        self._replays_due = 0
        self._sequencer = Sequencer()
        self._standing.whole()
        self._standing.set("stale")
        self._standing.applied = -1
        self._standing.tell(self._book.clear())
        self._do(self._sequencer.resync())

    async def _take_over(self, resume: Resume) -> None:
        """What the last ingester knew, in slices: there may be millions of blocks."""
        index, replica, standing = self._around.index, self._replica, self._standing
        self._begun = int(resume.epoch.partition("+")[2] or 0)
        standing.epoch, standing.applied = resume.epoch, resume.seq
        self._sequencer = Sequencer(last=resume.seq if resume.seq >= 0 else None)
        index.set_mode(replica, "stale")
        standing.resumed()
        index.apply(replica, cleared=True, removed=(), stored=())
        handles = iter(resume.handles)
        while (some := list(islice(handles, RESUMED_AT_ONCE))) and not self.closed:
            self._book.resume(some)
            index.apply(replica, cleared=False, removed=(), stored=array("Q", [key for _, key, _ in some]))
            await asyncio.sleep(0)


def _kind(event: object) -> str:
    return type(event).__name__
