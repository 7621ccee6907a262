"""The learned index, in this process's memory, for fleets whose engines publish no events.

It records what was sent where and keeps, per replica, a prefix-closed LRU as large as the engine's cache is
believed to be: what it says is a prediction. Reported cached tokens correct it. Synchronous, for one thread,
no clock, no I/O; time is a count of predictions.

What a shortfall means (`confirm`), by when the first missing block was last used before this request:
- *Evicted.* At least as many blocks were used since as were not: an LRU that dropped this block dropped all
  that was last used no later. That goes here too, and the capacity is lowered.
- *Keys differ.* Fewer were used since, and the block above it, of the same age, was there: neither an LRU nor
  a flush leaves that. The engine keys this prompt otherwise than we do; other prompts are not concerned.
- *Lost.* Fewer were used since, and nothing of that age was there: a restart or a flush perhaps, or perhaps a
  request that the engine did not look up. The second such witness in a row decides: all from before the first
  is gone. A hit on a block from before the first one clears the suspicion. The capacity stays.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections import OrderedDict

from proxy.index.base import Placement
from proxy.index.capacity import Capacity
from proxy.index.tree import Holder, Tree

DEFAULT_BLOCKS = 65_536
"""Cache blocks assumed of an engine that does not say: a million tokens at 16 tokens a block."""
REMEMBERED_CUTS = 512
"""Evictions remembered per replica, to tell an engine's larger cache from blocks never recorded here."""


class _Replica(Holder):
    """A replica and what was learned about its cache."""

    __slots__ = ("capacity", "cuts", "incarnation", "suspected")

    def __init__(self, name: str, incarnation: int, blocks: int) -> None:
        super().__init__(name)
        self.incarnation = incarnation
        self.capacity = Capacity(blocks)
        self.cuts: OrderedDict[int, None] = OrderedDict()
        """First keys of the pieces that fell to the capacity, oldest first."""
        self.suspected: int | None = None
        """Tick of the first of the requests that hint at a lost cache."""


