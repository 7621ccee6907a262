"""The memory index against a model that knows no runs: per replica, each block's last use and depth."""

from array import array
from functools import cache

import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.index.base import Placement
from proxy.index.memory import MemoryIndex
from proxy.index.tree import Run

REPLICAS = ("a", "b", "c")
replicas = st.sampled_from("aaabbc")
# Few different blocks, so that prompts share, branch and end within each other all the time.
prompts = st.lists(st.sampled_from((0, 0, 0, 1, 2)), max_size=9).map(tuple)


@cache
def key_of(prompt: tuple) -> int:
    return xxhash.xxh3_64_intdigest(bytes([prompt[-1]]), seed=key_of(prompt[:-1])) if prompt else 1


def keys_of(prompt: tuple) -> array:
    return array("Q", [key_of(prompt[:end]) for end in range(1, len(prompt) + 1)])


class Model:
    """One replica: block -> (last use, depth), and what it is suspected of."""

    def __init__(self) -> None:
        self.uses: dict[int, tuple[int, int]] = {}
        self.suspected: int | None = None

    def held(self, keys: array) -> int:
        return next((depth for depth, key in enumerate(keys) if key not in self.uses), len(keys))

    def touch(self, keys: array, tick: int) -> None:
        self.uses.update({key: (tick, depth) for depth, key in enumerate(keys)})

    def evict(self, capacity: int) -> None:
        order = sorted(self.uses, key=lambda key: (self.uses[key][0], -self.uses[key][1]))
        for key in order[: max(0, len(order) - capacity)]:
            del self.uses[key]

    def drop(self, keys) -> None:
        for key in list(keys):
            del self.uses[key]

    def missed(self, tick: int, length: int, used: int, found: int | None) -> None:
        older = [key for key, (last, _) in self.uses.items() if last <= used]
        since = [key for key, (last, _) in self.uses.items() if used < last < tick]
        if since and len(since) >= len(older):
            self.drop(older)
        elif found == used:
            pass
        elif self.suspected is None or used >= self.suspected:
            self.suspected = tick
        else:
            first = min(self.suspected, tick)
            self.drop([key for key, (last, _) in self.uses.items() if last < first])
            self.suspected = None


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = MemoryIndex(default_blocks=30)
        self.models: dict[str, Model] = {}
        self.open: list[tuple[Placement, Model, list[int]]] = []

    @initialize(blocks=st.integers(1, 40))
    def size(self, blocks):
        self.resize("a", blocks)

    @rule(replica=replicas, prompt=prompts)
    def predict(self, replica, prompt):
        self.place(replica, keys_of(prompt))

    def place(self, replica, keys, after=None):
        model = self.models.setdefault(replica, Model())
        before = model.held(keys)
        uses = [model.uses[key][0] for key in keys[:before]]
        placement = self.index.predict(replica, keys, after=after)
        assert placement.before == before
        assert [next(t for end, t in placement.earlier if depth < end) for depth in range(before)] == uses
        model.touch(keys, placement.tick)
        model.evict(self.index.capacity(replica))
        self.open.append((placement, model, uses))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), answer=prompts)
    def answer(self, which, answer):
        placement, model, _ = self.open[which % len(self.open)]
        keys = array("Q", placement.keys)
        for block in answer:
            keys.append(xxhash.xxh3_64_intdigest(bytes([block]), seed=keys[-1] if keys else 1))
        if self.models.get(placement.replica) is model:
            self.place(placement.replica, keys, after=placement)
        else:
            assert self.index.predict(placement.replica, keys, after=placement) is placement

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0))
    def retract(self, which):
        placement, model, _ = self.open.pop(which % len(self.open))
        self.index.retract(placement)
        if self.models.get(placement.replica) is model:
            new = placement.keys[placement.before :]
            model.drop(key for key in new if model.uses.get(key, (0, 0))[0] == placement.tick)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), length=st.integers(2, 12), share=st.floats(0, 1))
    def ask_again_and_miss(self, which, length, share):
        placement = self.open[which % len(self.open)][0]
        self.place(placement.replica, placement.keys[:length])
        before = self.open[-1][0].before
        self.confirm_one(len(self.open) - 1, before, int(before * share))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), predicted=st.integers(0, 10), reported=st.integers(0, 10))
    def confirm(self, which, predicted, reported):
        self.confirm_one(which % len(self.open), predicted, reported)

    def confirm_one(self, which, predicted, reported):
        placement, model, uses = self.open.pop(which)
        predicted = min(predicted, len(placement.keys))
        reported = min(reported, len(placement.keys))
        self.index.confirm(placement, predicted, reported)
        if self.models.get(placement.replica) is not model:
            return
        found = uses[reported - 1] if 0 < reported <= len(uses) else None
        if model.suspected is not None and found is not None and found < model.suspected:
            model.suspected = None
        if reported + 1 < min(predicted, len(uses)):
            model.missed(placement.tick, len(placement.keys), uses[reported], found)
        model.evict(self.index.capacity(placement.replica))

    @rule(replica=replicas)
    def forget(self, replica):
        self.index.forget(replica)
        self.models.pop(replica, None)

    @rule(replica=replicas, blocks=st.integers(1, 60))
    def resize(self, replica, blocks):
        self.index.resize(replica, blocks)
        self.models.setdefault(replica, Model()).evict(self.index.capacity(replica))

    @rule(prompt=prompts)
    def match(self, prompt):
        keys = keys_of(prompt)
        depths = {name: model.held(keys) for name, model in self.models.items()}
        assert self.index.match(keys) == {name: depth for name, depth in depths.items() if depth}

    @invariant()
    def counts_agree(self):
        for name in REPLICAS:
            uses = self.models[name].uses if name in self.models else {}
            assert self.index.blocks(name) == len(uses) <= self.index.capacity(name)
        distinct = {key for model in self.models.values() for key in model.uses}
        assert self.index.size() == len(distinct)

    @invariant()
    def the_tree_is_sound(self):
        audit(self.index)

    def teardown(self):
        for name in REPLICAS:
            self.index.forget(name)
        assert (self.index.size(), self.index.runs()) == (0, 0)
        assert not self.index._tree.root.children


def audit(index: MemoryIndex) -> None:
    """Recompute everything the index keeps a count or an order of."""
    tree = index._tree
    runs: list[Run] = []
    pending = list(tree.root.children.items())
    while pending:
        first, run = pending.pop()
        runs.append(run)
        pending += run.children.items()
        assert run.keys[0] == first
        assert run.parent.children[first] is run
        assert run.holds
        assert max(hold.blocks for hold in run.holds.values()) == len(run.keys)
        for holder, hold in run.holds.items():
            assert hold.run is run
            assert hold.blocks >= 1
            if run.parent is not tree.root:
                above = run.parent.holds[holder]
                assert above.blocks == len(run.parent.keys), "prefix-closed"
                assert above.tick >= hold.tick
    assert len(runs) == tree.runs
    assert sum(len(run.keys) for run in runs) == tree.blocks
    for owner in index._replicas.values():
        holds = list(owner.oldest_first())
        assert [hold.tick for hold in holds] == sorted(hold.tick for hold in holds)
        assert len(holds) == sum(owner in run.holds for run in runs)
        assert all(hold.run.holds[owner] is hold for hold in holds), "each hold is listed exactly once"
        assert sum(hold.blocks for hold in holds) == owner.blocks


TestMemoryIndex = Comparison.TestCase
TestMemoryIndex.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
