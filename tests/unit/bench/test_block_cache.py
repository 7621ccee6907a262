"""The block cache: pinned blocks stay, tails go before heads, a block never outlives its parent."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.block_cache import BlockCache, OutOfBlocksError


def hold(cache, keys):
    for key in keys:
        cache.pin(key)


def give_back(cache, keys):
    for key in reversed(keys):
        cache.release(key)


def test_a_block_is_found_until_its_room_is_needed():
    cache = BlockCache(3)
    hold(cache, [1, 2])
    give_back(cache, [1, 2])

    assert cache.match([1, 2, 9], limit=3) == 2
    hold(cache, [7, 8])

    assert cache.match([1, 2], limit=2) == 1


def test_the_tail_is_evicted_before_the_head():
    cache = BlockCache(4)
    hold(cache, [1, 2, 3])
    give_back(cache, [1, 2, 3])
    hold(cache, [10, 11])

    assert [key in cache for key in (1, 2, 3)] == [True, True, False]


def test_pinned_blocks_are_never_evicted():
    cache = BlockCache(2)
    hold(cache, [1, 2])

    with pytest.raises(OutOfBlocksError):
        cache.pin(3)
    assert cache.match([1, 2], limit=2) == 2


def test_the_least_recently_used_chain_goes_first():
    cache = BlockCache(2)
    for keys in ([1], [2], [1]):
        hold(cache, keys)
        give_back(cache, keys)
    cache.pin(3)

    assert (1 in cache, 2 in cache) == (True, False)


def test_a_block_held_twice_stays_until_both_let_go():
    cache = BlockCache(1)
    cache.pin(1)
    cache.pin(1)
    cache.release(1)

    assert cache.pinned == 1
    cache.release(1)
    assert (cache.pinned, cache.evictable) == (0, 1)


def test_it_is_not_cleared_while_blocks_are_held():
    cache = BlockCache(2)
    cache.pin(1)

    assert cache.clear() is False
    assert 1 in cache
    cache.release(1)
    assert cache.clear() is True
    assert 1 not in cache


def test_matching_stops_at_a_gap_and_at_the_limit():
    cache = BlockCache(5)
    hold(cache, [1, 2, 4])

    assert cache.match([1, 2, 3, 4], limit=4) == 2
    assert cache.match([1, 2], limit=1) == 1


# A tree of chains: key = (parent key) * 3 + child, root 1. Any two chains share exactly their common path.
def chain(path):
    keys, key = [], 1
    for child in path:
        key = key * 3 + child
        keys.append(key)
    return keys


steps = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=4)), max_size=30)


@settings(max_examples=150, deadline=None)
@given(steps=steps, blocks=st.integers(4, 10))
def test_a_cached_block_always_has_its_parent(steps, blocks):
    cache, held = BlockCache(blocks), []
    for starts, path in steps:
        keys = chain(path)
        if starts and cache.pinned + len(keys) <= blocks:
            hold(cache, keys)
            held.append(keys)
        elif held:
            give_back(cache, held.pop(0))
        everything = {*cache._references, *cache._evictable}
        assert all(key // 3 in everything for key in everything if key // 3 != 1)
        assert cache.pinned + cache.evictable <= blocks
