"""What would have been: shadows beside what really happens under their policies, and what was saved."""

from array import array
from random import Random

import pytest

from bench import workloads
from bench.profiles import profile
from bench.simulation import Simulation, prepare
from bench.workloads import Shape
from policies import registry
from policies.base import Replica
from proxy.counterfactual import Counterfactual
from proxy.insight import Savings as SavingsTerms
from proxy.priority import Priority
from proxy.record import Record
from proxy.router import RouteRequest
from proxy.savings import GROUPS, Savings
from proxy.shadow import MOST_IN_FLIGHT, Shadow

SPEC = profile("h100x2-32b", cache_tokens=60_000)


class World(Simulation):
    """A simulated fleet whose requests are told to shadows as the ledger tells them."""

    def __init__(self, policy: str, shadows: tuple[str, ...] = (), **savings) -> None:
        super().__init__(registry.create(policy, {}), SPEC, 4, 1, "none", Priority())
        self.what_if = Counterfactual(
            shadows, SavingsTerms(**savings), policy, {}, self.fleet, self.router.index.capacity
        )
        self.records: list[Record] = []

    def ended(self, lease, outcome) -> None:
        record = Record("", "", outcome.due, replica=outcome.replica, prompt_tokens=outcome.tokens)
        record.lease, record.ttft, record.e2e = lease, outcome.ttft, outcome.e2e
        record.reported_prompt, record.reported_cached = outcome.tokens, outcome.cached
        self.records.append(record)
        if len(self.records) >= 64:
            self.what_if.read(self.records)
            self.records = []


def rate(run) -> float:
    return sum(each.cached for each in run.outcomes) / sum(each.tokens for each in run.outcomes)


@pytest.fixture(scope="module")
def jobs():
    shape = Shape(rate=24, requests=3000, groups=130)
    return prepare(workloads.generate("shared", shape, 1), SPEC)[0]


@pytest.fixture(scope="module")
def world(jobs):
    world = World("prefix_cost", ("round_robin", "consistent_hash"), sample=0.25, price_per_gpu_hour=2.0)
    world.result = world.run(jobs)
    return world


@pytest.fixture(scope="module")
def round_robin(jobs) -> float:
    return rate(World("round_robin", sample=0).run(jobs))


def test_shadows_tell_what_their_policies_would_have_found_cached(world, jobs, round_robin):
    told = {each["policy"]: each for each in world.what_if.told()}
    assert list(told) == ["prefix_cost", "round_robin", "consistent_hash"], "the one in use is shadowed too"
    really = {
        "prefix_cost": rate(world.result),
        "round_robin": round_robin,
        "consistent_hash": rate(World("consistent_hash", sample=0).run(jobs)),
    }
    assert really["prefix_cost"] - really["round_robin"] > 0.2, "or nothing would be told apart"
    for policy, hit_rate in really.items():
        assert told[policy]["hit_rate"] == pytest.approx(hit_rate, abs=0.03)
        assert told[policy]["available_rate"] >= told[policy]["hit_rate"]
    assert told["prefix_cost"]["modelled_ttft_seconds"] < told["round_robin"]["modelled_ttft_seconds"]


def test_savings_are_what_round_robin_would_have_computed_more(world, round_robin):
    told = world.what_if.savings.told()
    share, error = told["round_robin_hit_rate"], told["round_robin_hit_rate_error"]
    assert share == pytest.approx(round_robin, abs=max(3 * error, 0.02)), "a miniature of a quarter"
    assert 0 < error < 0.1
    saved, (low, high) = told["saved_gpu_seconds"], told["interval_95"]
    assert low < saved < high
    tokens = (rate(world.result) - round_robin) * sum(each.tokens for each in world.result.outcomes)
    assert low < tokens * told["seconds_per_token"] < high
    assert told["saved"]["amount"] == pytest.approx(saved / 3600 * 2.0)
    families = {family.name: family for family in world.what_if.collect()}
    bounds = {s.labels["bound"]: s.value for s in families["warmroute_saved_gpu_seconds"].samples}
    assert (bounds["low"], bounds["estimate"], bounds["high"]) == (low, saved, high)
    assert families["warmroute_saved_money"].samples[0].labels["currency"] == "USD"


