"""The sketch of shared prefixes: what is shared stands out, at its depth, and it never grows."""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from random import Random

import pytest

from proxy.sketch import FADE_SECONDS, FIRST_TOKENS, LEVELS, PLACES, Sketch

BLOCK = 16
FIRST = FIRST_TOKENS // BLOCK


def prompt(prefix: int, shared: int, rng: Random, unique: int = 40) -> array[int]:
    """`shared` blocks of prefix number `prefix`, then as many of its own."""
    head = [prefix * 1_000_000 + block for block in range(shared)]
    return array("Q", head + [rng.getrandbits(64) for _ in range(unique)])


def rates(sketch: Sketch, least: float = 0.05) -> dict[tuple[int, int], float]:
    return {(each.key, each.blocks): each.rate for each in sketch.shared(least)}


def test_a_shared_prefix_is_found_at_the_greatest_depth_that_most_of_its_prompts_share():
    sketch, rng = Sketch(), Random(1)
    for _ in range(50):
        sketch.add(prompt(1, 75, rng), BLOCK)
    assert list(rates(sketch)) == [(1_000_000 + 63, 64)]


def test_two_prefixes_with_one_header_are_found_and_the_header_is_not():
    sketch, rng = Sketch(), Random(1)
    for number in range(60):
        header = array("Q", range(1, FIRST + 1))
        sketch.add(header + prompt(1 + number % 2, 100, rng), BLOCK)
    found = rates(sketch)
    assert sorted(blocks for _, blocks in found) == [64, 64]
    assert {key // 1_000_000 for key, _ in found} == {1, 2}


def test_a_header_of_many_prompts_is_found_where_none_of_them_is_most_of_it():
    sketch, rng = Sketch(), Random(1)
    for _ in range(60):
        sketch.add(array("Q", range(1, FIRST + 1)) + prompt(0, 0, rng), BLOCK)
    assert list(rates(sketch)) == [(FIRST, FIRST)]


def test_prompts_that_share_nothing_are_not_found():
    sketch, rng = Sketch(), Random(1)
    for _ in range(500):
        sketch.add(prompt(0, 0, rng), BLOCK)
    assert rates(sketch) == {}


def test_a_prefix_seen_twice_is_not_shared_yet():
    sketch, rng = Sketch(), Random(1)
    for _ in range(2):
        sketch.add(prompt(1, 8, rng), BLOCK, prompts=100)
    assert rates(sketch) == {}


def test_the_rate_is_that_of_the_last_seconds_and_fades():
    sketch, rng = Sketch(), Random(1)
    for _ in range(1000):
        sketch.fade(0.1)
        sketch.add(prompt(1, 8, rng), BLOCK)
    (rate,) = rates(sketch).values()
    assert rate == pytest.approx(10, rel=0.02)
    sketch.fade(FADE_SECONDS)
    (faded,) = rates(sketch).values()
    assert faded == pytest.approx(rate / 2.718, rel=0.01)
    for _ in range(200):
        sketch.fade(1e9)
    assert rates(sketch) == {}


def test_a_prompt_may_stand_for_several():
    sketch, rng = Sketch(), Random(1)
    for _ in range(10):
        sketch.add(prompt(1, 8, rng), BLOCK, prompts=7)
    assert list(rates(sketch).values()) == [pytest.approx(70 / FADE_SECONDS)]


def test_a_hot_prefix_is_found_in_a_flood_of_prompts_that_share_nothing():
    sketch, rng = Sketch(), Random(1)
    for _ in range(4000):
        sketch.fade(0.001)
        sketch.add(prompt(1, 75, rng) if rng.random() < 0.05 else prompt(0, 0, rng), BLOCK)
        assert len(sketch) <= 2 * LEVELS * PLACES
    found = rates(sketch)
    assert list(found) == [(1_000_000 + 63, 64)]
    assert found[1_000_063, 64] == pytest.approx(4000 * 0.05 / FADE_SECONDS, rel=0.35)


def test_blocks_whose_size_is_an_estimate_are_counted_together():
    sketch, rng = Sketch(), Random(1)
    for number in range(60):
        sketch.add(prompt(1, 75, rng), 14.0 + number % 8)
    assert (1_000_063, 64) in rates(sketch)


@pytest.mark.parametrize("block_tokens", [1.0, 7.3, 16.0, 128.0, 4096.0])
def test_blocks_of_any_size_are_counted_from_about_the_same_depth(block_tokens):
    sketch, rng = Sketch(), Random(1)
    for _ in range(50):
        sketch.add(prompt(1, 200, rng), block_tokens)
    depths = [each.blocks for each in sketch.shared(0.0)]
    assert len(depths) == 1
    assert depths[0] * block_tokens >= FIRST_TOKENS


def test_short_and_empty_prompts_are_nothing():
    sketch = Sketch()
    for _ in range(10):
        sketch.add(array("Q"), BLOCK)
        sketch.add(array("Q", range(FIRST - 1)), BLOCK)
        sketch.add(array("Q", range(100)), 1e-9)
    assert len(sketch) == 0
