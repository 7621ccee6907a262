"""What was predicted of replicas that publish events, until the events say so themselves.

A prediction stands for the blocks beyond what was confirmed when it was made, so a warm hit adds nothing. It
goes as a whole: when its last block is confirmed, when it is retracted, when its time is up, when its replica
is forgotten, or, the oldest first, when a replica's predictions no longer fit its cache. And of each single
block, what the feed says is newer than what was predicted: it settles the block, for all predictions of it.

Never the other way round: nothing here changes what is confirmed. Pure: told the time, no I/O.

Invariants:
- a block is pending as long as a prediction that stands for it is open, unless the feed settled it;
- the last block of every open prediction is pending;
- a replica without open predictions leaves nothing.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from proxy.index.base import Placement
from proxy.index.confirmed import unbroken


@dataclass(slots=True, eq=False)
class Prediction(Placement):
    """The receipt for a prediction of a replica that publishes events. `tick` is unique to it."""

    start: int
    """Blocks confirmed when it was made: it stands for those from here on."""
    end: int
    """Where it stops: short of all `keys` only if they are more than the replica's cache has room for."""


class _Pending:
    """One replica's predictions."""

    __slots__ = ("ending", "open", "owners")

    def __init__(self) -> None:
        self.owners: dict[int, tuple[Prediction, ...]] = {}
        """Block to the open predictions that stand for it. Neighbours share their tuple."""
        self.open: dict[int, Prediction] = {}
        """By tick, oldest first."""
        self.ending: dict[int, list[Prediction]] = {}
        """Last block to the predictions that end with it."""


class Overlay:
    """The open predictions of all replicas."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Pending] = {}
        self._due: list[tuple[float, int, str]] = []
        """A heap of deadline, tick, replica; those no longer open are passed over."""

    def __bool__(self) -> bool:
        """Whether anything is pending."""
        return bool(self._replicas)

    def extend(self, held: dict[str, int], keys: array[int], confirmed: Callable[[str, int], bool]) -> None:
        """Continue the confirmed depths in `held` by what is pending, and what is confirmed behind that."""
        end = len(keys)
        for name, pending in self._replicas.items():
            depth = held.get(name, 0)
            if depth < end and keys[depth] in pending.owners:
                held[name] = self.depth(name, keys, depth, confirmed)

    def depth(self, replica: str, keys: array[int], depth: int, confirmed: Callable[[str, int], bool]) -> int:
        """How far `keys` are held, unbroken, if `depth` of them are confirmed."""
        pending = self._replicas.get(replica)
        if pending is None or depth >= len(keys) or keys[depth] not in pending.owners:
            return depth
        depth += len(unbroken(pending.owners, keys[depth:]))
        while depth < len(keys) and (keys[depth] in pending.owners or confirmed(replica, keys[depth])):
            depth += 1
        return depth

    def add(self, prediction: Prediction, room: int) -> None:
        """Open a prediction. With more than `room` blocks pending, at least 1, the oldest ones go."""
        prediction.end = min(prediction.end, prediction.start + room)
        keys = prediction.keys[prediction.start : prediction.end]
        if not keys:
            return
        pending = self._replicas.get(prediction.replica)
        if pending is None:
            pending = self._replicas[prediction.replica] = _Pending()
        owners = pending.owners
        after: tuple[Prediction, ...] = (prediction,)
        if not owners or owners.keys().isdisjoint(keys):
            owners.update(dict.fromkeys(keys, after))
        else:
            before = None
            for key in keys:
                if (now := owners.get(key)) is not before:
                    before = now
                    after = (prediction,) if before is None else (*before, prediction)
                owners[key] = after
        pending.open[prediction.tick] = prediction
        pending.ending.setdefault(keys[-1], []).append(prediction)
        while len(owners) > room:
            self.drop(next(iter(pending.open.values())))

    def drop(self, prediction: Prediction) -> None:
        """Close a prediction: what only it stands for is not held. Once closed, nothing."""
        pending = self._replicas.get(prediction.replica)
        if pending is None or pending.open.pop(prediction.tick, None) is None:
            return
        if not pending.open:
            del self._replicas[prediction.replica]
            return
        owners = pending.owners
        before: tuple[Prediction, ...] = ()
        after: tuple[Prediction, ...] = ()
        for key in prediction.keys[prediction.start : prediction.end]:
            now = owners.get(key)
            if now is None:
                continue
            if now is not before:
                before = now
                after = tuple(other for other in now if other is not prediction)
            if after:
                owners[key] = after
            else:
                del owners[key]
        last = prediction.keys[prediction.end - 1]
        ending = pending.ending[last]
        ending.remove(prediction)
        if not ending:
            del pending.ending[last]

    def expire(self, prediction: Prediction, deadline: float) -> None:
        """Its time is up at `deadline`, or earlier if that was said before. Nothing if it is closed."""
        pending = self._replicas.get(prediction.replica)
        if pending is not None and prediction.tick in pending.open:
            heappush(self._due, (deadline, prediction.tick, prediction.replica))

    def settle(self, replica: str, keys: Iterable[int]) -> None:
        """The feed spoke of these blocks: what it said counts, not what was predicted."""
        pending = self._replicas.get(replica)
        if pending is None:
            return
        owners, ending = pending.owners, pending.ending
        for key in owners.keys() & keys:
            owners.pop(key, None)
            for prediction in tuple(ending.get(key, ())):
                self.drop(prediction)

    def tick(self, now: float) -> None:
        """Drop the predictions whose time is up."""
        due = self._due
        while due and due[0][0] <= now:
            _, tick, replica = heappop(due)
            pending = self._replicas.get(replica)
            if pending is not None and (prediction := pending.open.get(tick)) is not None:
                self.drop(prediction)

    def forget(self, replica: str) -> None:
        """All predictions of this replica are closed."""
        self._replicas.pop(replica, None)

    def pending(self, replica: str) -> Iterable[int]:
        """The blocks predicted of this replica and not settled."""
        pending = self._replicas.get(replica)
        return pending.owners.keys() if pending else ()
