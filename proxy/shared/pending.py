"""Batches of one feed that wait to be written: merged into one change, cut into calls. Pure.

Merging is exact: applying the merged change to any state gives what applying the batches one after the other
gives. Invariants: batches of one epoch only; a call carries at most `MOST` block changes and `MOST` handle
changes; the first call begins anew if the change does; only the last call may advance the sequence number.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proxy.index.handles import Delta

MOST = 1_000
"""Block changes in one call: what Lua unpacks at once, and about 2 ms of the server's time."""


@dataclass(slots=True, frozen=True)
class Call:
    """What one call writes; removals before what is stored."""

    begin: bool
    last: bool
    removed: array[int]
    stored: array[int]
    gone: Sequence[int]
    handles: Sequence[tuple[int, int, int]]


@dataclass(slots=True)
class Pending:
    """The batches of one epoch that are still to be written."""

    epoch: str
    begin: bool
    """Whether whatever was written before must go first."""
    seq: int = -1
    batches: list[Delta] = field(default_factory=list)
    size: int = 0
    """Block and handle changes waiting, before those that cancel out."""

    def add(self, seq: int, delta: Delta) -> None:
        """Put one more batch behind the others."""
        self.batches.append(delta)
        self.size += len(delta.removed) + len(delta.stored) + len(delta.handles_gone) + len(delta.handles)
        self.seq = seq

    def merge(self) -> Delta:
        """All batches as one, which takes their place."""
        if len(self.batches) == 1:
            return self.batches[0]
        cleared = False
        removed: set[int] = set()
        stored: set[int] = set()
        handles: dict[int, tuple[int, int] | None] = {}
        for delta in self.batches:
            if delta.cleared:
                cleared = True
                for each in (removed, stored, handles):
                    each.clear()
            if delta.removed:
                removed.update(delta.removed)
                stored.difference_update(delta.removed)
            stored.update(delta.stored)
            handles.update(dict.fromkeys(delta.handles_gone))
            handles.update((handle, (key, copies)) for handle, key, copies in delta.handles)
        removed -= stored  # storing what is there changes nothing, so the removal in between may be left out
        merged = Delta(
            cleared=cleared,
            removed=array("Q", removed),
            stored=array("Q", stored),
            handles_gone=[handle for handle, held in handles.items() if held is None],
            handles=[(handle, *held) for handle, held in handles.items() if held is not None],
            unkeyed=0,
        )
        self.batches, self.size = [], 0
        self.add(self.seq, merged)
        return merged

    def calls(self) -> Iterator[Call]:
        """Cut the merged change into calls, in the order in which they must be made."""
        delta = self.merge()
        begin = self.begin or delta.cleared
        removed, stored = len(delta.removed), len(delta.stored)
        gone, handles = len(delta.handles_gone), len(delta.handles)
        most = max(removed + stored, gone + handles, 1)
        for start in range(0, most, MOST):
            end = start + MOST
            yield Call(
                begin=begin and start == 0,
                last=end >= most,
                removed=delta.removed[start:end],
                stored=delta.stored[max(start - removed, 0) : max(end - removed, 0)],
                gone=delta.handles_gone[start:end],
                handles=delta.handles[max(start - gone, 0) : max(end - gone, 0)],
            )
