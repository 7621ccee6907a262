"""The true index against a model of plain sets: what each replica's events said, and what is predicted of it.

What is learned is modelled by a second `MemoryIndex` that is told by the model, not by the index under test.
"""

import math
from array import array
from functools import cache

import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.index.memory import MemoryIndex
from proxy.index.overlay import Overlay
from proxy.index.truth import LEAST_S, MOST_S, STALE_MISSES, STALE_SHARE, TrueIndex

REPLICAS = ("a", "b", "c", "d")
replicas = st.sampled_from("aaabbcd")
modes = st.sampled_from(("events", "events", "events", "stale", "learned"))
# Few different blocks, so that prompts share, branch and end within each other all the time.
prompts = st.lists(st.sampled_from((0, 0, 0, 1, 2)), max_size=9).map(tuple)


@cache
def key_of(prompt: tuple) -> int:
    return xxhash.xxh3_64_intdigest(bytes([prompt[-1]]), seed=key_of(prompt[:-1])) if prompt else 1


@cache
def keys_of(prompt: tuple) -> array:
    """One array per prompt, as an index may remember the array it was asked last."""
    return array("Q", [key_of(prompt[:end]) for end in range(1, len(prompt) + 1)])


# What an event tells of: the blocks of a prompt from some depth on, in order.
blocks = st.tuples(prompts, st.integers(0, 8)).map(lambda told: keys_of(told[0])[told[1] :])


def run(held: set, keys: array) -> int:
    return next((depth for depth, key in enumerate(keys) if key not in held), len(keys))


class Predicted:
    """An open prediction: blocks that it still stands for, its last one, and when its time is up."""

    def __init__(self, keys: array) -> None:
        self.keys = set(keys)
        self.last = keys[-1]
        self.deadline = math.inf


