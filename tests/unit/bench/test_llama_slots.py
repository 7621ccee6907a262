"""The simulated llama.cpp server's cache, against what build 10434 answered with prompts of 600 tokens."""

from array import array

import pytest

from bench.llama_slots import SlotCache, common


def prompt(name, length, shared=0, head=0):
    tokens = [head * 1000 + at for at in range(shared)]
    return array("I", tokens + [name * 1000 + at for at in range(shared, length)])


def ask(cache, tokens):
    slot = cache.take(tokens)
    cache.leave(slot, tokens)
    return slot.cached


@pytest.mark.parametrize(
    ("shared", "second", "again_without", "again_with"),
    [
        (50, 0, 599, 599),
        (100, 100, 100, 599),
        (200, 200, 200, 599),
        (280, 280, 280, 599),
        (320, 320, 320, 320),
        (400, 400, 400, 400),
        (500, 500, 500, 500),
    ],
)
def test_a_b_a_b_as_the_real_one(shared, second, again_without, again_with):
    for aside, again in ((0, again_without), (100_000, again_with)):
        cache = SlotCache(4, aside_tokens=aside)
        a, b = prompt(1, 600), prompt(2, 600, shared, 1)
        assert [ask(cache, each) for each in (a, b, a, b)] == [0, second, again, again]


@pytest.mark.parametrize(("aside", "cached"), [(0, 0), (100_000, 399)])
def test_seven_prompts_on_four_slots_come_back_only_from_memory(aside, cached):
    cache = SlotCache(4, aside_tokens=aside)
    for name in range(7):
        ask(cache, prompt(name, 400))
    assert [ask(cache, prompt(name, 400)) for name in range(7)] == [cached] * 7


def test_busy_slots_serve_nobody():
    cache = SlotCache(2)
    taken = [cache.take(prompt(1, 300)) for _ in range(3)]
    assert [slot and slot.cached for slot in taken] == [0, 0, None]


def test_memory_is_bounded():
    cache = SlotCache(1, aside_tokens=1000)
    for name in range(20):
        ask(cache, prompt(name, 400))
        assert sum(map(len, cache._aside)) <= 1000
    assert ask(cache, prompt(18, 400)) == 399
    assert ask(cache, prompt(3, 400)) == 0


def test_common():
    for shared in (0, 1, 5, 99, 100):
        assert common(prompt(1, 100), prompt(2, 120, shared, 1)) == shared
    assert common(array("I"), prompt(1, 3)) == 0
