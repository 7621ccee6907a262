"""What every policy promises, whatever it does: run for each name the registry finds."""

import copy
import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from policies import registry
from policies.base import Decision, Explained, Replica, Request, terms

NAMES = registry.names()
SECTIONS = ["Idea", "Use when", "Cost", "How it fails", "Parameters"]

each_policy = pytest.mark.parametrize("name", NAMES)

replica_fields = st.fixed_dictionaries(
    {
        "running": st.integers(0, 300),
        "queued_tokens": st.integers(0, 2_000_000),
        "prefill_rate": st.floats(50, 1e6),
        "base_ttft": st.floats(0, 10),
        "slots": st.none() | st.integers(1, 256),
        "slot_time": st.none() | st.floats(0, 600),
        "kv_usage": st.none() | st.floats(0, 1),
        "recent_tokens": st.floats(0, 1e8),
    }
)


@st.composite
def situations(draw):
    """A request and a fleet, in any state that the router may hand over."""
    count = draw(st.integers(1, 80))
    fleet = []
    for i in range(count):
        fields = draw(replica_fields) if i < 6 else {"queued_tokens": i * 37 % 4000}
        fleet.append(Replica(f"r{i}", in_flight=fields.get("running", 0) + draw(st.integers(0, 3)), **fields))
    tokens = draw(st.integers(0, 200_000))
    holders = st.sampled_from([replica.name for replica in fleet] + ["ghost"])
    request = Request(
        tokens,
        draw(st.dictionaries(holders, st.integers(0, max(tokens - 1, 0)))),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.none() | st.text(st.characters(), max_size=20)),
        draw(st.integers(1, 128)),
    )
    return request, fleet


@each_policy
@settings(max_examples=60)
@given(situation=situations(), seed=st.integers(0, 2**32))
def test_a_policy_returns_one_of_the_replicas_and_changes_nothing(name, situation, seed):
    request, fleet = situation
    before = copy.deepcopy((request, fleet))
    decision = registry.create(name).choose(request, fleet, Random(seed))
    assert isinstance(decision, Decision)
    assert any(decision.replica is replica for replica in fleet)
    assert (request, fleet) == before
    if decision.costs:
        assert decision.replica.name in decision.costs
        assert set(decision.costs) <= {replica.name for replica in fleet}


@each_policy
@settings(max_examples=30)
@given(situation=situations(), seed=st.integers(0, 2**32))
def test_a_policy_is_deterministic_under_a_seed(name, situation, seed):
    request, fleet = situation
    once, again = (registry.create(name).choose(request, fleet, Random(seed)) for _ in range(2))
    assert once == again


@each_policy
@settings(max_examples=30)
@given(situation=situations())
def test_a_policy_leaves_global_randomness_alone(name, situation):
    import random

    request, fleet = situation
    before = random.getstate()
    registry.create(name).choose(request, fleet, Random(1))
    assert random.getstate() == before


@each_policy
@settings(max_examples=150)
@given(
    situation=situations(),
    seed=st.integers(0, 2**32),
    urgency=st.floats(0.1, 10),
    waits=st.lists(st.integers(0, 300), max_size=6),
)
def test_the_parts_of_a_score_add_up_to_it(name, situation, seed, urgency, waits):
    request, fleet = situation
    request.urgency = urgency
    for replica, extra in zip(fleet, waits, strict=False):
        replica.in_flight += extra
    policy = registry.create(name)
    decision = policy.choose(request, fleet, Random(seed))
    before = copy.deepcopy((request, fleet))
    parts = terms(policy, request, decision)
    assert (request, fleet) == before
    if parts is None:
        assert not isinstance(policy, Explained)
        assert not decision.scores
        return
    assert [sum(each.values()) for each in parts] == pytest.approx(list(decision.scores), rel=1e-9, abs=1e-12)
    assert all(part >= 0 for each in parts for part in each.values())
    assert policy.unit in ("seconds", "points")


@each_policy
def test_one_replica_is_chosen_whatever_its_load(name):
    alone = Replica("a", in_flight=900, running=256, queued_tokens=10**7, slots=256, kv_usage=1.0)
    assert registry.create(name).choose(Request(1000, {}, 7), [alone], Random(1)).replica is alone


@each_policy
@pytest.mark.parametrize("count", [2, 8])
def test_unrelated_prompts_spread_over_an_idle_fleet(name, count):
    policy, rng = registry.create(name), Random(1)
    fleet = [Replica(f"r{i}") for i in range(count)]
    seen = {replica.name: 0 for replica in fleet}
    for _ in range(4000):
        seen[policy.choose(Request(1000, {}, rng.getrandbits(64)), fleet, rng).replica.name] += 1
    assert max(seen.values()) < 1.15 * 4000 / count
    assert min(seen.values()) > 0.85 * 4000 / count


@each_policy
def test_prompts_that_were_not_understood_spread(name):
    policy, rng = registry.create(name), Random(1)
    fleet = [Replica(f"r{i}") for i in range(4)]
    for _ in range(400):
        policy.choose(Request(0), fleet, rng).replica.in_flight += 1
    assert max(replica.in_flight for replica in fleet) < 150


@each_policy
def test_its_documentation_has_every_section(name):
    description = next(d for d in registry.describe() if d.name == name)
    headings = [line for line in description.doc.splitlines() if line in SECTIONS]
    assert headings == SECTIONS
    assert re.fullmatch(r"[A-Z].*[.:].*", description.summary)


@each_policy
def test_each_parameter_is_documented_and_its_default_is_valid(name):
    description = next(d for d in registry.describe() if d.name == name)
    defaults = {parameter.name: parameter.default for parameter in description.parameters}
    assert all(parameter.doc and parameter.type for parameter in description.parameters)
    assert registry.create(name, defaults) == registry.create(name)
    assert registry.create(name, {key: str(value) for key, value in defaults.items()}) == registry.create(
        name
    )


@each_policy
def test_a_policy_is_a_dataclass_that_takes_only_its_parameters(name):
    policy = registry.create(name)
    assert dataclasses.is_dataclass(policy)
    with pytest.raises(ValueError, match=r"no parameter 'nonsense'"):
        registry.create(name, {"nonsense": 1})


def test_every_module_with_a_policy_is_found_by_its_name():
    without_policy = {"base", "registry", "scoring"}
    modules = {found.name for found in pkgutil.iter_modules(policies.__path__)} - without_policy
    registered = {type(registry.create(name)).__module__.removeprefix("policies.") for name in NAMES}
    assert modules == registered
    assert {"uniform" if name == "random" else name for name in NAMES} == modules


def test_policies_never_name_the_proxy():
    for path in Path(policies.__path__[0]).glob("*.py"):
        assert not re.search(r"^\s*(from|import) proxy", path.read_text(), re.MULTILINE), path
    assert importlib.import_module("policies.base").Policy
