"""What breaker and caution do to routing: who is a candidate, who is tried, who gets less."""

from array import array
from math import inf
from random import Random

import pytest

from policies import registry
from proxy.breaker import FAILURES, SHORTEST, TRIAL_SECONDS, State
from proxy.caution import FIRST, PRESSED_SECONDS, RAMP_SECONDS
from proxy.description import Description
from proxy.fleet import TICK_SECONDS, Fleet
from proxy.index.memory import MemoryIndex
from proxy.router import Lease, Router, RouteRequest


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["prefix_cost", "round_robin", "least_load", "consistent_hash"])
def router(clock: Clock, request: pytest.FixtureRequest) -> Router:
    fleet = Fleet(clock)
    for name in "abc":
        fleet.add(name, f"http://{name}", Description(models={"m": None}))
        fleet.mark(name, up=True)
    return Router(fleet, MemoryIndex(), registry.create(request.param, {}), Random(1))


def send(router: Router, *, stream: bool = True, exclude: tuple[str, ...] = ()) -> Lease:
    return router.route(RouteRequest("m", tokens=100, affinity=7, stream=stream), exclude)


def end(lease: Lease, *, healthy: bool | None) -> None:
    if healthy is not None:
        lease.reservation.judge(healthy=healthy)
    lease.close(answered=bool(healthy))


def trip(router: Router, name: str) -> None:
    others = tuple(other for other in router.fleet.replicas if other != name)
    for _ in range(FAILURES):
        end(send(router, exclude=others), healthy=False)
    assert router.fleet.replicas[name].breaker.state is State.OPEN


def candidates(router: Router) -> str:
    return "".join(view.name for view in router.fleet.candidates("m"))


def test_a_replica_whose_breaker_is_open_is_no_candidate(router: Router):
    trip(router, "b")
    assert candidates(router) == "ac"
    assert "b" not in {send(router).replica.name for _ in range(30)}


def test_where_all_breakers_are_open_none_says_anything(router: Router):
    for name in "abc":
        trip(router, name)
    assert candidates(router) == "abc"
    lease = send(router)
    end(lease, healthy=True)
    assert lease.replica.breaker.state is State.CLOSED
    assert candidates(router) == lease.replica.name


def test_Q09_after_the_pause_one_request_is_tried_and_no_second(router: Router, clock: Clock):
    trip(router, "b")
    clock.now += SHORTEST
    trial = send(router)
    assert trial.replica.name == "b"
    assert "b" not in {send(router).replica.name for _ in range(50)}
    end(trial, healthy=True)
    assert candidates(router) == "abc"
    assert not router.fleet.tripped


def test_Q09_a_stream_on_trial_is_through_with_its_first_token(router: Router, clock: Clock):
    trip(router, "b")
    clock.now += SHORTEST
    trial = send(router)
    trial.first_token(clock.now)
    assert candidates(router) == "abc"
    end(trial, healthy=False)
    assert candidates(router) == "abc"


def test_Q09_a_trial_whose_client_leaves_or_that_hangs_makes_place(router: Router, clock: Clock):
    trip(router, "b")
    clock.now += SHORTEST
    end(send(router), healthy=None)
    hanging = send(router)
    assert hanging.replica.name == "b"
    clock.now += TRIAL_SECONDS
    assert send(router).replica.name == "b"
    end(hanging, healthy=None)
    assert "b" not in {send(router).replica.name for _ in range(10)}


def test_Q09_stragglers_from_before_the_trip_change_nothing(router: Router, clock: Clock):
    old = [send(router, exclude=("a", "c")) for _ in range(3)]
    trip(router, "b")
    for lease, healthy in zip(old, (True, False, None), strict=True):
        end(lease, healthy=healthy)
    assert candidates(router) == "ac"
    clock.now += SHORTEST
    assert send(router).replica.name == "b"


def test_a_retry_is_no_trial(router: Router, clock: Clock):
    trip(router, "b")
    clock.now += SHORTEST
    router.fleet.tick()
    only = {send(router, exclude=("b",)).replica.name for _ in range(10)}
    assert "b" not in only


def test_a_trial_is_for_a_model_that_the_replica_serves(router: Router, clock: Clock):
    router.fleet.describe("b", Description(models={"other": None}))
    for _ in range(FAILURES):
        end(router.route(RouteRequest("other", tokens=1)), healthy=False)
    clock.now += SHORTEST
    assert send(router).replica.name != "b"
    assert router.route(RouteRequest("other", tokens=1)).replica.name == "b"


def test_a_new_process_has_a_closed_breaker(router: Router):
    trip(router, "b")
    router.fleet.restarted("b")
    assert candidates(router) == "abc"
    assert not router.fleet.tripped


def test_a_replica_that_is_removed_is_forgotten(router: Router):
    trip(router, "b")
    router.fleet.remove("b")
    assert not router.fleet.tripped
    late = [send(router, exclude=("a",)) for _ in range(FAILURES)]
    router.fleet.remove("c")
    for lease in late:
        end(lease, healthy=False)
    assert not router.fleet.tripped


def test_D01_a_suspect_gets_no_more_until_the_others_are_full(router: Router):
    fleet = router.fleet
    held = [send(router, exclude=("a", "c")) for _ in range(10)]
    fleet.missed("b")
    assert fleet.replicas["b"].view.soft_limit == 5
    assert "b" not in {send(router).replica.name for _ in range(30)}
    for lease in held[2:]:
        end(lease, healthy=True)
    assert fleet.replicas["b"].view.in_flight == 2
    fleet.answered("b")
    assert fleet.replicas["b"].view.soft_limit == inf
    fleet.missed("b")
    fleet.limit(1)
    assert send(router).replica.name in "abc"  # all have all they may have: a suspect is as good


def test_D01_what_a_suspect_holds_is_not_forgotten(router: Router):
    router.index.predict("b", array("Q", [1, 2, 3]))
    router.fleet.missed("b")
    assert router.index.blocks("b") == 3


def test_a_replica_that_is_full_is_spared_for_a_moment(router: Router, clock: Clock):
    lease = send(router, exclude=("a", "c"))
    lease.reservation.pressed()
    end(lease, healthy=None)
    assert "b" not in {send(router).replica.name for _ in range(9)}
    clock.now += max(PRESSED_SECONDS, TICK_SECONDS)
    send(router)
    assert router.fleet.replicas["b"].view.soft_limit == inf


def test_one_that_comes_back_among_others_begins_slowly(router: Router, clock: Clock):
    fleet = router.fleet
    assert all(replica.view.soft_limit == inf for replica in fleet.replicas.values())  # all came at once
    fleet.mark("b", up=False)
    clock.now += RAMP_SECONDS + 1
    fleet.mark("b", up=True)
    view, limits = fleet.replicas["b"].view, []
    for _ in range(4):
        limits.append(view.soft_limit)
        clock.now += 1
        fleet.tick()
    assert limits == pytest.approx([FIRST, 4, 8, 16])
    clock.now += RAMP_SECONDS
    fleet.tick()
    assert view.soft_limit == inf


def test_a_new_one_does_not_get_a_burst_at_once(router: Router, clock: Clock):
    fleet = router.fleet
    clock.now += RAMP_SECONDS + 1
    fleet.add("d", "http://d", Description(models={"m": None}))
    fleet.mark("d", up=True)
    for _ in range(40):
        send(router)
    assert fleet.replicas["d"].view.in_flight <= FIRST
