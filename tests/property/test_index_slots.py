"""Whatever is asked of a llama.cpp server, in whatever order: nothing is foretold that it cannot give.

The bench's own model of such a server, which works on tokens and knows nothing of ours, says what it gives.
Prompts share nothing or a block at least: less goes unseen, as `proxy.index.slots` says.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bench.llama_slots import Slot, SlotCache
from proxy.index.slots import ASIDE_BLOCKS, MOST_ASIDE, SlotPlacement, Slots

BLOCK = 4


def keys_of(tokens: array[int]) -> array[int]:
    """Chained keys of full blocks."""
    keys, key = array("Q"), 7
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        key = hash((key, tuple(tokens[end - BLOCK : end]))) & (1 << 64) - 1
        keys.append(key)
    return keys


class Machine(RuleBasedStateMachine):
    @initialize(slots=st.integers(1, 4), aside=st.sampled_from([0, 200, 100_000]))
    def begin(self, slots: int, aside: int) -> None:
        self.server = SlotCache(slots, aside_tokens=aside)
        self.index = Slots(slots)
        self.running: list[tuple[SlotPlacement, Slot, array[int]]] = []
        self.tick = 0
        self.small = aside == 200
        """Whether its cache in memory drops what should be there, which only shows later."""

    @rule(
        head=st.integers(0, 3),
        shared=st.just(0) | st.integers(BLOCK, 60),
        tail=st.integers(0, 2),
        unique=st.integers(BLOCK, 60),
        answered=st.integers(0, 9),
    )
    def ask(self, head: int, shared: int, tail: int, unique: int, answered: int) -> None:
        tokens = array("I", [head * 1000 + at for at in range(shared)])
        tokens.extend(50_000 + head * 1000 + tail * 100 + at for at in range(unique))
        slot = self.server.take(tokens)
        if slot is None:
            assert self.index.depth(keys_of(tokens)) == 0
            return
        keys = keys_of(tokens)
        depth = min(self.index.depth(keys), (len(tokens) - 1) // BLOCK)
        self.tick += 1
        placement = self.index.place("r", keys, self.tick)
        if not self.small:
            assert depth * BLOCK <= slot.cached
        self.index.first_token(placement)
        self.running.append((placement, slot, tokens + array("I", range(90_000, 90_000 + answered))))

    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        if not self.running:
            return
        placement, slot, tokens = self.running.pop(which % len(self.running))
        cached = slot.cached
        self.server.leave(slot, tokens)
        placement.over()
        self.index.confirm(placement, round(cached / BLOCK))
        self.index.extend(placement, keys_of(tokens))

    @invariant()
    def is_bounded(self) -> None:
        if not hasattr(self, "index"):
            return
        assert len(self.index._aside) <= MOST_ASIDE
        assert sum(len(kept.keys) for kept in self.index._aside) <= ASIDE_BLOCKS
        assert sum(kept.taken for kept in self.index._slots) == len(self.running)


TestSlots = Machine.TestCase
TestSlots.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
