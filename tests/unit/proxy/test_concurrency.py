"""The limit of a replica: where it starts, and that it follows what waiting does to first tokens."""

from collections import deque

import pytest

from policies.base import Replica
from proxy.concurrency import LEAST, UNKNOWN, Adaptive, Allowance, Fixed, Unlimited, any_room, has_room, limit
from proxy.description import Description
from proxy.fleet import Fleet

RATE = 10_000.0


def test_where_a_limit_starts():
    assert limit("none", 8, 0.0).value == float("inf")
    assert limit(7, 100, 0.0).value == 7.0
    assert limit("adaptive", 96, 0.0).value == 96.0
    assert limit("adaptive", None, 0.0).value == UNKNOWN
    assert {type(limit(how, 1, 0.0)) for how in ("none", "adaptive", 3)} == {Unlimited, Adaptive, Fixed}


def engine(adaptive: Adaptive, *, slots: int, load: int, seconds: float, decode: float = 1.0) -> list[float]:
    """A replica of `slots` sequences that prefills one 1,000-token prompt after the other and then decodes.

    `load` requests are always there; as many of them as the limit allows are at the replica, the others wait
    in front of it. What the limit was after each first token.
    """
    now, prefill_free = 0.0, 0.0
    waiting: deque[tuple[float, float]] = deque()  # sent at, tokens ahead
    decoding: deque[float] = deque()  # when each ends
    seen = []
    while now < seconds:
        while len(waiting) + len(decoding) < min(load, int(adaptive.at(len(decoding)))):
            waiting.append((now, 1000.0 * len(waiting)))
        start = max(now, prefill_free)
        if len(decoding) >= slots or not waiting:
            now = start = max(start, decoding[0])
        while decoding and decoding[0] <= start:
            decoding.popleft()
        now = start
        if waiting and len(decoding) < slots:
            sent_at, ahead = waiting.popleft()
            now = prefill_free = start + 0.02 + 1000 / RATE
            decoding.append(now + decode)
            adaptive.observe(now, sent_at, 1000.0, ahead, len(waiting) + len(decoding))
            seen.append(adaptive.value)
    return seen


def test_a_limit_that_idles_a_replica_rises_by_itself():
    adaptive = Adaptive(64, 0.0)
    adaptive.value = 2.0
    seen = engine(adaptive, slots=64, load=100, seconds=60.0)
    # 0.12 s of prefill and 1 s of decoding: eight or nine decode while one is prefilled.
    assert seen[-1] >= 9.0


@pytest.mark.parametrize("start", [16, 64, 256])
def test_a_limit_that_only_makes_a_queue_falls_to_what_keeps_the_replica_busy(start):
    adaptive = Adaptive(start, 0.0)
    tail = engine(adaptive, slots=64, load=100, seconds=200.0)[-100:]
    assert min(tail) > 8.0
    assert max(tail) < 16.0


def test_waiting_for_a_slot_counts_like_waiting_for_a_prefill():
    adaptive = Adaptive(256, 0.0)
    tail = engine(adaptive, slots=4, load=400, seconds=200.0)[-100:]
    assert min(tail) >= 4.0
    assert max(tail) < 12.0


def test_it_never_rises_above_the_slots_that_an_engine_has():
    adaptive = Adaptive(4, 0.0)
    assert max(engine(adaptive, slots=4, load=5, seconds=60.0)) == 4.0
    unknown = Adaptive(None, 0.0)
    for second in range(1, 100):
        unknown.observe(second, second - 0.1, 1000, 0, int(unknown.value))
    assert unknown.value > UNKNOWN


def test_a_limit_that_holds_nothing_back_stays():
    adaptive = Adaptive(None, 0.0)
    assert set(engine(adaptive, slots=64, load=5, seconds=60.0)) == {UNKNOWN}


def test_a_burst_of_slow_first_tokens_costs_a_step_and_never_the_minimum():
    adaptive = Adaptive(30, 0.0)
    adaptive.observe(0.1, 0.0, 1000, 0, 30)
    for i in range(1000):
        adaptive.observe(10.0 + i, i, 1000, 5000, 30)
    assert adaptive.value == LEAST
    assert [adaptive.at(running) for running in (0, 16, 24, 100)] == [LEAST, 19.0, 28.0, 30.0]


def test_what_was_sent_under_the_limit_before_says_nothing_of_this_one():
    adaptive = Adaptive(100, 0.0)
    adaptive.observe(0.1, 0.0, 1000, 0, 100)
    for _ in range(7):
        adaptive.observe(1.0, 0.5, 1000, 3000, 100)
    fallen = adaptive.value
    assert fallen < 100
    for _ in range(50):
        adaptive.observe(2.0, 0.9, 1000, 3000, 100)
    assert adaptive.value == fallen
    for _ in range(8):
        adaptive.observe(9.0, 1.5, 1000, 3000, 100)
    assert adaptive.value < fallen


def test_a_time_that_runs_backwards_is_ignored():
    adaptive = Adaptive(10, 5.0)
    for _ in range(100):
        adaptive.observe(4.0, 4.0, 0, 0, 10)
    assert adaptive.value == 10


def test_room():
    view = Replica("a", in_flight=7, queued_tokens=5000, prefill_rate=10_000, limit=10)
    assert has_room(view, 3)
    assert not has_room(view, 4)
    assert has_room(view, 2, Allowance(0.9))
    assert not has_room(view, 3, Allowance(0.9))
    assert has_room(view, 1, Allowance(0.9, 0.5))
    assert not has_room(view, 1, Allowance(0.9, 0.4))
    assert has_room(Replica("b", limit=4), 100, Allowance(0.5, 0.0))
    assert any_room([view, Replica("b", limit=4)], 100)
    assert not any_room([view], 100)
    assert not any_room([], 1)


def test_the_fleet_gives_each_replica_its_limit_and_tells_of_room():
    now, told = 0.0, []
    fleet = Fleet(lambda: now)
    before = fleet.add("a", "http://a", Description("vllm", {"m": None}, max_seqs=8))
    assert before.view.limit == float("inf")
    fleet.limit("adaptive")
    after = fleet.add("b", "http://b")
    assert (before.view.limit, after.view.limit) == (8.0, UNKNOWN)
    fleet.describe("b", Description("vllm", {"m": None}, max_seqs=4))
    assert after.view.limit == 4.0
    fleet.freed = lambda: told.append(after.view.in_flight)
    reservation = fleet.reserve("b", 100, 2, stream=True)
    now = 1.0
    reservation.first_token(now)
    reservation.release()
    reservation.release()
    assert told == [2, 0]
    fleet.mark("b", up=True)
    assert told == [2, 0, 0]
    fleet.limit(3)
    assert {replica.view.limit for replica in fleet.replicas.values()} == {3.0}
