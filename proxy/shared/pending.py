"""Batches of one feed that wait to be written: merged into one change, cut into calls. Pure.

Merging is exact: applying the merged change to any state gives what applying the batches one after the other
gives. Invariants: batches of one epoch only; a call carries at most `MOST` block changes and `MOST` handle
changes; the first call begins anew if the change does; only the last call may advance the sequence number.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from proxy.index.handles import Delta

MOST = 1_000
"""Block changes in one call: what Lua unpacks at once, and about 1 ms of the server's time."""
TAKEN = 4_000
"""Changes merged in one step: about 2 ms of the event loop."""


@dataclass(slots=True, frozen=True)
class Call:
    """What one call writes; removals before what is stored."""

    begin: bool
    last: bool
    removed: array[int]
    stored: array[int]
    gone: Sequence[int]
    handles: Sequence[tuple[int, int, int]]


@dataclass(slots=True, frozen=True)
class Part:
    """Consecutive batches as one change."""

    epoch: str
    begin: bool
    """Whether whatever was written before must go first."""
    seq: int
    batches: int
    delta: Delta

    def calls(self) -> Iterator[Call]:
        """Cut it into calls, in the order in which they must be made."""
        delta = self.delta
        removed, stored = len(delta.removed), len(delta.stored)
        gone, handles = len(delta.handles_gone), len(delta.handles)
        most = max(removed + stored, gone + handles, 1)
        for start in range(0, most, MOST):
            end = start + MOST
            yield Call(
                begin=self.begin and start == 0,
                last=end >= most,
                removed=delta.removed[start:end],
                stored=delta.stored[max(start - removed, 0) : max(end - removed, 0)],
                gone=delta.handles_gone[start:end],
                handles=delta.handles[max(start - gone, 0) : max(end - gone, 0)],
            )


class Pending:
    """The batches of one epoch that are still to be written."""

    def __init__(self, epoch: str, *, begin: bool) -> None:
        self.epoch = epoch
        self.size = 0
        """Block and handle changes waiting, before those that cancel out."""
        self.count = 0
        """Batches waiting."""
        self._begin = begin
        self._waiting: deque[tuple[int, int, Delta]] = deque()
        """Sequence number, batches and change."""

    @property
    def whole(self) -> bool:
        """Whether what waits begins anew, so that nothing shorter says the same."""
        return self._begin or any(delta.cleared for _, _, delta in self._waiting)

    def add(self, seq: int, delta: Delta) -> None:
        """Put one more batch behind the others."""
        self._waiting.append((seq, 1, delta))
        self.count += 1
        self.size += size_of(delta)

    def merge(self) -> None:
        """Let everything that cancels out cancel out."""
        part = self.take(sys.maxsize)
        self._begin = part.begin
        self._waiting.append((part.seq, part.batches, part.delta))
        self.count, self.size = part.batches, size_of(part.delta)

    def take(self, most: int = TAKEN) -> Part:
        """Take batches from the front until they have so many changes; at least one must be waiting."""
        deltas: list[Delta] = []
        taken, batches, seq = 0, 0, 0
        while self._waiting and (not deltas or taken < most):
            seq, count, delta = self._waiting.popleft()
            deltas.append(delta)
            taken += size_of(delta)
            batches += count
        self.size -= taken
        self.count -= batches
        delta = merged(deltas) if len(deltas) > 1 else deltas[0]
        begin, self._begin = self._begin or delta.cleared, False
        return Part(self.epoch, begin, seq, batches, delta)


def size_of(delta: Delta) -> int:
    """Block and handle changes."""
    return len(delta.removed) + len(delta.stored) + len(delta.handles_gone) + len(delta.handles)


def merged(deltas: Iterable[Delta]) -> Delta:
    """Consecutive changes as one."""
    cleared = False
    removed: set[int] = set()
    stored: set[int] = set()
    handles: dict[int, tuple[int, int] | None] = {}
    for delta in deltas:
        if delta.cleared:
            cleared = True
            for each in (removed, stored, handles):
                each.clear()
        if delta.removed:
            removed.update(delta.removed)
            stored.difference_update(delta.removed)
        stored.update(delta.stored)
        handles.update(dict.fromkeys(delta.handles_gone))
        handles.update([(handle, (key, copies)) for handle, key, copies in delta.handles])
    removed -= stored  # storing what is there changes nothing, so the removal in between may be left out
    return Delta(
        cleared=cleared,
        removed=array("Q", removed),
        stored=array("Q", stored),
        handles_gone=[handle for handle, held in handles.items() if held is None],
        handles=[(handle, *held) for handle, held in handles.items() if held is not None],
    )