class MemoryIndex:
    """A `PrefixIndex` that learns from placements and from what engines report."""

    def __init__(self, default_blocks: int = DEFAULT_BLOCKS) -> None:
        self._default_blocks = default_blocks
        self._tree = Tree()
        self._replicas: dict[str, _Replica] = {}
        self._tick = 0
        self._incarnations = 0

    def match(self, keys: array[int]) -> dict[str, int]:
        """See `PrefixIndex.match`. Time grows with the holders and the runs on the path, not the blocks."""
        path, depth, matched = self._tree.walk(keys)
        held: dict[str, int] = {}
        for run in reversed(path):
            depth -= matched
            # Whoever holds a run holds all above it: as many holders are the same holders.
            if len(run.holds) > len(held):
                for holder, hold in run.holds.items():
                    if holder.name not in held:
                        held[holder.name] = depth + min(hold.blocks, matched)
            matched = len(run.parent.keys) if run.parent else 0
        return held

    def predict(self, replica: str, keys: array[int], *, after: Placement | None = None) -> Placement:
        """See `PrefixIndex.predict`. What no longer fits is dropped: least recently used, deepest first."""
        if after is not None and self._bearer(after) is None:
            return after
        owner = self._known(replica)
        tree, tick = self._tree, self._tick + 1
        self._tick = tick
        path, depth, matched = tree.walk(keys)

        before, earlier = 0, []
        for run in path:
            hold = run.holds.get(owner)
            if hold is None:
                break
            before += min(hold.blocks, matched) if run is path[-1] else hold.blocks
            earlier.append((before, hold.tick))
        dropped = before < len(keys) and keys[before] in owner.cuts
        if dropped:
            del owner.cuts[keys[before]]

        if path and matched < len(path[-1].keys):
            run = path[-1]
            mine = run.holds.get(owner)
            if depth < len(keys) or (mine is not None and mine.blocks > matched):
                path[-1] = tree.split(run, matched)
        if depth < len(keys):
            tree.grow(path, keys[depth:])
            matched = len(path[-1].keys)
        for run in reversed(path):
            tree.touch(owner, run, matched, tick)
            matched = len(run.parent.keys) if run.parent else 0
        for run in path[1:]:
            tree.merge(run)
        self._evict(owner)
        return Placement(replica, keys, before, owner.incarnation, tick, tuple(earlier), dropped)

    def retract(self, placement: Placement) -> None:
        """See `PrefixIndex.retract`. Blocks that a later placement has used too stay: it answers for them.

        The order of use and what was dropped to make room are not restored.
        """
        owner = self._bearer(placement)
        if owner is None:
            return
        path, depth, matched = self._tree.walk(placement.keys)
        for run in reversed(path):
            depth -= matched
            hold = run.holds.get(owner)
            if hold is not None:
                keep = max(0, placement.before - depth)
                if hold.tick != placement.tick or keep >= hold.blocks:
                    return
                self._tree.cut(owner, hold, keep)
            matched = len(run.parent.keys) if run.parent else 0

    def confirm(self, placement: Placement, predicted: int, reported: int) -> None:
        """See `PrefixIndex.confirm`, and the head of this file. One block of difference is no evidence."""
        owner = self._bearer(placement)
        if owner is None:
            return
        if reported > placement.before + 1 and placement.dropped:
            owner.capacity.exceeded()
        found = _last_use(placement, reported - 1) if reported else None
        if owner.suspected is not None and found is not None and found < owner.suspected:
            owner.suspected = None
        if reported + 1 < min(predicted, placement.before):
            used = _last_use(placement, reported)
            assert used is not None
            self._missed(owner, placement, used, found)

    def first_token(self, placement: Placement, expected: float = 0.0) -> None:
        """See `PrefixIndex.first_token`: what is learned has no deadline."""

    def forget(self, replica: str) -> None:
        """See `PrefixIndex.forget`."""
        owner = self._replicas.pop(replica, None)
        if owner is not None:
            self._drop(owner, self._tick + 1)

    def resize(self, replica: str, blocks: int) -> None:
        """See `PrefixIndex.resize`."""
        owner = self._known(replica)
        owner.capacity.resize(blocks)
        self._evict(owner)

    def blocks(self, replica: str) -> int:
        """See `PrefixIndex.blocks`."""
        owner = self._replicas.get(replica)
        return owner.blocks if owner else 0

    def capacity(self, replica: str) -> int:
        """See `PrefixIndex.capacity`."""
        owner = self._replicas.get(replica)
        return owner.capacity.blocks if owner else self._default_blocks

    def size(self) -> int:
        """See `PrefixIndex.size`."""
        return self._tree.blocks

    def runs(self) -> int:
        """Unbranched stretches stored: what memory grows with besides the blocks."""
        return self._tree.runs

    def clear(self, replica: str) -> None:
        """This replica holds nothing; it stays the same bearer of its name, and its size and factor stay."""
        owner = self._replicas.get(replica)
        if owner is not None:
            self._drop(owner, self._tick + 1)
            owner.cuts.clear()
            owner.suspected = None

    def incarnation(self, replica: str) -> int:
        """Which bearer of the name this is, see `Placement`; from now on it is known."""
        return self._known(replica).incarnation

    def bears(self, placement: Placement) -> bool:
        """Whether the replica that the placement was made for was not forgotten since."""
        return self._bearer(placement) is not None

    def _known(self, name: str) -> _Replica:
        owner = self._replicas.get(name)
        if owner is None:
            self._incarnations += 1
            owner = self._replicas[name] = _Replica(name, self._incarnations, self._default_blocks)
        return owner

    def _bearer(self, placement: Placement) -> _Replica | None:
        """The replica that the placement was made for, if it was not forgotten since."""
        owner = self._replicas.get(placement.replica)
        return owner if owner is not None and owner.incarnation == placement.incarnation else None

    def _evict(self, owner: _Replica) -> None:
        capacity = owner.capacity.blocks
        if owner.blocks <= capacity:
            return
        for hold in owner.oldest_first():
            excess = owner.blocks - capacity
            if excess <= 0:
                return
            keep = max(0, hold.blocks - excess)
            owner.cuts[hold.run.keys[keep]] = None
            self._tree.cut(owner, hold, keep)
            if len(owner.cuts) > REMEMBERED_CUTS:
                owner.cuts.popitem(last=False)

    def _drop(self, owner: _Replica, before: int) -> None:
        """Drop all that the replica last used before that tick."""
        for hold in owner.oldest_first():
            if hold.tick >= before:
                return
            self._tree.cut(owner, hold, 0)

    def _missed(self, owner: _Replica, placement: Placement, used: int, found: int | None) -> None:
        """The engine lacked a block last used at tick `used`; the one above it, at `found`, it had.

        What was used between the two counts as of the placement, which may be long ago: a little too low, as
        blocks used again after it are left out. So the capacity may fall a little short; hits raise it again.
        """
        older = since = 0
        for hold in owner.oldest_first():
            if hold.tick >= placement.tick:
                break
            if hold.tick <= used:
                older += hold.blocks
            else:
                since += hold.blocks
        if since and since >= older:
            owner.capacity.missed(used, since + len(placement.keys), placement.tick)
            self._drop(owner, used + 1)
            self._evict(owner)
        elif found == used:
            pass  # the keys differ
        elif owner.suspected is None or used >= owner.suspected:
            owner.suspected = placement.tick
        else:
            self._drop(owner, min(owner.suspected, placement.tick))
            owner.suspected = None


def _last_use(placement: Placement, block: int) -> int | None:
    """When that block had last been used before this placement; None if it was not believed held."""
    return next((tick for depth, tick in placement.earlier if block < depth), None)
