"""What one llama.cpp server holds: one prompt and its answer a slot, and the prompts it put aside in memory.

The server tells nothing of it, so it is followed by the rules by which the server acts (build 10434, seen in
its answers): a request takes the free slot whose content shares most of its prompt, if that is more than
`SIMILAR` of the prompt, else the free slot whose last request was over first. What the slot held beyond the
shared part is lost; but where less than `HALF` of it would stay, or none, the server first puts it aside, if
it has a cache in memory (`--cache-ram`), and looks there for something that serves the prompt better. A slot
that is taken serves nobody else, so the same prompt at once on two slots is computed twice.

Whether there is a cache in memory, and how much it keeps, the server does not tell: what it should hold is
remembered, but not believed before answers have shown it. Blocks stand for tokens; where that leaves two
slots that the server may have taken, what either would have lost is not claimed. An answer comes back in the
next turn as text, which need not give the tokens that were generated: it counts once answers have been seen
to come back as they were. Only what is shared by less
than a block goes unseen: a short prompt may take another slot than the one foretold, and the next report
corrects it.

Pure. Invariants: nothing is claimed of a slot that is taken, nor of more than one slot; what is remembered is
bounded.
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
"""Blocks more than its slot could have given: so many tell whether there is a cache in memory."""
LEAST_SHOWN, MOST_SHOWN = 2, 4
"""How often it must have been shown; one that was shown often may drop something once."""


class Kept:
    """A prompt and its answer, in a slot or put aside."""

    __slots__ = ("keys", "prompt", "taken", "tick", "used")

    def __init__(self, keys: array[int], prompt: int) -> None:
        self.keys = keys
        self.prompt = prompt
        """Blocks of the prompt; those after it are the answer's, made of its text."""
        self.tick = 0
        """Which placement it was that took it last."""
        self.used = 0
        """When its last request was over, among those of all slots; 0 for a slot that never had one."""
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
    depth: int
    """Blocks that the slot itself held, of its prompt."""
    answered: int
    """The same with those of its answer, if that comes back as it was; 0 if no answer is in play."""
    aside: int
    """Blocks that would have come from memory, if the server has a cache there; 0 if none."""
    ended: bool = False

    def over(self) -> None:
        """The request is over: its slot is free."""
        if not self.ended:
            self.ended = True
            if self.slot is not None and self.slot.tick == self.tick:
                self.slots.leave(self.slot)


class _Choice(NamedTuple):
    """What the server would do with a prompt."""

    slot: Kept
    depth: int
    answered: int
    """Both as for a placement."""
    puts_aside: bool
    aside: Kept | None
    """What was put aside and serves it better."""
    aside_depth: int
    doubtful: list[Kept]
    """Slots that the server may have taken instead: that which tells them apart is less than a block."""