class Replica:
    def __init__(self) -> None:
        self.mode = "learned"
        self.confirmed: set[int] = set()
        self.predicted: list[Predicted] = []
        self.prompts: list[array] = []
        self.misses = 0

    @property
    def pending(self) -> set:
        return set().union(*(prediction.keys for prediction in self.predicted))

    def settle(self, keys) -> None:
        for prediction in self.predicted:
            prediction.keys -= set(keys)
        self.predicted = [prediction for prediction in self.predicted if prediction.last not in keys]


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.index = TrueIndex(MemoryIndex(default_blocks=30), lambda: self.now)
        self.learned = MemoryIndex(default_blocks=30)
        self.models: dict[str, Replica] = {}
        self.open: list[tuple] = []

    def model(self, name: str) -> Replica:
        return self.models.setdefault(name, Replica())

    @initialize(first=modes, second=modes, size=st.integers(1, 40))
    def begin(self, first, second, size):
        self.set_mode("a", first)
        self.set_mode("b", second)
        self.resize("a", size)

    @rule(replica=replicas, prompt=prompts)
    def predict(self, replica, prompt):
        self.place(replica, keys_of(prompt))

    def place(self, replica, keys, after=None):
        model = self.model(replica)
        held = self.depth(replica, keys)
        placement = self.index.predict(replica, keys, after=after)
        if model.mode == "events":
            twin = None
            assert placement.before == held
            model.prompts.append(keys)
            new = keys[run(model.confirmed, keys) :][: self.learned.capacity(replica)]
            if new:
                twin = Predicted(new)
                model.predicted.append(twin)
                while len(model.pending) > self.learned.capacity(replica):
                    del model.predicted[0]
        else:
            twin = self.learned.predict(replica, keys)
        self.open.append((placement, twin, model, replica))
        return twin

    def date(self, which, seconds):
        """The model's side of `expire`."""
        _, twin, model, _ = self.open[which]
        if isinstance(twin, Predicted) and twin in model.predicted:
            twin.deadline = min(twin.deadline, self.now + seconds)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), answer=prompts)
    def answer(self, which, answer):
        which %= len(self.open)
        placement, _, model, replica = self.open[which]
        keys = array("Q", placement.keys)
        for block in answer:
            keys.append(xxhash.xxh3_64_intdigest(bytes([block]), seed=keys[-1] if keys else 1))
        if self.models.get(replica) is model:
            self.place(replica, keys, after=placement)
            if model.mode == "events":
                self.date(which, LEAST_S)
                self.date(-1, LEAST_S)
        else:
            assert self.index.predict(replica, keys, after=placement) is placement

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0))
    def retract(self, which):
        placement, twin, model, _ = self.open.pop(which % len(self.open))
        self.index.retract(placement)
        if isinstance(twin, Predicted):
            model.predicted = [prediction for prediction in model.predicted if prediction is not twin]
        elif twin is not None:
            self.learned.retract(twin)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), expected=st.floats(0, 6))
    def first_token(self, which, expected):
        which %= len(self.open)
        self.index.first_token(self.open[which][0], expected)
        self.date(which, min(max(2 * expected + 2, LEAST_S), MOST_S))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), predicted=st.integers(0, 10), reported=st.integers(0, 10))
    def confirm(self, which, predicted, reported):
        placement, twin, _, replica = self.open.pop(which % len(self.open))
        predicted, reported = min(predicted, len(placement.keys)), min(reported, len(placement.keys))
        self.index.confirm(placement, predicted, reported)
        if twin is None or isinstance(twin, Predicted):
            return
        self.learned.confirm(twin, predicted, reported)
        model = self.model(replica)
        if model.mode == "stale" and predicted:
            model.misses = model.misses + 1 if reported + 1 < predicted else 0
            if model.misses >= STALE_MISSES:
                model.misses = 0
                model.confirmed.clear()

    @rule(replica=replicas, stored=blocks)
    def stored(self, replica, stored):
        self.apply(replica, stored=stored)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), short=st.integers(0, 2))
    def computed(self, which, short):
        placement, _, _, replica = self.open[which % len(self.open)]
        self.apply(replica, stored=placement.keys[: max(0, len(placement.keys) - short)])

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0), kept=st.integers(0, 4))
    def evicted(self, which, kept):
        placement, _, _, replica = self.open[which % len(self.open)]
        self.apply(replica, removed=placement.keys[kept:])

    @rule(replica=replicas, removed=blocks)
    def removed(self, replica, removed):
        self.apply(replica, removed=removed)

    @rule(replica=replicas, removed=blocks, stored=blocks)
    def cleared(self, replica, removed, stored):
        self.apply(replica, cleared=True, removed=removed, stored=stored)

    def apply(self, replica, *, cleared=False, removed=(), stored=()):
        self.index.apply(replica, cleared=cleared, removed=array("Q", removed), stored=array("Q", stored))
        model = self.model(replica)
        if model.mode == "learned":
            return
        if cleared:
            model.confirmed.clear()
            model.predicted.clear()
        model.settle(removed)
        model.settle(stored)
        model.confirmed -= set(removed)
        model.confirmed |= set(stored)

    @rule(replica=replicas, mode=modes)
    def set_mode(self, replica, mode):
        self.index.set_mode(replica, mode)
        model = self.model(replica)
        if mode == model.mode:
            return
        if model.mode == "events":
            model.predicted.clear()
            for keys in model.prompts:
                if depth := run(model.confirmed, keys):
                    self.learned.predict(replica, keys[:depth])
            model.prompts.clear()
        if mode == "learned":
            model.confirmed.clear()
        if mode == "events":
            self.learned.clear(replica)
        model.mode = mode
        model.misses = 0

    @rule(replica=replicas)
    def forget(self, replica):
        self.index.forget(replica)
        self.learned.forget(replica)
        self.models.pop(replica, None)
        assert self.index.mode(replica) == "learned"

    @rule(replica=replicas, size=st.integers(1, 60))
    def resize(self, replica, size):
        self.index.resize(replica, size)
        self.learned.resize(replica, size)
        self.model(replica)

    @rule(seconds=st.floats(0, 4))
    def time_passes(self, seconds):
        self.now += seconds
        self.index.tick()
        for model in self.models.values():
            model.predicted = [each for each in model.predicted if each.deadline > self.now]

    @rule(entries=st.integers(1, 5))
    def sweep(self, entries):
        self.index._confirmed.tick(entries)

    def depth(self, name: str, keys: array) -> int:
        model = self.model(name)
        if model.mode == "events":
            return run(model.confirmed | model.pending, keys)
        learned = self.learned.match(array("Q", keys)).get(name, 0)
        if model.mode == "stale":
            return max(run(model.confirmed, keys), math.ceil(learned * STALE_SHARE))
        return learned

    @rule(prompt=prompts)
    def match(self, prompt):
        keys = keys_of(prompt)
        depths = {name: self.depth(name, keys) for name in REPLICAS}
        assert self.index.match(keys) == {name: depth for name, depth in depths.items() if depth}

    @invariant()
    def counts_agree(self):
        told: set[int] = set()
        for name in REPLICAS:
            model = self.model(name)
            assert self.index.mode(name) == model.mode
            assert self.index.confirmed_blocks(name) == len(model.confirmed)
            held = model.confirmed | model.pending
            told |= held
            assert self.index.blocks(name) == max(len(held), self.learned.blocks(name))
            assert self.index.capacity(name) == self.learned.capacity(name)
        assert self.index.size() >= len(told) + self.learned.size()

    @invariant()
    def the_overlay_is_sound(self):
        audit_overlay(self.index._overlay)

    def teardown(self):
        while self.index._confirmed.tick(3):
            pass
        told = set().union(*(model.confirmed | model.pending for model in self.models.values()))
        assert self.index.size() == len(told) + self.learned.size()
        for name in REPLICAS:
            self.index.forget(name)
        while self.index.tick():
            pass
        assert self.index.size() == 0


def audit_overlay(overlay: Overlay) -> None:
    for pending in overlay._replicas.values():
        assert pending.open
        ending = [each for predictions in pending.ending.values() for each in predictions]
        assert sorted(each.tick for each in ending) == sorted(pending.open)
        for prediction in pending.open.values():
            last = prediction.keys[prediction.end - 1]
            assert prediction in pending.owners[last]
            assert prediction in pending.ending[last]
        for key, owners in pending.owners.items():
            assert owners
            for owner in owners:
                assert pending.open[owner.tick] is owner
                assert key in owner.keys[owner.start : owner.end]


TestTrueIndex = Comparison.TestCase
TestTrueIndex.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
