"""What the memory index concludes from reported cached blocks, and what it must not conclude."""

import random
from array import array
from collections import OrderedDict
from itertools import count

import pytest
import xxhash

from proxy.index.memory import REMEMBERED_CUTS, MemoryIndex

CACHE = 2_000


def extended(keys: array, blocks: int, rng: random.Random) -> array:
    keys = array("Q", keys)
    for _ in range(blocks):
        keys.append(xxhash.xxh3_64_intdigest(rng.randbytes(4), seed=keys[-1] if keys else 0))
    return keys


class Engine:
    """An engine's cache in small: blocks in the order of last use, a chain's tail before its head."""

    def __init__(self, blocks: int) -> None:
        self.size = blocks
        self.order: OrderedDict[int, None] = OrderedDict()

    def serve(self, keys: array) -> int:
        cached = next((depth for depth, key in enumerate(keys) if key not in self.order), len(keys))
        for key in reversed(keys):
            self.order[key] = None
            self.order.move_to_end(key)
        while len(self.order) > self.size:
            self.order.popitem(last=False)
        return cached


class Traffic:
    """Conversations that share system prompts, go on and come back, between one-off prompts."""

    def __init__(self, index: MemoryIndex, engine: Engine, seed: int, in_flight: int = 1) -> None:
        self.index, self.engine, self.in_flight = index, engine, in_flight
        self.rng = random.Random(seed)
        self.systems = [extended(array("Q"), 30, self.rng) for _ in range(5)]
        self.conversations: list[array] = []
        self.open: list[tuple] = []

    def prompt(self) -> array:
        rng, conversations = self.rng, self.conversations
        if rng.random() < 0.3:
            return extended(array("Q"), 40, rng)
        if len(conversations) < 40 or rng.random() < 0.1:
            conversations.append(rng.choice(self.systems))
        turn = min(len(conversations), 1 + int(rng.expovariate(1 / 25)))
        conversations[-turn] = extended(conversations[-turn], rng.randint(2, 15), rng)
        keys = conversations[-turn]
        if len(keys) > 150:
            del conversations[-turn]
        return keys

    def run(self, requests: int) -> float:
        """Share of cached blocks by which predictions were off."""
        off = cached = 0
        for _ in range(requests):
            keys = self.prompt()
            predicted = self.index.match(keys).get("a", 0)
            placement = self.index.predict("a", keys)
            reported = self.engine.serve(keys)
            off += abs(predicted - reported)
            cached += reported
            self.open.append((placement, predicted, reported))
            if len(self.open) >= self.in_flight:
                self.index.confirm(*self.open.pop(self.rng.randrange(len(self.open))))
        return off / cached


@pytest.fixture
def index():
    index = MemoryIndex()
    index.resize("a", CACHE)
    return index


class Chains:
    """Conversations of ten blocks with nothing in common, placed one after the other."""

    def __init__(self, index: MemoryIndex, amount: int = 20) -> None:
        self.index, self.numbers = index, count()
        self.rng = random.Random(1)
        self.keys = [self.add() for _ in range(amount)]

    def add(self, blocks: int = 10) -> array:
        keys = extended(array("Q"), blocks, self.rng)
        self.index.predict("a", keys)
        return keys

    def ask(self, keys: array, reported: int) -> None:
        predicted = self.index.match(keys).get("a", 0)
        self.index.confirm(self.index.predict("a", keys), predicted, reported)

    def held(self) -> list[int]:
        return [self.index.match(keys).get("a", 0) for keys in self.keys]


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7, 1.0, 1.3])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_the_capacity_is_learned_whatever_the_engine_says(index, share, in_flight):
    traffic = Traffic(index, Engine(int(share * CACHE)), seed=3, in_flight=in_flight)
    traffic.run(4000)
    assert 0.85 * share * CACHE <= index.capacity("a") <= 1.15 * share * CACHE
    assert traffic.run(1000) < 0.08


def test_E14_a_flush_is_noticed_and_costs_no_capacity(index):
    traffic = Traffic(index, Engine(CACHE), seed=4)
    traffic.run(2000)
    assert index.capacity("a") == CACHE
    traffic.engine.order.clear()
    assert traffic.run(30) > 0.1
    traffic.run(300)
    assert traffic.run(300) < 0.02
    assert index.capacity("a") >= 0.9 * CACHE


def test_E14_what_an_lru_must_have_evicted_goes_with_what_it_did(index):
    chains = Chains(index)
    chains.ask(chains.keys[9], reported=0)
    assert chains.held() == [0] * 9 + [10] * 11
    assert index.capacity("a") == 0.9 * CACHE


def test_E14_the_tail_that_was_missed_tells_of_older_chains_too(index):
    chains = Chains(index)
    chains.ask(chains.keys[9], reported=4)
    assert chains.held() == [0] * 9 + [10] * 11


def test_R10_one_block_less_is_no_evidence(index):
    chains = Chains(index)
    chains.ask(chains.keys[9], reported=9)
    assert chains.held() == [10] * 20
    assert index.capacity("a") == CACHE


def test_what_was_not_predicted_at_dispatch_is_not_missed(index):
    """Placed at the first token, after another request had brought the same blocks; or capped (R10)."""
    chains = Chains(index)
    for predicted, reported in [(0, 0), (8, 7), (8, 8)]:
        index.confirm(index.predict("a", chains.keys[9]), predicted, reported)
    assert chains.held() == [10] * 20
    assert index.capacity("a") == CACHE


