"""Hashing that proxies agree on, and the shortlist of a large fleet."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from policies.base import Replica
from policies.scoring import hash_text, least_loaded, owner, shortlist

FLEET = [Replica(f"r{i}") for i in range(100)]


@given(st.integers(0, 2**64 - 1), st.randoms(use_true_random=False))
def test_an_owner_does_not_depend_on_order(key, rng):
    shuffled = FLEET[:]
    rng.shuffle(shuffled)
    assert owner(key, shuffled) is owner(key, FLEET)


def test_only_the_keys_of_a_replica_that_leaves_move():
    keys = [Random(1).getrandbits(64) + i for i in range(500)]
    gone = FLEET[0]
    for key in keys:
        before = owner(key, FLEET)
        assert before is gone or owner(key, FLEET[1:]) is before


def test_a_session_hashes_whatever_it_contains():
    assert hash_text("\ud83d") != hash_text("")
    assert hash_text("a") == hash_text("a") != hash_text("b")


def test_least_loaded_breaks_ties_evenly_and_counts_tokens():
    fleet = [Replica("a", 1), Replica("b", 0, queued_tokens=5), Replica("c"), Replica("d")]
    chosen = [least_loaded(fleet, Random(seed)).name for seed in range(400)]
    assert set(chosen) == {"c", "d"}
    assert 150 < chosen.count("c") < 250


@given(
    st.dictionaries(st.sampled_from([f"r{i}" for i in range(120)]), st.integers(1, 100_000)),
    st.integers(0, 2**64 - 1),
    st.integers(2, 90),
    st.integers(0, 1000),
)
def test_a_shortlist_is_bounded_distinct_and_has_the_longest_prefix(matched, key, count, seed):
    chosen = shortlist(FLEET, matched, key, count, Random(seed))
    names = [replica.name for replica in chosen]
    assert 1 <= len(names) == len(set(names)) <= count
    here = {name: tokens for name, tokens in matched.items() if name in {r.name for r in FLEET}}
    if here:
        assert max(here.get(name, 0) for name in names) == max(here.values())


def test_a_shortlist_meets_a_cold_prefix_again():
    first = {replica.name for replica in shortlist(FLEET, {}, 1234567, 32, Random(1))}
    second = {replica.name for replica in shortlist(FLEET, {}, 1234567, 32, Random(2))}
    other = {replica.name for replica in shortlist(FLEET, {}, 2**63 + 99, 32, Random(3))}
    assert len(first & second) >= 8
    assert len(first & second) > len(first & other)


def test_a_shortlist_reaches_every_replica():
    seen = set()
    for seed in range(400):
        seen |= {r.name for r in shortlist(FLEET, {}, Random(seed).getrandbits(64), 8, Random(seed))}
    assert len(seen) == len(FLEET)
