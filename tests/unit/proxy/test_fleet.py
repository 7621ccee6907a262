"""Load is given back exactly once, rates are learned from streams only, tests run on a virtual clock."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.description import Description
from proxy.fleet import RECENT_SECONDS, Fleet
from proxy.learning import FleetLine, ReplicaRate
from proxy.replica import USAGE_WITHOUT_CACHED


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    fleet = Fleet(clock)
    for name in ("b", "a"):
        fleet.add(name, f"http://{name}", Description(models={"m": None, "lora": "m"}))
        fleet.mark(name, up=True)
    return fleet


def load(fleet: Fleet, name: str) -> tuple[int, int, int]:
    view = fleet.replicas[name].view
    return view.in_flight, view.running, view.queued_tokens


def test_candidates_are_those_up_that_serve_the_model(fleet: Fleet):
    assert [view.name for view in fleet.candidates("m")] == ["a", "b"]
    assert fleet.candidates("other") == []
    assert [view.name for view in fleet.candidates("")] == ["a", "b"]
    assert fleet.mark("a", up=False)
    assert not fleet.mark("a", up=False)
    assert [view.name for view in fleet.candidates("lora")] == ["b"]
    fleet.remove("b")
    assert fleet.candidates("m") == []


def test_names_that_nobody_serves_leave_nothing_behind(fleet: Fleet):
    for number in range(1000):
        fleet.candidates(f"unknown-{number}")
    assert len(fleet._serving) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["token", "release"])), max_size=40))
def test_L01_load_returns_to_what_it_was_whatever_the_order(steps):
    clock = Clock()
    fleet = Fleet(clock)
    fleet.add("a", "http://a")
    held = [fleet.reserve("a", 10 * n, n + 1, stream=n % 2 == 0) for n in range(6)]
    for index, step in steps:
        clock.now += 0.1
        if step == "token":
            held[index].first_token(clock.now)
        else:
            held[index].release()
        assert min(load(fleet, "a")) >= 0
        fleet.tick()
    for reservation in held:
        reservation.release()
        reservation.release()
    assert load(fleet, "a") == (0, 0, 0)
    assert not fleet.replicas["a"].unseen


def test_a_first_token_moves_load_from_prefill_to_decode(fleet: Fleet, clock: Clock):
    reservation = fleet.reserve("a", 500, 2, stream=True)
    assert load(fleet, "a") == (2, 0, 500)
    clock.now += 1
    reservation.first_token(clock.now)
    reservation.first_token(clock.now)
    assert load(fleet, "a") == (2, 2, 0)


def test_an_answer_in_one_piece_leaves_prefill_when_it_is_overdue_and_teaches_nothing(
    fleet: Fleet, clock: Clock
):
    rate = fleet.replicas["a"].view.prefill_rate
    fleet.reserve("a", 800, 1, stream=False)
    clock.now += 0.1
    fleet.tick()
    assert load(fleet, "a") == (1, 0, 800)
    clock.now += 10
    fleet.tick()
    assert load(fleet, "a") == (1, 1, 0)
    assert fleet.replicas["a"].view.prefill_rate == rate


def test_recent_work_fades(fleet: Fleet, clock: Clock):
    fleet.reserve("a", 1000, 1, stream=True).release()
    assert fleet.replicas["a"].view.recent_tokens == 1000
    for _ in range(10 * int(RECENT_SECONDS)):
        clock.now += 1
        fleet.tick()
    assert fleet.replicas["a"].view.recent_tokens == pytest.approx(1000 * exp(-10))


def test_a_rate_is_learned_and_bounded():
    line = FleetLine()
    for number in range(200):
        tokens = 200 * (number % 10)
        line.observe(tokens, 0.05 + tokens / 2000)
    assert line.tokens_per_second == pytest.approx(2000, rel=0.05)
    assert line.base_seconds == pytest.approx(0.05, abs=0.02)
    for _ in range(500):
        line.observe(1000, 0.0)
        line.observe(10, 100.0)
    assert 50 <= line.tokens_per_second <= 1e6
    assert 0 <= line.base_seconds <= 10


def test_a_replica_is_believed_as_fast_as_the_fleet_until_and_unless_it_shows_otherwise():
    line, slow, unseen = FleetLine(), ReplicaRate(), ReplicaRate()
    for number in range(300):
        tokens = 100 * (number % 20)
        line.observe(tokens, 0.02 + tokens / 16000)
        slow.observe(tokens, 0.02 + tokens / 4000, line)
    assert unseen.tokens_per_second(line) == pytest.approx(16000, rel=0.1)
    assert slow.tokens_per_second(line) == pytest.approx(4000, rel=0.25)
    slow.fade(1e-9)
    assert slow.tokens_per_second(line) == pytest.approx(16000, rel=0.1)


def test_S07_a_replica_that_never_reports_cached_tokens_is_known_for_it(fleet: Fleet):
    replica = fleet.replicas["a"]
    for _ in range(USAGE_WITHOUT_CACHED):
        assert replica.reports_cached is None
        replica.saw_usage(cached=False)
    assert replica.reports_cached is False
    replica.saw_usage(cached=True)
    for _ in range(100):
        replica.saw_usage(cached=False)
    assert replica.reports_cached is True
    fleet.restarted("a")
    assert replica.reports_cached is None
