"""prefix_cost: the formula, its ties, and the cases of other routers' bug reports that a policy decides."""

from random import Random

import pytest

from policies.base import Replica, Request
from policies.prefix_cost import FEW_TOKENS, PrefixCost

RNG = Random(1)


def choose(request, *fleet, **params):
    return PrefixCost(**params).choose(request, fleet, RNG).replica.name


def place(policy, request, fleet, rng):
    """Route a request and do what the fleet would: its whole life is over before the next one comes."""
    replica = policy.choose(request, fleet, rng).replica
    replica.recent_tokens += request.tokens - request.matched.get(replica.name, 0)
    return replica.name


def test_the_cost_is_the_documented_formula():
    a = Replica("a", 12, 8, 3000, 10_000, 0.05, slots=10, slot_time=4.0, kv_usage=0.5, recent_tokens=2000)
    b = Replica("b", prefill_rate=30_000, kv_usage=0.0, recent_tokens=3000)
    policy = PrefixCost(alpha=3.0, beta=0.1, balance=0.25, even=2.0, decode_share=16.0)
    costs = policy.choose(Request(6000, {"a": 2000, "b": 400}), [a, b], RNG).costs
    first_token = (3000 + 4000 * (1 + 8 / 16)) / 10_000 + 0.05 + 3 * 4.0 / 10
    share = 4 * 2000 / 6000 - 1
    again = 3.0 * share * 1600 / 20_000 / (12 - 8) ** 3
    assert costs["a"] == pytest.approx(first_token + 0.25 * 2000 / 20_000 + 0.1 * 0.5)
    uneven = 2.0 * (3000 - 2000) / (2500 + FEW_TOKENS) * 5600 / 20_000
    free = 3000 / 6000  # nobody waits at b, which has done little
    assert costs["b"] == pytest.approx(5600 / 30_000 + 0.25 * 3000 / 20_000 + uneven + again * free)


def test_who_waits_at_the_holder_and_nowhere_else_makes_a_copy_cheaper():
    def charge(*waiting):
        fleet = [Replica(name, in_flight=each) for name, each in zip("abc", waiting, strict=True)]
        fleet[2].recent_tokens = 4000
        request = Request(4000, {"a": 4000, "b": 4000})
        costs = PrefixCost(alpha=8.0, balance=0.0, even=0.0).choose(request, fleet, RNG).costs
        return costs["c"] - 4000 / 8000

    assert charge(0, 0, 0) == charge(1, 9, 0) == pytest.approx(8.0 * 4000 / 8000)
    assert charge(4, 9, 0) == charge(4, 9, 1) == pytest.approx(8.0 * 4000 / 8000 / 4**3)
    assert charge(4, 9, 2) == pytest.approx(8.0 * 4000 / 8000 / 2**3)
    assert charge(4, 9, 4) == charge(4, 9, 8) == charge(0, 0, 0)


def test_a_copy_on_a_replica_that_has_done_nothing_is_free_while_only_holders_have_queues():
    def charge(recent, elsewhere=0, at_holder=1):
        a, b, c = Replica("a", at_holder), Replica("b", elsewhere), Replica("c", recent_tokens=recent)
        policy = PrefixCost(alpha=8.0, balance=0.0, even=0.0)
        costs = policy.choose(Request(4000, {"a": 4000}), [a, b, c], RNG).costs
        return costs["c"] - 4000 / 8000

    full = pytest.approx(8.0 * 4000 / 8000)
    assert charge(0) == pytest.approx(0.0)
    assert charge(1000) == pytest.approx(1.0)
    assert charge(4000) == charge(50_000) == full
    assert charge(0, elsewhere=1) == charge(0, at_holder=0) == full


def test_a_prefix_that_is_hot_from_the_start_is_everywhere_at_once():
    policy, fleet = PrefixCost(), [Replica(f"r{i}") for i in range(8)]
    matched: dict[str, int] = {}
    for _ in range(8):
        replica = policy.choose(Request(8400, dict(matched), 5), fleet, RNG).replica
        replica.in_flight += 1
        replica.queued_tokens += 8400 - matched.get(replica.name, 0)
        replica.recent_tokens += 8400 - matched.get(replica.name, 0)
        matched[replica.name] = 7000
    assert len(matched) == 8


def test_queues_everywhere_scatter_no_prefix():
    request = Request(8000, {"a": 7900})
    holder, other = Replica("a", in_flight=9, queued_tokens=60_000), Replica("b", queued_tokens=40_000)
    assert choose(request, holder, other) == "b"
    other.in_flight = 8
    assert choose(request, holder, other) == "a"


