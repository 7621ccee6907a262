"""What events said: holes, flushes, and what forgetting costs."""

import gc
import random
import sys
from array import array

from proxy.index.confirmed import STEP, Confirmed, unbroken

NONE = array("Q")


def fresh(blocks: int, rng: random.Random) -> array:
    return array("Q", rng.randbytes(8 * blocks))


def sweep(confirmed: Confirmed) -> int:
    """Sweep all; the number of steps."""
    steps = 1
    while confirmed.tick():
        steps += 1
    return steps


def test_a_list_keeps_what_came_before_a_missing_key():
    """`unbroken` stands on this."""
    assert unbroken({1: "a", 2: "b", 4: "d"}, [1, 2, 3, 4]) == ["a", "b"]
    assert unbroken({1: "a", 2: "b"}, array("Q", [1, 2])) == ["a", "b"]
    assert unbroken({1: "a"}, [2, 1]) == []


def test_X06_only_the_unbroken_run_from_block_0_counts():
    keys = fresh(10, random.Random(0))
    confirmed = Confirmed()
    for name in "ab":
        confirmed.apply(name, NONE, keys)
    confirmed.apply("a", keys[3:4], NONE)
    assert confirmed.match(keys) == {"a": 3, "b": 10}
    assert confirmed.blocks("a") == 9
    confirmed.apply("b", keys[:1], NONE)
    assert confirmed.match(keys) == {"a": 3}
    confirmed.apply("a", NONE, keys[3:4])
    assert confirmed.match(keys) == {"a": 10}


def test_a_match_that_was_remembered_ends_with_the_next_change():
    keys = fresh(4, random.Random(0))
    confirmed = Confirmed()
    assert confirmed.match(keys) == {}
    confirmed.apply("a", NONE, keys)
    assert confirmed.match(keys) == {"a": 4}
    confirmed.apply("a", keys[2:], NONE)
    assert confirmed.match(keys) == {"a": 2}
    confirmed.forget("a")
    assert confirmed.match(keys) == {}


def test_E05_after_a_flush_only_what_was_stored_since_is_held_and_memory_comes_back():
    rng = random.Random(1)
    keys = fresh(5, rng)
    confirmed = Confirmed()
    gc.collect()
    before = sys.getallocatedblocks()
    for name in "ab":
        confirmed.apply(name, NONE, keys)
    confirmed.apply("a", NONE, fresh(50_000, rng))
    grown = sys.getallocatedblocks() - before
    confirmed.forget("a")
    confirmed.apply("a", NONE, keys[:1])
    assert confirmed.match(keys) == {"a": 1, "b": 5}
    assert (confirmed.blocks("a"), confirmed.blocks("b")) == (1, 5)
    sweep(confirmed)
    assert confirmed.match(keys) == {"a": 1, "b": 5}
    assert confirmed.size() == 5
    gc.collect()
    assert sys.getallocatedblocks() - before < grown / 100


def test_E05_the_sweep_goes_in_steps_and_answers_are_right_all_the_time():
    rng = random.Random(2)
    confirmed = Confirmed()
    prompts = [fresh(50, rng) for _ in range(400)]
    for number, keys in enumerate(prompts):
        confirmed.apply("a", NONE, keys)
        if number % 2:
            confirmed.apply("b", NONE, keys[:30])
    confirmed.forget("a")
    steps = 0
    while confirmed.tick():
        steps += 1
        for number in (0, 1, 200, 201, 398, 399):
            assert confirmed.match(prompts[number]) == ({"b": 30} if number % 2 else {})
        assert confirmed.blocks("b") == 200 * 30
    assert steps == 400 * 50 // STEP - 1
    assert confirmed.size() == 200 * 30


def test_a_bit_is_used_again_so_masks_stay_small_however_often_a_replica_is_flushed():
    rng = random.Random(3)
    confirmed = Confirmed()
    keys = fresh(100, rng)
    confirmed.apply("b", NONE, keys)
    for _ in range(300):
        confirmed.apply("a", NONE, keys)
        confirmed.forget("a")
        sweep(confirmed)
    assert confirmed.match(keys) == {"b": 100}
    assert confirmed._bits <= 3
    assert max(confirmed._table.values()) < 8


def test_flushes_without_a_sweep_between_them_are_harmless():
    keys = fresh(20, random.Random(4))
    confirmed = Confirmed()
    for _ in range(100):
        confirmed.apply("a", NONE, keys)
        confirmed.forget("a")
    confirmed.apply("a", NONE, keys[:7])
    assert confirmed.match(keys) == {"a": 7}
    sweep(confirmed)
    assert confirmed.match(keys) == {"a": 7}
    assert confirmed.size() == 7


def test_equal_masks_are_one_object_for_as_many_replicas_as_there_are():
    keys = fresh(50, random.Random(5))
    confirmed = Confirmed()
    names = [f"replica-{number}" for number in range(100)]
    for name in names:
        for start in range(0, 50, 10):  # as events come
            confirmed.apply(name, NONE, keys[start : start + 10])
    assert confirmed.match(keys) == dict.fromkeys(names, 50)
    assert len({id(mask) for mask in confirmed._table.values()}) == 1
