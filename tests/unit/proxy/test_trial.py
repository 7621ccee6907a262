"""The canary at work, on the real router and fleet: who gets which request, and what ends it."""

import logging
from array import array
from random import Random

import pytest

from policies import registry
from proxy.canary import Phase
from proxy.canary_terms import CanaryTerms
from proxy.description import Description
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.record import Record
from proxy.router import Router, RouteRequest
from proxy.trial import Trials

TERMS = {"baseline_seconds": 0, "settle_seconds": 0, "stage_seconds": 10, "stages": (50, 100)}


class World:
    def __init__(self, **terms) -> None:
        self.now = 0.0
        fleet = Fleet(lambda: self.now)
        for name in "ab":
            fleet.add(name, f"http://{name}", Description(engine="vllm", models={"m": None}))
            fleet.mark(name, up=True)
        self.main = Router(
            fleet, MemoryIndex(), registry.create("prefix_cost", {}), Random(1), name="prefix_cost"
        )
        self.trials = Trials(CanaryTerms(**TERMS, **terms), self.main, {}, lambda: self.now)
        self.splits = []
        self.trials.splits = self.splits.append
        self.trials.begin()
        self.rng = Random(2)

    def request(self) -> RouteRequest:
        keys = array("Q", [self.rng.getrandbits(64) for _ in range(10)])
        return RouteRequest("m", keys, 165, stream=True)

    def serve(self, count: int, *, failing: str = "") -> list[Record]:
        records = []
        for _ in range(count):
            request = self.request()
            router = self.trials.router(request)
            lease = router.route(request)
            record = Record("x", "/v1/chat/completions", self.now, policy=router.name, arm=router.arm)
            record.lease, record.replica = lease, lease.replica.name
            record.prompt_tokens, record.ttft = 165, 0.1
            if router.arm == failing:
                record.outcome = "failed"
            lease.close(answered=True)
            records.append(record)
        self.trials.read(records)
        return records

    def run(self, seconds: int, **kind) -> list[Record]:
        records = []
        for _ in range(seconds):
            self.now += 1
            records += self.serve(30, **kind)
            self.trials.step()
        return records


def test_a_start_of_prompts_is_on_one_side_for_good_and_sides_have_their_policies():
    world = World(policy="round_robin")
    assert world.splits == [world.trials.current.router]
    for _ in range(200):
        request = world.request()
        same = RouteRequest("m", request.keys[:8] + world.request().keys, 400)
        assert world.trials.router(request) is world.trials.router(same)
    arms = {(record.arm, record.policy) for record in world.serve(100)}
    assert arms == {("main", "prefix_cost"), ("canary", "round_robin")}


def test_a_prompt_of_which_nothing_is_known_is_the_main_sides():
    world = World(policy="round_robin")
    world.trials.current.canary.set_percent(100, 0.0)
    assert world.trials.router(RouteRequest("m")) is world.main
    assert world.trials.router(RouteRequest("m", affinity=5)).arm == "canary"


def test_other_replicas_serve_the_canary_alone():
    world = World(replicas=("b",))
    placed = {(record.arm, record.replica) for record in world.serve(100)}
    assert placed == {("main", "a"), ("canary", "b")}
    world.main.fleet.mark("b", up=False)
    placed = {(record.arm, record.replica) for record in world.serve(100)}
    assert placed == {("main", "a"), ("canary", "a")}, "rather answered than divided"


def test_it_goes_back_by_itself_and_says_why_in_log_metric_and_state(caplog):
    world = World(policy="round_robin")
    with caplog.at_level(logging.WARNING, "warmroute"):
        world.run(60, failing="canary")
    trial = world.trials.current
    assert trial.canary.phase is Phase.ROLLED_BACK
    assert "of its requests failed" in caplog.text
    assert "rolled back" in caplog.text
    assert world.trials.rollbacks.values == {("errors",): 1}
    told = world.trials.told()
    assert (told["phase"], told["reason"], told["percent"]) == ("rolled_back", "errors", 0)
    families = {family.name: family for family in world.trials.collect()}
    assert [s.value for s in families["warmroute_canary_percent"].samples] == [0]
    phases = {s.labels["phase"]: s.value for s in families["warmroute_canary_phase"].samples}
    assert [name for name, value in phases.items() if value] == ["rolled_back"]
    assert {record.arm for record in world.serve(50)} == {"main"}


def test_it_reaches_all_traffic_by_itself():
    world = World(policy="least_load")
    world.run(60)
    assert world.trials.current.canary.percent == 100
    assert world.trials.changes.values == {("running", "promoted"): 1, ("complete", "complete"): 1}
    assert {record.arm for record in world.serve(50)} == {"canary"}


def test_without_one_there_is_nothing():
    world = World()
    assert (world.trials.current, world.splits) == (None, [])
    world.trials.step()
    world.trials.read(world.serve(3))
    assert world.trials.told() is None
    assert all(not family.samples for family in world.trials.collect())


def test_terms_of_a_policy_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match="unknown policy"):
        World(policy="nope")
