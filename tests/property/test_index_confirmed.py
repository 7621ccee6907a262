"""What events said, against plain sets, with a sweep that is hardly ever over."""

from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from proxy.index.confirmed import Confirmed

REPLICAS = tuple(f"replica-{number}" for number in range(12))
"""More than there are bits in a small int."""
replicas = st.sampled_from(REPLICAS)
# Keys without chains: a table does not know them, and holes are everywhere.
keys = st.lists(st.integers(1, 14), max_size=8, unique=True).map(lambda told: array("Q", told))
everything = array("Q", range(1, 15))


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.confirmed = Confirmed()
        self.model: dict[str, set[int]] = {}

    @rule(replica=replicas, removed=keys, stored=keys)
    def apply(self, replica, removed, stored):
        self.confirmed.apply(replica, removed, stored)
        held = self.model.setdefault(replica, set())
        held -= set(removed)
        held |= set(stored)

    @rule(chosen=st.sets(replicas), removed=keys, stored=keys)
    def apply_to_many(self, chosen, removed, stored):
        for replica in chosen:
            self.apply(replica, removed, stored)

    @rule(chosen=st.sets(replicas, max_size=4))
    def forget(self, chosen):
        for replica in chosen:
            self.confirmed.forget(replica)
            self.model.pop(replica, None)

    @rule(entries=st.integers(1, 3))
    def sweep(self, entries):
        self.confirmed.tick(entries)

    @rule(prompt=keys)
    def match(self, prompt):
        self.compare(prompt)

    @invariant()
    def a_match_that_was_remembered_is_still_true(self):
        self.compare(everything)

    def compare(self, prompt):
        expected = {}
        for name, held in self.model.items():
            depth = next((depth for depth, key in enumerate(prompt) if key not in held), len(prompt))
            if depth:
                expected[name] = depth
        assert self.confirmed.match(prompt) == expected

    @invariant()
    def counts_agree(self):
        for name in REPLICAS:
            held = self.model.get(name, set())
            assert self.confirmed.blocks(name) == len(held)
            assert [key for key in everything if self.confirmed.holds(name, key)] == sorted(held)

    @invariant()
    def the_tables_are_sound(self):
        confirmed = self.confirmed
        assert not confirmed._table.keys() & confirmed._old.keys()
        masks = [*confirmed._table.values(), *confirmed._old.values()]
        assert all(masks)
        used = 0
        for mask in masks:
            used |= mask
        parts = confirmed._live, confirmed._stale, confirmed._sweeping, confirmed._free
        assert sum(parts) == (1 << confirmed._bits) - 1, "each bit is in one state"
        assert not used & confirmed._free, "a free bit is in no mask"
        for name, holder in confirmed._holders.items():
            assert confirmed._names[holder.bit] == name
            assert sum(bool(mask & holder.bit) for mask in masks) == holder.blocks

    def teardown(self):
        while self.confirmed.tick(3):
            pass
        self.the_tables_are_sound()
        assert self.confirmed.size() == len(set().union(*self.model.values()))
        for name in REPLICAS:
            self.confirmed.forget(name)
        while self.confirmed.tick(3):
            pass
        assert self.confirmed.size() == 0
        assert self.confirmed._free == (1 << self.confirmed._bits) - 1, "every bit can be used again"


TestConfirmed = Comparison.TestCase
TestConfirmed.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
