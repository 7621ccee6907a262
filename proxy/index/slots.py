"""What one llama.cpp server holds: one prompt and its answer a slot, and the prompts it put aside in memory.

The server tells nothing of it, so it is followed by the rules by which the server acts (build 10434, seen in
its answers): a request takes the free slot whose content shares most of its prompt, if that is more than
`SIMILAR` of the prompt, else the free slot used longest ago. What the slot held beyond the shared part is
lost; but where less than `HALF` of it would stay, or none, the server first puts it aside, if it has a cache
in memory (`--cache-ram`), and looks there for something that serves the prompt better. A slot that is taken
serves nobody else, so the same prompt at once on two slots is computed twice.

Whether there is a cache in memory, and how much it keeps, the server does not tell: what it should hold is
remembered, but not believed before an answer has shown it. Blocks stand for tokens. Pure. Invariants: nothing
is claimed of a slot that is taken, nor of more than one slot; what is remembered is bounded.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from proxy.index.base import Placement

SIMILAR = 0.1
"""llama-server's --slot-prompt-similarity, as it comes."""
HALF = 0.5
LEAST_KEPT = 0.25
"""The share of what was put aside that a prompt must have, to get it back."""
MOST_ASIDE = 64
"""Prompts remembered beside those in slots."""
ASIDE_BLOCKS = 65_536
"""Blocks of them."""
SHOWN = 4
"""Blocks more than a slot could have given: so many show that there is a cache in memory."""


class Kept:
    """A prompt and its answer, in a slot or put aside."""

    __slots__ = ("keys", "taken", "tick")

    def __init__(self, keys: array[int], tick: int) -> None:
        self.keys = keys
        self.tick = tick
        """When it was last used; 0 for a slot that never was."""
        self.taken = False
        """Whether a request is in it."""

    def common(self, keys: array[int]) -> int:
        """Blocks that it shares with a prompt. Keys are chained: one equal pair vouches for all before it."""
        own = self.keys
        ends = min(len(own), len(keys))
        if not ends or own[0] != keys[0]:
            return 0
        if own[ends - 1] == keys[ends - 1]:
            return ends
        return bisect_left(range(ends), 1, key=lambda at: int(own[at] != keys[at]))


@dataclass(slots=True, eq=False)
class SlotPlacement(Placement):
    """A placement in a slot; without one while all are taken, until an answer shows that it has got one."""

    ends: ClassVar[bool] = True
    slots: Slots
    slot: Kept | None
    aside: int
    """Blocks that would have come from memory, if the server has a cache there; 0 if none."""
    ended: bool = False

    def over(self) -> None:
        """The request is over: its slot is free."""
        if not self.ended:
            self.ended = True
            if self.slot is not None and self.slot.tick == self.tick:
                self.slot.taken = False


class _Choice(NamedTuple):
    """What the server would do with a prompt."""

    slot: Kept
    depth: int
    """Blocks that the slot's content shares with it."""
    puts_aside: bool
    aside: Kept | None
    """What was put aside and serves it better."""
    aside_depth: int