def test_a_long_prompt_waits_a_little_for_a_replica_that_has_done_less():
    def busy(queued, recent=1_030_000):
        return Replica("busy", recent_tokens=recent), Replica("rested", 1, 0, queued, recent_tokens=1_000_000)

    policy = {"balance": 0.0, "tie": 0.0, "tie_seconds": 0.0}
    assert choose(Request(20_000), *busy(6_000), **policy) == "rested"
    assert choose(Request(20_000), *busy(9_000), **policy) == "busy"
    assert choose(Request(20_000), *busy(6_000, recent=1_010_000), **policy) == "busy"
    assert choose(Request(2_000), *busy(6_000), **policy) == "busy"


def test_a_conversation_stays_whatever_its_replica_has_done():
    home, rested = Replica("home", recent_tokens=5e6), Replica("rested", recent_tokens=1e6)
    assert choose(Request(20_000, {"home": 19_000}), home, rested) == "home"
    assert choose(Request(20_000), home, rested) == "rested"


def test_equals_take_turns():
    policy, fleet = PrefixCost(), [Replica(name) for name in "abcd"]
    held = dict.fromkeys("abcd", 7000)
    names = [place(policy, Request(8400, held, affinity=7), fleet, RNG) for _ in range(40)]
    assert all(len(set(names[turn : turn + 4])) == 4 for turn in range(0, 40, 4))


def test_what_is_held_in_most_of_the_prompt_counts_in_full():
    costs = PrefixCost(alpha=3.0).choose(Request(8000, {"a": 4000}), [Replica("a"), Replica("b")], RNG).costs
    assert costs == pytest.approx({"a": 4000 / 8000, "b": 8000 / 8000 + 3.0 * 4000 / 8000})


def test_the_longest_prefix_wins_on_an_idle_fleet():
    assert choose(Request(8000, {"a": 2000, "b": 6000}), Replica("a"), Replica("b"), Replica("c")) == "b"


def test_a_slow_replica_gets_less():
    assert (
        choose(Request(8000), Replica("slow", prefill_rate=4000), Replica("fast", prefill_rate=16_000))
        == "fast"
    )


def test_a_full_hit_does_not_join_a_replica_whose_slots_are_taken():
    full = Replica("full", in_flight=300, running=256, slots=256, slot_time=20.0)
    idle = Replica("idle", slots=256)
    request = Request(4000, {"full": 3984})
    assert choose(request, full, idle) == "idle"
    full.in_flight = full.running = 200
    assert choose(request, full, idle) == "full"


def test_a_replica_that_does_not_tell_its_cache_usage_is_not_taken_for_empty():
    fleet = [Replica("quiet"), Replica("half", kv_usage=0.5), Replica("free", kv_usage=0.0)]
    costs = PrefixCost(beta=1.0).choose(Request(100), fleet, RNG).costs
    assert costs["free"] < costs["quiet"] < costs["half"]
    assert costs["quiet"] == pytest.approx(costs["free"] + 0.25)


def test_ties_go_to_the_larger_hit_then_the_emptier_then_the_rested():
    a, b = Replica("a", in_flight=1, running=1), Replica("b")
    assert choose(Request(4000, {"a": 32}), a, b) == "a"
    assert choose(Request(0), a, b) == "b"
    assert choose(Request(50), Replica("a", in_flight=1), Replica("b", in_flight=9, running=9)) == "b"
    assert choose(Request(0), Replica("a", recent_tokens=90), Replica("b", recent_tokens=80)) == "b"


def test_what_remains_tied_is_decided_alike_by_every_proxy():
    names = ["a", "b", "c", "d"]
    for affinity in range(50):
        chosen = {choose(Request(500, {}, affinity), *map(Replica, order)) for order in (names, names[::-1])}
        assert len(chosen) == 1
    spread = [choose(Request(500, {}, affinity), *map(Replica, names)) for affinity in range(400)]
    assert all(60 < spread.count(name) < 140 for name in names)


def test_alpha_holds_on_to_a_cache_that_the_time_to_first_token_would_leave():
    busy, idle = Replica("busy", queued_tokens=3000), Replica("idle")
    request = Request(4000, {"busy": 2000})
    assert choose(request, busy, idle, alpha=0.0) == "idle"
    assert choose(request, busy, idle, alpha=1.0) == "busy"


@pytest.mark.parametrize("order", ["in turn", "shuffled", "one after the other"])
@pytest.mark.parametrize("header", [16, 64, 128])
def test_R02_sequential_sessions_with_a_short_header_spread_and_stay(header, order):
    policy, rng = PrefixCost(), Random(2)
    fleet = [Replica("a"), Replica("b")]
    headers: set[str] = set()
    homes: dict[int, list[str]] = {session: [] for session in range(20)}
    held: dict[int, dict[str, int]] = {session: {} for session in range(20)}
    turns = [i % 20 for i in range(448)]
    if order == "shuffled":
        rng.shuffle(turns)
    elif order == "one after the other":
        turns.sort()
    assert len(turns) == 448
    for session in turns:
        tokens = 600 + 150 * len(homes[session])
        matched = dict.fromkeys(headers, header) | held[session]
        name = place(policy, Request(tokens, matched, affinity=77), fleet, rng)
        headers.add(name)
        held[session][name] = tokens - tokens % 16
        homes[session].append(name)
    assert all(len(set(visited)) == 1 for visited in homes.values())
    sessions = [visited[0] for visited in homes.values()]
    requests = [name for visited in homes.values() for name in visited]
    for name in "ab":
        assert sessions.count(name) >= 5
        assert requests.count(name) >= 0.25 * 448


