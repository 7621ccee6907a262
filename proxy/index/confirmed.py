"""What the replicas' events said they hold: one table from block key to replicas, as bits of an int.

It repeats what it was told and never guesses: only `apply` adds a block, and nothing expires. Pure: no I/O,
no clock. A match is one pass at C speed that stops at the first block nobody holds.

Forgetting a replica takes its bit out of `live` and is over at once, however much it held. What it leaves in
the table is not matched any more and is swept by `tick`, a bounded step a call: entries move from the old
table into a new one, without the bits that are not live, so that memory comes back. Meanwhile both answer.

Invariants:
- a key is in one of the two tables at most, and its mask is never 0;
- a replica's count is the number of masks with its bit, exactly;
- a bit is given to another replica only once no mask has it: after a sweep that began when it was given up.

Memory is what an int of three digits and a place in a dict take, some 80 bytes a block, whoever holds it:
equal masks are one object. A dict that outgrows its table is built anew in one go, about 0.1 us an entry:
growth is the one step here that is not bounded.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import TypeVar

STEP = 1_000
"""Entries swept in one step: 0.3 to 0.7 ms, by what the processor's caches still hold of the tables."""
SMALL = 256
"""CPython has one object for each int up to here."""
REMEMBERED_MASKS = 4_096
"""Larger masks that are kept one object each, and sets of names that are remembered."""

V = TypeVar("V")


def unbroken(table: Mapping[int, V], keys: Iterable[int]) -> list[V]:
    """What `table` has for `keys`, up to the first key it lacks."""
    found: list[V] = []
    try:
        found.extend(map(table.__getitem__, keys))
    except KeyError:
        pass  # a list keeps what it was extended by before the error
    return found


class _Holder:
    """A replica: its bit and how many masks have it."""

    __slots__ = ("bit", "blocks")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0


class Confirmed:
    """Which replica holds which block, by the replicas' own word."""

    def __init__(self) -> None:
        self._table: dict[int, int] = {}
        self._old: dict[int, int] = {}
        """What the sweep has not reached; empty when there is none."""
        self._holders: dict[str, _Holder] = {}
        self._names: dict[int, str] = {}
        """Live bit to name."""
        self._live = 0
        self._stale = 0
        """Bits given up that the next sweep will clear."""
        self._sweeping = 0
        """Bits given up before the sweep in hand began."""
        self._free = 0
        self._bits = 0
        """How many bits are in use, live or not."""
        self._masks: dict[int, int] = {}
        self._sets: dict[int, tuple[str, ...]] = {}
        self._last: tuple[array[int] | None, dict[str, int]] = (None, {})

    def match(self, keys: array[int]) -> dict[str, int]:
        """Replica name to blocks held, unbroken from block 0; absent if none. The caller must not change it.

        A match is followed by a prediction of the same keys: the last is remembered until a block changes.
        """
        last, held = self._last
        if last is keys:
            return held
        held = {}
        found = self._find(keys)
        if found:
            holding = self._live & found[0]
            at = 0
            for mask in dict.fromkeys(found):  # in the order in which they first come
                if lost := holding & ~mask:
                    at = found.index(mask, at)
                    for name in self._named(lost):
                        held[name] = at
                    holding ^= lost
            if holding:
                for name in self._named(holding):
                    held[name] = len(found)
        self._last = keys, held
        return held

    def holds(self, replica: str, key: int) -> bool:
        """Whether this replica holds this block, whatever is before it."""
        holder = self._holders.get(replica)
        return holder is not None and bool((self._table.get(key) or self._old.get(key, 0)) & holder.bit)

    def __contains__(self, key: int) -> bool:
        """Whether this block is stored."""
        return key in self._table or key in self._old

    def apply(self, replica: str, removed: Iterable[int], stored: Iterable[int]) -> None:
        """First `removed` are gone, then `stored` are there. Neither need be news."""
        self._forget_last()
        holder = self._holders.get(replica) or self._admit(replica)
        bit, live, blocks = holder.bit, self._live, holder.blocks
        table, get = self._table, self._table.get
        old, take, shared = self._old, self._old.pop, self._shared
        for key in removed:
            mask = get(key) or old.get(key, 0)
            if mask & bit:
                blocks -= 1
                take(key, 0)
                if rest := mask & live ^ bit:
                    table[key] = rest if rest <= SMALL else shared(rest)
                else:
                    table.pop(key, 0)
        for key in stored:
            mask = get(key, 0)
            if mask & bit:
                continue
            mask = mask or take(key, 0)
            if not mask & bit:
                blocks += 1
            mask = mask & live | bit
            table[key] = mask if mask <= SMALL else shared(mask)
        holder.blocks = blocks

    def forget(self, replica: str) -> None:
        """This replica holds nothing, at once. An unknown name is no error."""
        holder = self._holders.pop(replica, None)
        if holder is None:
            return
        self._forget_last()
        self._sets.clear()
        self._live ^= holder.bit
        del self._names[holder.bit]
        if holder.blocks:
            self._stale |= holder.bit
        else:
            self._free |= holder.bit

    def tick(self, entries: int = STEP) -> bool:
        """Sweep at most so many entries. True if there is more to sweep."""
        if not self._old:
            self._free |= self._sweeping
            self._sweeping, self._stale = self._stale, 0
            if not self._sweeping:
                return False
            self._old, self._table = self._table, {}
        table, take, live, shared = self._table, self._old.popitem, self._live, self._shared
        for _ in range(min(entries, len(self._old))):
            key, mask = take()
            if mask := mask & live:
                table[key] = mask if mask <= SMALL else shared(mask)
        if self._old:
            return True
        self._old = {}  # its table goes with it
        self._free |= self._sweeping
        self._sweeping = 0
        return bool(self._stale)

    def blocks(self, replica: str) -> int:
        """Blocks that this replica holds; 0 for a name unknown."""
        holder = self._holders.get(replica)
        return holder.blocks if holder else 0

    def size(self) -> int:
        """Distinct blocks stored, those that only forgotten replicas held included until they are swept."""
        return len(self._table) + len(self._old)

    def _find(self, keys: array[int]) -> list[int]:
        """The masks along `keys`, up to the first block in no table."""
        if not keys:
            return []
        if self._old:
            masks = map(self._table.get, keys, map(self._old.get, keys, repeat(0)))
            return list(iter(masks.__next__, 0))
        # Most prompts that are not known differ in their first block.
        return unbroken(self._table, keys) if keys[0] in self._table else []

    def _named(self, bits: int) -> tuple[str, ...]:
        """The names of live bits."""
        names = self._sets.get(bits)
        if names is None:
            names = tuple(name for bit, name in self._names.items() if bit & bits)
            if len(self._sets) >= REMEMBERED_MASKS:
                self._sets.clear()
            self._sets[bits] = names
        return names

    def _shared(self, mask: int) -> int:
        """The one object for this mask."""
        if len(self._masks) >= REMEMBERED_MASKS:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)

    def _admit(self, replica: str) -> _Holder:
        if self._free:
            bit = self._free & -self._free
            self._free ^= bit
        else:
            bit = 1 << self._bits
            self._bits += 1
        self._live |= bit
        self._names[bit] = replica
        self._sets.clear()
        holder = self._holders[replica] = _Holder(bit)
        return holder

    def _forget_last(self) -> None:
        self._last = (None, {})
