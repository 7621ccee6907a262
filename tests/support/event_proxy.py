"""One of several proxies that share an index, driven by hand: what it does, it does when it is told to.

Real are its index, its following but for the feed, and how it hears of the others. It is its own `Pool`, for
which it does what a writer and Redis do, its own `Turns` and its own probes.
"""

from array import array
from collections.abc import Callable, Coroutine
from typing import Any

from proxy.index.memory import MemoryIndex
from proxy.index.remote import Remote
from proxy.index.truth import TrueIndex
from proxy.shared.base import Claim, Counts, Resume
from proxy.shared.hearing import Hearing
from proxy.shared.layout import Changed, Followed, Record
from proxy.shared.pending import Pending
from proxy.shared.snapshot import Held
from proxy.sharing import _Heard
from proxy.standing import Counts as FeedCounts
from proxy.standing import Surroundings
from tests.support.engine_model import Engine, Known, keys
from tests.support.event_path import REPLICA, Row, Shared, Watched


class Look:
    """An answer of the replica to a probe, awaited."""

    def __await__(self):
        return (yield self)


class Proxy:
    """One proxy: its index, what it hears of the other, and its following if it has the claim.

    It is its own `Pool`, `Turns` and probes.
    """

    def __init__(
        self, name: str, engine: Engine, shared: Shared, clock: Callable[[], float], *, lasting: bool
    ) -> None:
        self.name = name
        self.engine = engine
        self.shared = shared
        self.lasting = lasting
        self.index = TrueIndex(MemoryIndex(default_blocks=100), clock)
        self.heard = _Heard(self.index, Remote(self.index), self.index.forget)
        self.hearing = Hearing(
            self.heard, Counts(), ours=lambda _: self.claim is not None, removed=lambda _: None
        )
        self.around = Surroundings(
            index=self.index,
            context=None,
            turns=self,
            counts=FeedCounts(),
            clock=clock,
            look=self.look,
            forget=self.index.forget,
            start=self.start,
        )
        self.process = engine.process
        """The process that was seen last."""
        self.ended: list[float] = []
        """The start times of the processes that were seen to end."""
        self.left: set[int] = set()
        """Blocks of its own following, kept as long as the others speak of a process that it saw to end."""
        self.claim: Claim | None = None
        self.following: Watched | None = None
        self.pending: Pending | None = None
        self.due: Known | None = None
        """What is known once all that is pending is written."""
        self.at: int | None = None
        """Entries of the log that were read; None: all is to be read anew."""
        self.read_at = 0
        """How many there were when the replica was last read whole."""
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.turns: list[Callable[[], bool]] = []
        self._epoch: str | None = None
        self._mode = self._announced = "events"
        self._numbers = 0

    @property
    def started(self) -> float | None:
        return 100.0 + self.process if self.lasting else None

    def number(self) -> str:
        self._numbers += 1
        return f"{self.name}{self._numbers}"

    # ---- `Turns` and tasks ----

    def ready(self, take: Callable[[], bool]) -> None:
        if take not in self.turns:
            self.turns.append(take)

    def forget(self, take: Callable[[], bool]) -> None:
        if take in self.turns:
            self.turns.remove(take)

    def turn(self) -> None:
        take = self.turns.pop(0)
        if take():
            self.ready(take)

    def start(self, _name: str, task: Coroutine[Any, Any, None]) -> None:
        task.send(None)
        self.tasks.append(task)

    # ---- probes ----

    async def look(self, _replica: str) -> bool:
        told = await Look()
        if told:
            self.probe()
        return told

    def answer(self, at: int, *, told: bool) -> None:
        """The replica answers a look, or does not."""
        task = self.tasks.pop(at % len(self.tasks))
        try:
            task.send(told)
        except StopIteration:
            return
        raise AssertionError("it asks twice")

    def probe(self) -> None:
        """The replica says when it was started."""
        if self.process == self.engine.process or not self.lasting:
            self.process = self.engine.process
            return
        if self.following is not None:
            self.following.close()
        if not self.heard.ended(REPLICA, self.started):
            self.index.forget(REPLICA)
            self.left = set()
        self.ended.append(self.started)
        self.process = self.engine.process
        if self.following is not None:
            self._follow(None)

    # ---- claims ----

    def take_claim(self) -> None:
        row = self.shared.row
        self.claim = Claim(REPLICA, self.number())
        self.pending, self.due = None, None
        self._epoch, self._mode, self._announced = None, "events", "events"
        resume = None
        if row is not None and len(row.handles) >= len(row.blocks):
            handles = [(handle, *held) for handle, held in row.handles.items()]
            resume = Resume(row.epoch, row.seq, handles)
            self._epoch, self._announced = row.epoch, None
        self._follow(resume)

    def lose_claim(self) -> None:
        """Another proxy has it. What it said is read anew; what waits is not written."""
        self.claim.lost.set()
        self.following.tick()
        assert self.following.closed
        self.left = {keys(path)[-1] for path in self.following.known.keyed}
        self.claim = self.following = self.pending = None
        self.hearing.epochs.pop(REPLICA, None)
        self.hearing.again.add(REPLICA)

    def die(self) -> None:
        if self.following is not None:
            self.following.close()
        for task in self.tasks:
            task.close()

    def _follow(self, resume: Resume | None) -> None:
        self.following = Watched(self, self.claim)
        opening = self.following.open(resume)
        try:
            while True:
                opening.send(None)
        except StopIteration:
            return

    # ---- `Pool`, as far as a following needs it, and what the writer does with it ----

    def commit(self, claim: Claim, epoch: str, seq: int, delta) -> None:
        if claim.lost.is_set():
            return
        assert claim is self.claim
        if epoch != self._epoch:
            self._epoch = epoch
            self.pending = Pending(epoch, begin=True)
        if self.pending is None:
            self.pending = Pending(epoch, begin=False)
        self.pending.add(seq, delta)
        self.due = self.following.known.told()

    def announce(self, claim: Claim, epoch: str, mode) -> None:
        if epoch == self._epoch and not claim.lost.is_set():
            self._mode = mode

    def rewrite(self) -> None:
        """Redis has lost the replica."""
        whole = self.claim.whole()
        if whole is not None:  # else there is none until there is another following
            self.pending = Pending(whole.epoch, begin=True)
            self.pending.add(whole.seq, whole.delta)
            self.due = self.following.known.told()

    def write(self) -> None:
        """Write all that waits."""
        shared = self.shared
        if self.pending is not None and self.pending.count:
            part = self.pending.take()
            for call in part.calls():
                if call.begin:
                    shared.row = Row(part.epoch)
                    self._announced = "events"
                row = shared.row
                assert row.epoch == part.epoch
                row.blocks = (row.blocks - set(call.removed)) | set(call.stored)
                for handle in call.gone:
                    row.handles.pop(handle, None)
                row.handles.update({handle: (key, copies) for handle, key, copies in call.handles})
                row.seq = part.seq
                self._say(Changed(REPLICA, part.epoch, call.begin, call.removed, call.stored))
            row.known = self.due
        if self._mode != self._announced and shared.row is not None and shared.row.epoch == self._epoch:
            shared.row.mode = self._announced = self._mode
            self._say(Followed(REPLICA, self._epoch, self._mode))

    def _say(self, record: Record) -> None:
        self.shared.log.append((self.name, record))

    # ---- following the log ----

    @property
    def caught_up(self) -> bool:
        return self.at is not None and not self.hearing.again and self.at >= len(self.shared.log)

    def hear(self) -> None:
        """Read what must be read, then the log's next entry."""
        log = self.shared.log
        if self.at is None:
            self.hearing.epochs.clear()
            self.hearing.again.clear()
            self._read()
            self.at = len(log)
        if self.hearing.again:
            self.hearing.again = set()
            self._read()
            if self.shared.row is None and self.claim is None:
                self.hearing.unknown(REPLICA)
        if self.at < len(log):
            origin, record = log[self.at]
            self.at += 1
            if origin != self.name or self.at <= self.read_at:
                self.hearing.heard(origin, record)

    def lose_track(self) -> None:
        self.at = None
        self.hearing.lost()

    def _read(self) -> None:
        row = self.shared.row
        if row is not None and self.claim is None:
            held = Held(REPLICA, row.epoch, row.mode, b"")
            self.hearing.reading(held)
            self.heard.snapshot(REPLICA, row.epoch, array("Q", row.blocks), first=True)
            self.hearing.read(held)
            self.read_at = len(self.shared.log)