class Slots:
    """The slots of one server."""

    def __init__(self, count: int) -> None:
        """`count` is at least 1."""
        self._slots = [Kept(array("Q"), 0) for _ in range(count)]
        self._uses = 0
        self._aside: list[Kept] = []
        """Oldest first."""
        self._room = ASIDE_BLOCKS
        self._shown = 0
        """How often it was, less how often it was not."""
        self._same = 0
        """How often an answer came back as it was, less how often it did not."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def keeps_aside(self) -> bool:
        """Whether the server was seen to have a cache in memory."""
        return self._shown >= LEAST_SHOWN

    @property
    def blocks(self) -> int:
        """Blocks it is believed to hold."""
        return sum(len(kept.keys) for kept in self._all())

    def depth(self, keys: array[int]) -> int:
        """Blocks of a prompt that it would not compute, sent now."""
        choice = self._choose(keys)
        return 0 if choice is None else self._claim(choice)

    def place(self, replica: str, keys: array[int], tick: int) -> SlotPlacement:
        """A prompt is sent."""
        placement = SlotPlacement(replica, keys, 0, 0, tick, (), False, self, None, 0, 0, 0)
        self._seat(placement)
        return placement

    def first_token(self, placement: SlotPlacement) -> None:
        """Its answer begins: if it had to wait for a slot, it has got one."""
        if placement.slot is not None or (slot := self._seat(placement)) is None:
            return
        # Nobody foretold what that slot would hold.
        placement.before = placement.depth = placement.answered = placement.aside = 0
        if placement.ended:
            self.leave(slot)

    def leave(self, slot: Kept) -> None:
        """The request in a slot is over."""
        self._uses += 1
        slot.used, slot.taken = self._uses, False

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
        if placement.aside >= max(placement.depth, placement.answered) + SHOWN:
            if abs(reported - placement.aside) <= 1:
                self._shown = min(self._shown + 1, MOST_SHOWN)
            elif reported + 1 < placement.aside:
                self._dropped()
                return
        if placement.answered and reported + 1 >= placement.depth:
            self._same = min(self._same + 1, MOST_SHOWN) if reported + 1 >= placement.answered else 0
            return
        if reported + 1 >= placement.before:
            return
        for kept in (*self._slots, *self._aside):  # others use this server, or it has restarted
            if kept is not placement.slot and not kept.taken and kept.common(placement.keys) > reported:
                kept.keys = kept.keys[:reported]
        self._aside = [kept for kept in self._aside if kept.keys]

    def _dropped(self) -> None:
        """What should have been put aside is not there: too little room, or no cache in memory at all."""
        self._shown = max(self._shown - 1, 0)
        if not self.keeps_aside:
            self._aside.clear()
            self._room = ASIDE_BLOCKS
        else:
            self._room = max(1, sum(len(kept.keys) for kept in self._aside))

    def _all(self) -> Iterator[Kept]:
        yield from self._slots
        if self.keeps_aside:
            yield from self._aside

    def _choose(self, keys: array[int]) -> _Choice | None:
        free = [slot for slot in self._slots if not slot.taken]
        if not free:
            return None
        shared = [slot.common(keys) for slot in free]
        depth = max(shared)
        alike = [slot for slot, common in zip(free, shared, strict=True) if common == depth] if depth else []
        oldest = min(free, key=lambda slot: slot.used)
        likely = SIMILAR * (len(keys) + 0.5)  # what is shared does not end with a block
        if depth and depth + 0.5 > likely:
            best, puts_aside = alike[0], depth < HALF * len(alike[0].keys)
            is_sure = depth > SIMILAR * (len(keys) + 1)
            doubtful = alike[1:] if is_sure or oldest is best else [*alike[1:], oldest]
            depth = depth if is_sure else 0
        else:
            best, puts_aside = oldest, True
            is_sure = depth + 1 <= SIMILAR * len(keys)
            doubtful = [] if is_sure else [slot for slot in alike if slot is not oldest]
            depth = oldest.common(keys)
        common = depth
        depth, answered = min(common, best.prompt), common if common > best.prompt + 1 else 0
        aside, longest = None, common
        if puts_aside:
            share = common / len(best.keys) if best.keys else 0.0
            for kept in self._aside:
                common = kept.common(keys)
                kept_share = common / len(kept.keys)
                if common > longest and kept_share > share and kept_share >= LEAST_KEPT:
                    aside, longest, share = kept, common, kept_share
        if aside is None:
            longest = 0
        elif not self._same:
            longest = min(longest, aside.prompt)
        return _Choice(best, depth, answered, puts_aside, aside, longest, doubtful)

    def _claim(self, choice: _Choice) -> int:
        """Blocks that are sure not to be computed."""
        own = max(choice.depth, choice.answered) if self._same else choice.depth
        return max(own, choice.aside_depth) if self.keeps_aside else own

    def _seat(self, placement: SlotPlacement) -> Kept | None:
        keys = placement.keys
        choice = self._choose(keys)
        if choice is None:
            return None
        slot = choice.slot
        if choice.aside is not None:
            self._aside.remove(choice.aside)
        if choice.puts_aside and slot.keys:
            self._put_aside(Kept(slot.keys, slot.prompt))
        for other in choice.doubtful:  # what it holds beyond the shared part is lost, in it or in the other
            other.keys = other.keys[: other.common(keys)]
        placement.aside = choice.aside_depth
        placement.depth, placement.answered = choice.depth, choice.answered
        placement.before = self._claim(choice)
        placement.slot = slot
        slot.keys, slot.prompt, slot.tick, slot.taken = keys, len(keys), placement.tick, True
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
