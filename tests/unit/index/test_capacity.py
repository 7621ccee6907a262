"""The learned capacity: bounded steps, one incident counted once."""

import pytest

from proxy.index.capacity import DOWN, LEAST, MOST, UP, Capacity


def test_it_starts_at_the_engines_size():
    assert Capacity(1000).blocks == 1000


def test_a_miss_lowers_it_by_one_step_at_most():
    capacity = Capacity(1000)
    capacity.missed(used=5, newer=10, now=20)
    assert capacity.blocks == 1000 * DOWN


def test_a_miss_never_lowers_it_below_what_it_proves():
    capacity = Capacity(1000)
    capacity.missed(used=5, newer=950, now=20)
    assert capacity.blocks == 950
    capacity.missed(used=25, newer=990, now=30)
    assert capacity.blocks == 950, "a miss is never a reason to raise it"


def test_one_incident_counts_once():
    capacity = Capacity(1000)
    capacity.missed(used=5, newer=10, now=20)
    before = capacity.factor
    for used in (3, 12, 20):
        capacity.missed(used=used, newer=10, now=18)
    assert capacity.factor == before
    capacity.missed(used=21, newer=10, now=40)
    assert capacity.factor == before * DOWN


def test_it_stays_within_its_bounds():
    capacity = Capacity(1000)
    for tick in range(1, 200, 2):
        capacity.missed(used=tick, newer=1, now=tick + 1)
    assert capacity.factor == LEAST
    capacity.exceeded()
    assert capacity.factor == LEAST * UP
    for _ in range(200):
        capacity.exceeded()
    assert capacity.factor == MOST


def test_a_tiny_cache_keeps_a_block():
    capacity = Capacity(1)
    capacity.missed(used=1, newer=0, now=2)
    assert capacity.blocks == 1


def test_only_another_size_voids_what_was_learned():
    capacity = Capacity(1000)
    capacity.missed(used=5, newer=10, now=20)
    capacity.resize(1000)
    assert capacity.factor == DOWN
    capacity.resize(500)
    assert capacity.factor == 1.0
    with pytest.raises(ValueError, match="at least 1 block"):
        capacity.resize(0)
