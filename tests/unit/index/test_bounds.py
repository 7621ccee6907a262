"""Memory stays bounded, whatever the prompts look like (E15)."""

import gc
import random
import sys
from array import array

import pytest

from proxy.index.memory import MemoryIndex


def fresh(blocks: int, rng: random.Random) -> array:
    return array("Q", rng.randbytes(8 * blocks))


def allocated_blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


def test_E15_a_constant_prefix_before_unique_suffixes_reaches_a_plateau():
    rng = random.Random(0)
    index = MemoryIndex()
    index.resize("a", 10_000)
    prefix = fresh(64, rng)  # 1k tokens at 16 a block
    allocated = []
    for _ in range(4):
        for _ in range(3_000):
            index.predict("a", prefix + fresh(128, rng))
        allocated.append(allocated_blocks())
        assert index.blocks("a") == index.size() == 10_000
        assert index.runs() <= 1 + 10_000 // 128 + 1
        assert index.match(prefix) == {"a": 64}
    assert max(allocated) - allocated[0] < 500


def test_E15_a_burst_of_unique_long_prompts_stays_under_the_cap_and_spares_what_is_in_use():
    rng = random.Random(1)
    index = MemoryIndex()
    shared = fresh(64, rng)
    for name in "abcd":
        index.resize(name, 20_000)
    for number in range(10_000):  # 30k tokens each at 16 a block
        name = "abcd"[number % 4]
        index.predict(name, fresh(1_875, rng))
        if number % 20 < 4:
            index.predict(name, shared)
        assert index.blocks(name) <= 20_000
    assert index.size() <= 80_000
    assert index.runs() <= 4 * (20_000 // 1_875 + 2)
    assert index.match(shared) == dict.fromkeys("abcd", 64)


def test_E15_blocks_of_one_token_are_bounded_alike():
    rng = random.Random(2)
    index = MemoryIndex(default_blocks=4_096)
    for _ in range(300):
        index.predict("a", fresh(2_000, rng))
        index.predict("a", fresh(1, rng))
    assert index.blocks("a") == index.size() == 4_096
    for _ in range(10_000):
        index.predict("a", fresh(1, rng))
    assert (index.blocks("a"), index.runs()) == (4_096, 4_096)


def test_E15_branches_that_are_gone_leave_no_fragments():
    """Prompts that left a chain at every block once split it; when it is used again, it is one run again."""
    rng = random.Random(3)
    index = MemoryIndex()
    index.resize("a", 1_000)
    chain = fresh(200, rng)
    for depth in range(1, 200):
        index.predict("a", chain[:depth] + fresh(1, rng))
    index.predict("a", chain)
    assert index.runs() > 300
    for _ in range(8):
        index.predict("a", fresh(100, rng))
        index.predict("a", chain)
    assert index.match(chain) == {"a": 200}
    assert index.runs() == 1 + 8


def test_a_conversation_that_grows_is_one_run():
    rng = random.Random(4)
    index = MemoryIndex()
    keys = array("Q")
    for _ in range(50):
        keys += fresh(7, rng)
        placement = index.predict("a", keys)
        assert placement.before == len(keys) - 7
    assert (index.runs(), index.size()) == (1, 350)


def test_forgetting_gives_everything_back():
    rng = random.Random(5)
    index = MemoryIndex()
    before = allocated_blocks()
    for _ in range(2_000):
        index.predict("a", fresh(20, rng))
    assert allocated_blocks() > before + 10_000
    index.forget("a")
    assert allocated_blocks() < before + 1_000
    assert (index.size(), index.runs()) == (0, 0)


@pytest.mark.parametrize("holders", [2, 50])
def test_a_prefix_that_many_hold_is_stored_once(holders):
    rng = random.Random(6)
    index = MemoryIndex()
    prefix = fresh(100, rng)
    for holder in range(holders):
        index.predict(f"replica-{holder}", prefix + fresh(10, rng))
    assert index.size() == 100 + 10 * holders
    assert index.match(prefix) == {f"replica-{holder}": 100 for holder in range(holders)}
