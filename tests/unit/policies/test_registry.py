"""The catalogue: what it refuses, what it converts, and what it says."""

from dataclasses import dataclass

import pytest

from policies import registry


def test_names_are_the_ones_of_the_contract():
    assert set(registry.names()) == {
        "round_robin",
        "random",
        "least_load",
        "power_of_two",
        "consistent_hash",
        "prefix_affinity",
        "prefix_cost",
    }


def test_values_from_the_environment_become_the_type_of_their_field():
    policy = registry.create("prefix_cost", {"alpha": "0.3", "compare": "64"})
    assert policy == registry.create("prefix_cost", {"alpha": 0.3, "compare": 64})
    assert policy != registry.create("prefix_cost")


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("prefx_cost", {}, r"unknown policy 'prefx_cost'; did you mean 'prefix_cost'\?"),
        ("qqq", {}, r"unknown policy 'qqq' \(there are consistent_hash, .*round_robin\)"),
        ("prefix_cost", {"alhpa": 1}, r"no parameter 'alhpa'; did you mean 'alpha'\?"),
        ("round_robin", {"x": 1}, r"policy round_robin has no parameter 'x' \(it has none\)"),
        ("round_robin", {"_turn": 1}, r"no parameter '_turn'"),
        ("prefix_cost", {"alpha": "much"}, r"parameter alpha: .*valid number.*'much'"),
        ("prefix_cost", {"alpha": "nan"}, r"parameter alpha: .*finite.*'nan'"),
        ("prefix_cost", {"alpha": "inf"}, r"parameter alpha: .*finite.*'inf'"),
        ("prefix_cost", {"alpha": "-0.1"}, r"parameter alpha: must be at least 0 \(got '-0.1'\)"),
        ("prefix_cost", {"tie": 1.5}, r"parameter tie: must be at most 1 \(got 1.5\)"),
        ("prefix_cost", {"compare": "2.5"}, r"parameter compare: .*integer.*'2.5'"),
        ("prefix_cost", {"alpha": None}, r"parameter alpha: .*None"),
    ],
)
def test_what_is_wrong_is_named(name, params, message):
    with pytest.raises(ValueError, match=message):
        registry.create(name, params)


def test_two_policies_cannot_share_a_name():
    with pytest.raises(ValueError, match=r"two policies are named .random.: policies\.uniform, "):

        @registry.register("random")
        @dataclass
        class Another:
            def choose(self, request, replicas, rng):
                raise NotImplementedError

    assert registry.create("random").__class__.__name__ == "Uniform"


def test_describe_lists_parameters_with_defaults():
    described = {description.name: description for description in registry.describe()}
    assert list(described) == list(registry.names())
    assert [p.name for p in described["power_of_two"].parameters] == ["choices"]
    choices = described["power_of_two"].parameters[0]
    assert (choices.type, choices.default, choices.doc) == ("int", 2, "replicas drawn for each request")
    assert described["round_robin"].parameters == ()