def test_money_only_where_a_price_was_given_and_nothing_while_too_little_is_known():
    savings = Savings(gpus=2.0)
    assert savings.told()["saved_gpu_seconds"] is None
    assert "streams" in savings.told()["waiting_for"]
    for group in range(GROUPS):
        savings.sample(group, 1000, 200)
        for _ in range(4):
            savings.count(1000, 700, 1000.0, timed=True)
    told = savings.told()
    assert "saved" not in told
    assert told["cached_gpu_seconds"] == pytest.approx(64 * 0.7 * 2)
    assert told["saved_gpu_seconds"] == pytest.approx(64 * 0.5 * 2)
    assert told["interval_95"] == pytest.approx([64.0, 64.0]), "no group differs, and no cost"
    assert savings.money(3600.0) is None


def test_the_error_grows_with_what_differs():
    even, uneven = Savings(gpus=1.0), Savings(gpus=1.0)
    for group in range(GROUPS):
        even.sample(group, 1000, 500)
        uneven.sample(group, 1000, 1000 if group % 2 else 0)
    for one in (even, uneven):
        assert one.round_robin_rate[0] == pytest.approx(0.5)
    assert even.round_robin_rate[1] == 0
    assert uneven.round_robin_rate[1] == pytest.approx(0.5 / 15**0.5, rel=0.01)
    steady, wandering = Savings(gpus=1.0), Savings(gpus=1.0)
    for at in range(100):
        steady.count(10, 5, 1000.0, timed=True)
        wandering.count(10, 5, 1000.0 if at % 2 else 500.0, timed=True)
    assert steady.cost_error == pytest.approx(0, abs=1e-9)
    assert wandering.cost_error > 0.2


def test_a_shadow_is_bounded_and_forgets_replicas():
    rng = Random(1)
    shadow = Shadow("least_load", registry.create("least_load", {}), rng, share=0.5)
    real = [Replica("a", prefill_rate=1e-3), Replica("b", prefill_rate=1e-3)]
    for at in range(3 * MOST_IN_FLIGHT):
        keys = array("Q", [rng.getrandbits(64) for _ in range(4)])
        shadow.see(RouteRequest("m", keys, 70), real, lambda _: 1000, at / 1000, 1e9)
    assert len(shadow._coming) <= 2 * MOST_IN_FLIGHT
    assert shadow._index.size() <= 2 * 500
    assert all(view.in_flight >= 0 and view.queued_tokens >= 0 for view in shadow._views.values())
    assert shadow.requests == 3 * MOST_IN_FLIGHT
    assert real[0].in_flight == real[1].in_flight == 0, "the real fleet is not touched"
    shadow.forget("a")
    assert shadow.replicas == ["b"]
    assert shadow._index.blocks("a") == 0


def test_a_shadows_load_is_gone_when_its_requests_would_have_ended():
    shadow = Shadow("least_load", registry.create("least_load", {}), Random(1))
    real = [Replica("a", prefill_rate=1000.0)]
    shadow.see(RouteRequest("m", tokens=500), real, lambda _: 10, 1.0, 2.0)
    view = shadow._views["a"]
    assert (view.in_flight, view.queued_tokens, view.running) == (1, 500, 0)
    shadow._pass(1.6)
    assert (view.in_flight, view.queued_tokens, view.running) == (1, 0, 1)
    shadow._pass(4.0)
    assert (view.in_flight, view.queued_tokens, view.running) == (0, 0, 0)
    assert shadow.ttft_seconds == pytest.approx(0.5)


def test_off_is_off():
    assert not World("prefix_cost", sample=0).what_if.on
    assert World("prefix_cost", ("random",), sample=0).what_if.on