def test_R02_unrelated_requests_at_equal_load_split_evenly():
    policy, rng = PrefixCost(), Random(3)
    fleet = [Replica("a"), Replica("b")]
    chosen = [place(policy, Request(1000, {}, rng.getrandbits(64)), fleet, rng) for _ in range(1000)]
    assert 450 <= chosen.count("a") <= 550


def test_R02_without_recent_work_equal_loads_still_split_evenly():
    policy, rng = PrefixCost(), Random(3)
    fleet = [Replica("a"), Replica("b")]
    chosen = [
        policy.choose(Request(1000, {}, rng.getrandbits(64)), fleet, rng).replica.name for _ in range(1000)
    ]
    assert 450 <= chosen.count("a") <= 550


def test_R03_one_hot_replica_diverts_only_the_requests_that_prefer_it():
    hot = Replica("a", in_flight=60, running=20, queued_tokens=160_000)
    idle, cold = Replica("b"), Replica("c")
    assert choose(Request(4000, {"b": 3000}), hot, idle, cold) == "b"
    assert choose(Request(4000, {"a": 3000, "b": 1500}), hot, idle, cold) == "b"


def test_R05_a_burst_counts_from_dispatch():
    polled = {"a": 0, "b": 1}
    fleet = [Replica(name, in_flight=n, running=n) for name, n in polled.items()]
    policy = PrefixCost()
    for i in range(8):
        replica = policy.choose(Request(24_000, {}, i), fleet, RNG).replica
        replica.in_flight += 1
        replica.queued_tokens += 24_000
    sent = {replica.name: replica.in_flight - polled[replica.name] for replica in fleet}
    assert sent == {"a": 4, "b": 4}


def test_R07_the_longest_match_wins_and_a_ghost_is_ignored():
    a, b = Replica("a"), Replica("b")
    assert choose(Request(2000, {"a": 128, "b": 1024}), a, b) == "b"
    assert choose(Request(8000, {"ghost": 4096, "b": 64}), a, b) == "b"


@pytest.mark.parametrize("count", [8, 100])
def test_a_hot_prefix_spills_when_waiting_costs_more_than_computing(count):
    warm, *others = [Replica(f"r{i}", running=1, in_flight=1) for i in range(count)]
    request = Request(6000, {"r0": 5984}, affinity=5)
    warm.in_flight, warm.queued_tokens = 11, 5000
    assert choose(request, warm, *others) == "r0"
    warm.queued_tokens = 16_000
    assert choose(request, warm, *others) != "r0"


def test_one_long_request_ahead_is_waited_for_where_many_short_ones_are_not():
    warm, idle = Replica("warm", queued_tokens=20_000), Replica("idle", recent_tokens=6000)
    request = Request(6000, {"warm": 5000})
    warm.in_flight = 1
    assert choose(request, warm, idle) == "warm"
    warm.in_flight = 20
    assert choose(request, warm, idle) == "idle"


def test_a_hot_prefix_that_arrives_in_a_burst_reaches_every_replica():
    policy = PrefixCost()
    fleet = [Replica(f"r{i}") for i in range(8)]
    matched: dict[str, int] = {}
    for i in range(200):
        replica = policy.choose(Request(7000, dict(matched), 5), fleet, RNG).replica
        replica.in_flight += 1
        replica.queued_tokens += 7000 - matched.get(replica.name, 0)
        matched[replica.name] = 5600
        assert i < 100 or max(r.queued_tokens for r in fleet) < 2 * min(r.queued_tokens for r in fleet)
    assert len(matched) == 8


def test_a_large_fleet_finds_the_only_replica_that_is_warm():
    fleet = [Replica(f"r{i}") for i in range(1000)]
    for warm in range(0, 1000, 37):
        assert choose(Request(4000, {f"r{warm}": 3000}, warm), *fleet) == f"r{warm}"


def test_a_large_fleet_stays_balanced_under_unrelated_prompts():
    policy, rng = PrefixCost(), Random(4)
    fleet = [Replica(f"r{i}") for i in range(200)]
    for _ in range(4000):
        replica = policy.choose(Request(1000, {}, rng.getrandbits(64)), fleet, rng).replica
        replica.in_flight += 1
        replica.queued_tokens += 1000
    assert max(replica.in_flight for replica in fleet) <= 24
