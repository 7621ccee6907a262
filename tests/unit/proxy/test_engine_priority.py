"""Q02: a class in the order of each engine, and nothing where an engine would choke on it."""

import pytest

from proxy.engine_priority import EnginePriority
from proxy.prompt.parse import Endpoint


def three_classes() -> EnginePriority:
    priority = EnginePriority(3)
    priority.learn("vllm", "low_first")
    priority.learn("sglang", "high_first")
    priority.learn("plain", None)
    return priority


@pytest.mark.parametrize(("replica", "values"), [("vllm", [0, 1, 2]), ("sglang", [2, 1, 0])])
def test_Q02_the_first_class_is_the_first_in_each_engines_order(replica, values):
    assert [three_classes().value(replica, Endpoint.CHAT, rank, 1) for rank in range(3)] == values


def test_Q02_nothing_is_said_to_engines_that_do_not_order_to_samplers_and_where_no_engine_knows_it():
    priority = three_classes()
    assert priority.value("plain", Endpoint.CHAT, 0, 1) is None
    assert priority.value("unheard of", Endpoint.CHAT, 0, 1) is None
    assert priority.value("vllm", Endpoint.CHAT, 2, 2) is None
    assert priority.value("vllm", Endpoint.MESSAGES, 2, 1) is None


def test_a_replica_that_is_gone_orders_nothing():
    priority = three_classes()
    assert priority
    priority.forget("vllm")
    priority.forget("vllm")
    assert priority.value("vllm", Endpoint.CHAT, 2, 1) is None
    assert priority
    priority.forget("sglang")
    assert not priority