def test_the_capacity_falls_to_what_a_miss_proves_and_no_further(index):
    index.resize("a", 200)
    chains = Chains(index)
    chains.ask(chains.keys[1], reported=0)
    assert index.capacity("a") == 180 + 10, "used since, and the prompt itself"


def test_exactly_half_of_the_blocks_used_since_is_enough(index):
    chains = Chains(index, 3)
    chains.ask(chains.keys[1], reported=0)
    assert chains.held() == [0, 10, 10]


def test_what_a_longer_prompt_held_below_the_missing_block_goes_too(index):
    chains = Chains(index)
    chains.ask(extended(chains.keys[9][:7], 3, chains.rng), reported=4)
    assert chains.held() == [0] * 9 + [7] + [10] * 10


def test_a_flush_that_several_misses_show_costs_one_step(index):
    chains = Chains(index)
    for number in (9, 14, 17):
        chains.ask(chains.keys[number], reported=0)
    assert chains.held() == [0] * 9 + [10] + [0] * 4 + [10] + [0] * 2 + [10] * 3
    assert index.capacity("a") == 0.9 * CACHE


def test_a_single_prompt_that_always_falls_short_proves_nothing(index):
    chains = Chains(index, 1)
    for _ in range(10):
        chains.ask(chains.keys[0], reported=5)
        index.predict("a", chains.keys[0])
    assert index.capacity("a") == CACHE


def test_a_difference_of_keys_is_no_witness_of_a_loss(index):
    chains = Chains(index)
    chains.ask(chains.keys[-1], reported=6)
    chains.ask(chains.keys[-2], reported=0)
    assert chains.held() == [10] * 20


def test_a_shortfall_that_no_lru_leaves_is_a_difference_of_keys(index):
    chains = Chains(index)
    for _ in range(5):
        chains.ask(chains.keys[-1], reported=6)
        chains.ask(chains.keys[-2], reported=3)
    assert chains.held() == [10] * 20
    assert index.capacity("a") == CACHE


def test_one_request_that_looked_nothing_up_proves_no_loss(index):
    chains = Chains(index)
    for number in range(5):
        chains.ask(chains.keys[-1], reported=0)
        chains.ask(chains.keys[number], reported=10)
    assert chains.held() == [10] * 20


def test_the_second_witness_of_a_loss_decides(index):
    chains = Chains(index)
    chains.ask(chains.keys[-1], reported=0)
    assert chains.held() == [10] * 20
    chains.ask(chains.keys[-2], reported=0)
    assert chains.held() == [0] * 18 + [10] * 2
    assert index.capacity("a") == CACHE


def test_a_loss_is_seen_behind_a_shared_system_prompt(index):
    rng = random.Random(2)
    system = extended(array("Q"), 10, rng)
    chains = Chains(index, 0)
    chains.keys = [extended(system, 10, rng) for _ in range(20)]
    for keys in chains.keys:
        index.predict("a", keys)
    chains.ask(chains.keys[-1], reported=0)
    chains.ask(chains.keys[-2], reported=10)  # the system prompt, which the request before has brought back
    assert chains.held() == [10] * 18 + [20] * 2


def test_witnesses_may_speak_in_any_order(index):
    chains = Chains(index)
    last, first = chains.keys[-1], chains.keys[-2]
    early = index.predict("a", first)
    late = index.predict("a", last)
    index.confirm(late, 10, 0)
    index.confirm(early, 10, 0)
    assert chains.held() == [0] * 18 + [10] * 2


def test_a_hit_on_what_was_dropped_here_raises_the_capacity(index):
    chains = Chains(index, 1)
    chains.add(CACHE - 9)
    chains.ask(chains.keys[0], reported=10)
    assert index.capacity("a") == CACHE, "nine were predicted"
    chains.add(CACHE - 2)
    chains.ask(chains.keys[0], reported=10)
    assert index.capacity("a") == int(1.05 * CACHE)


def test_a_hit_on_what_was_never_recorded_here_does_not(index):
    chains = Chains(index, 1)
    chains.add(CACHE - 10)
    for _ in range(5):
        longer = extended(chains.keys[0], 10, random.Random(5))
        chains.ask(longer, reported=20)
        index.retract(index.predict("a", extended(chains.keys[0], 20, random.Random(6))))
        chains.ask(extended(array("Q"), 5, chains.rng), reported=5)
    assert index.capacity("a") == CACHE


def test_a_block_that_came_back_is_no_longer_a_dropped_one(index):
    chains = Chains(index, 1)
    chains.add(CACHE)  # drops the first chain
    index.retract(index.predict("a", chains.keys[0]))
    chains.ask(chains.keys[0], reported=10)
    assert index.capacity("a") == CACHE


def test_only_so_many_evictions_are_remembered(index):
    for _ in range(3 * REMEMBERED_CUTS):
        Chains(index, 0).add(3)
    chains = Chains(index, 0)
    for _ in range(3 * REMEMBERED_CUTS):
        chains.add(5)
    assert len(index._replicas["a"].cuts) == REMEMBERED_CUTS


def test_a_smaller_capacity_is_kept_at_once(index):
    """Blocks used while the request ran count against a capacity that it lowers when it ends."""
    chains = Chains(index)
    keys = chains.keys[9]
    placement = index.predict("a", keys)
    chains.add(CACHE - 110)
    index.confirm(placement, 10, 0)
    assert index.blocks("a") <= index.capacity("a") == 0.9 * CACHE
