"""The policies that prefix_cost is compared with, each in what is its own."""

from random import Random

from policies.base import Replica, Request
from policies.consistent_hash import ConsistentHash
from policies.least_load import LeastLoad
from policies.power_of_two import PowerOfTwo
from policies.prefix_affinity import PrefixAffinity
from policies.round_robin import RoundRobin
from policies.uniform import Uniform

RNG = Random(1)


def test_round_robin_takes_turns_and_starts_with_the_first():
    fleet = [Replica(name) for name in "abc"]
    policy = RoundRobin()
    assert [policy.choose(Request(1), fleet, RNG).replica.name for _ in range(7)] == list("abcabca")
    assert policy.choose(Request(1), fleet[:1], RNG).replica.name == "a"


def test_random_ignores_load():
    fleet = [Replica("a", in_flight=1000), Replica("b")]
    chosen = [Uniform().choose(Request(1), fleet, RNG).replica.name for _ in range(1000)]
    assert 400 < chosen.count("a") < 600


def test_least_load_takes_the_emptiest_then_the_one_with_fewer_tokens_to_prefill():
    fleet = [Replica("a", in_flight=2), Replica("b", in_flight=1, queued_tokens=9), Replica("c", in_flight=1)]
    assert LeastLoad().choose(Request(1), fleet, RNG).replica.name == "c"


def test_power_of_two_never_takes_the_worst_and_sees_only_two():
    fleet = [Replica(f"r{i}", in_flight=i) for i in range(10)]
    chosen = [PowerOfTwo().choose(Request(1), fleet, RNG).replica.in_flight for _ in range(2000)]
    assert max(chosen) == 8
    assert 250 < chosen.count(0) < 550  # one in five pairs has it
    assert {PowerOfTwo(choices=10).choose(Request(1), fleet, RNG).replica.name for _ in range(50)} == {"r0"}


def test_consistent_hash_keeps_a_session_whatever_its_prompt():
    fleet = [Replica(f"r{i}") for i in range(8)]
    policy = ConsistentHash()
    for session in map(str, range(30)):
        decisions = [policy.choose(Request(9, {}, i, session), fleet, RNG) for i in range(5)]
        assert len({decision.replica.name for decision in decisions}) == 1
        assert all(decision.by_session for decision in decisions)


def test_consistent_hash_falls_back_to_the_start_of_the_prompt():
    fleet = [Replica(f"r{i}") for i in range(8)]
    decisions = [ConsistentHash().choose(Request(9, {}, 42), fleet, RNG) for _ in range(5)]
    assert len({decision.replica.name for decision in decisions}) == 1
    assert not any(decision.by_session for decision in decisions)


def test_consistent_hash_bounds_the_load_of_a_hot_key():
    fleet = [Replica(f"r{i}") for i in range(8)]
    policy = ConsistentHash(bound=1.25)
    for _ in range(800):
        policy.choose(Request(9, {}, 42), fleet, RNG).replica.in_flight += 1
    assert max(replica.in_flight for replica in fleet) <= 1.25 * 100 + 1


def test_consistent_hash_moves_only_what_the_bound_turns_away():
    fleet = [Replica(f"r{i}", in_flight=4) for i in range(8)]
    home = ConsistentHash().choose(Request(9, {}, 42), fleet, RNG).replica
    home.in_flight = 8
    second = ConsistentHash().choose(Request(9, {}, 42), fleet, RNG).replica
    assert second is not home
    home.in_flight = 4
    assert ConsistentHash().choose(Request(9, {}, 42), fleet, RNG).replica is home


def test_consistent_hash_with_equal_loads_and_the_tightest_bound_still_finds_room():
    fleet = [Replica(f"r{i}", in_flight=3) for i in range(4)]
    assert ConsistentHash(bound=1.0).choose(Request(9, {}, 42, sequences=0), fleet, RNG).replica in fleet


def test_prefix_affinity_weighs_prefix_queue_and_space():
    a, b = Replica("a", queued_tokens=1000, kv_usage=0.2), Replica("b", kv_usage=0.2)
    policy = PrefixAffinity()
    assert (
        policy.choose(Request(1000, {"a": 900}), [a, b], RNG).replica is a
    )  # 2.7 for the prefix, 2 lost in the queue
    assert policy.choose(Request(1000, {"a": 500}), [a, b], RNG).replica is b
    costs = policy.choose(Request(1000, {"a": 500}), [a, b], RNG).costs
    assert costs == {"a": 1.5 + 2 + 0.4, "b": 3 + 0.4}


def test_prefix_affinity_counts_sequences_where_cache_usage_is_unknown():
    a, b = Replica("a", in_flight=4), Replica("b", in_flight=1)
    assert PrefixAffinity().choose(Request(1000), [a, b], RNG).replica is b


def test_R03_prefix_affinity_keeps_affinity_for_idle_replicas():
    hot = Replica("a", in_flight=60, queued_tokens=160_000)
    assert (
        PrefixAffinity()
        .choose(Request(4000, {"b": 3000}), [hot, Replica("b"), Replica("c")], RNG)
        .replica.name
        == "b"
    )