class Slots:
    """The slots of one server."""

    def __init__(self, count: int) -> None:
        """`count` is at least 1."""
        self._slots = [Kept(array("Q"), 0) for _ in range(count)]
        self._aside: list[Kept] = []
        """Oldest first."""
        self._room = ASIDE_BLOCKS
        self._believed = False

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def keeps_aside(self) -> bool:
        """Whether the server was seen to have a cache in memory."""
        return self._believed

    @property
    def blocks(self) -> int:
        """Blocks it is believed to hold."""
        return sum(len(kept.keys) for kept in self._all())

    def depth(self, keys: array[int]) -> int:
        """Blocks of a prompt that it would not compute, sent now."""
        choice = self._choose(keys)
        if choice is None:
            return 0
        return choice.aside_depth if self._believed and choice.aside is not None else choice.depth

    def place(self, replica: str, keys: array[int], tick: int) -> SlotPlacement:
        """A prompt is sent."""
        placement = SlotPlacement(replica, keys, 0, 0, tick, (), False, self, None, 0)
        self._seat(placement)
        return placement

    def first_token(self, placement: SlotPlacement) -> None:
        """Its answer begins: if it had to wait for a slot, it has got one."""
        if placement.slot is not None or (slot := self._seat(placement)) is None:
            return
        placement.before = placement.aside = 0  # nobody foretold what that slot would hold
        slot.taken = not placement.ended

    def extend(self, placement: SlotPlacement, keys: array[int]) -> None:
        """The answer is complete: the slot holds it too."""
        slot = placement.slot
        if slot is not None and slot.tick == placement.tick:
            slot.keys = keys

    def retract(self, placement: SlotPlacement) -> None:
        """The request failed before its first byte: only what the slot shared with it is sure to be there."""
        slot = placement.slot
        if slot is not None and slot.tick == placement.tick:
            slot.keys = placement.keys[: placement.before]

    def confirm(self, placement: SlotPlacement, reported: int) -> None:
        """Learn from what the server found, in blocks. One block of difference is no evidence."""
        if reported >= placement.before + SHOWN and abs(reported - placement.aside) <= 1:
            self._believed = True
        if reported + 1 >= placement.before:
            return
        if placement.before == placement.aside:  # it was put aside, and has been dropped
            self._room = sum(len(kept.keys) for kept in self._aside)
            self._believed = self._room > 0
            return
        for kept in (*self._slots, *self._aside):  # others use this server, or it has restarted
            if kept is not placement.slot and not kept.taken and kept.common(placement.keys) > reported:
                kept.keys = kept.keys[:reported]
        self._aside = [kept for kept in self._aside if kept.keys]

    def _all(self) -> Iterator[Kept]:
        yield from self._slots
        if self._believed:
            yield from self._aside

    def _choose(self, keys: array[int]) -> _Choice | None:
        best, depth, oldest = None, 0, None
        for slot in self._slots:
            if slot.taken:
                continue
            if oldest is None or slot.tick < oldest.tick:
                oldest = slot
            common = slot.common(keys)
            if common > depth:
                best, depth = slot, common
        if oldest is None:
            return None
        if best is None or depth <= SIMILAR * len(keys):
            best, depth = oldest, oldest.common(keys)
            puts_aside = True
        else:
            puts_aside = depth < HALF * len(best.keys)
        aside, longest = None, depth
        if puts_aside:
            share = depth / len(best.keys) if best.keys else 0.0
            for kept in self._aside:
                common = kept.common(keys)
                kept_share = common / len(kept.keys)
                if common > longest and kept_share > share and kept_share >= LEAST_KEPT:
                    aside, longest, share = kept, common, kept_share
        return _Choice(best, depth, puts_aside, aside, longest if aside is not None else 0)

    def _seat(self, placement: SlotPlacement) -> Kept | None:
        keys = placement.keys
        choice = self._choose(keys)
        if choice is None:
            return None
        slot = choice.slot
        if choice.aside is not None:
            self._aside.remove(choice.aside)
        if choice.puts_aside and slot.keys:
            self._put_aside(Kept(slot.keys, slot.tick))
        placement.aside = choice.aside_depth
        placement.before = choice.depth
        if self._believed:
            placement.before = max(choice.depth, choice.aside_depth)
        placement.slot = slot
        slot.keys, slot.tick, slot.taken = keys, placement.tick, True
        return slot

    def _put_aside(self, new: Kept) -> None:
        count = len(new.keys)
        if any(kept.common(new.keys) == count for kept in self._aside):
            return
        self._aside = [kept for kept in self._aside if new.common(kept.keys) < len(kept.keys)]
        self._aside.append(new)
        blocks = sum(len(kept.keys) for kept in self._aside)
        while self._aside and (blocks > self._room or len(self._aside) > MOST_ASIDE):
            blocks -= len(self._aside.pop(0).keys)
