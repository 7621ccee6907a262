"""Where a replica publishes its KV events: what engines tell, and what the settings say."""

import json
from typing import Any

import pytest

from proxy import describe
from proxy.description import Description, FeedSpec
from proxy.spec import ReplicaSpec

VLLM = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:9101",
    "replay_endpoint": "tcp://*:10101",
    "buffer_steps": 10000,
    "hwm": 100000,
    "max_queue_size": 100000,
    "topic": "kv@127.0.0.1:8101@tiny",
}
"""As a real vLLM 0.32 answered."""
SGLANG = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 64,
    "dp_size": 2,
}
"""As sglang pull request 25844 describes it."""


def spec(**fields: Any) -> ReplicaSpec:
    return ReplicaSpec(**{"url": "http://pod-7:8000", **fields})


def vllm(rank: int = 0, **changed: Any) -> FeedSpec | None:
    return describe.read_kv_event_sources(json.dumps({"0": {**VLLM, **changed}}).encode(), rank)


def sglang(**told: Any) -> FeedSpec | None:
    description = Description(engine="sglang")
    describe.read_server_info(json.dumps(told).encode(), description)
    return description.feed


def test_vllm_tells_its_sources_and_a_wildcard_is_its_own_host():
    told = vllm()
    assert told == FeedSpec("tcp://*:9101", replay="tcp://*:10101", topic="kv@127.0.0.1:8101@tiny")
    assert describe.feed(spec(), told) == FeedSpec(
        "tcp://pod-7:9101", replay="tcp://pod-7:10101", topic="kv@127.0.0.1:8101@tiny"
    )


def test_each_data_parallel_rank_has_its_own_source():
    body = json.dumps({"0": VLLM, "1": {**VLLM, "endpoint": "tcp://*:9102"}}).encode()
    told = describe.read_kv_event_sources(body, rank=1)
    assert told is not None
    assert (told.endpoint, told.rank, told.ranks) == ("tcp://*:9102", 1, 2)
    assert describe.read_kv_event_sources(body, rank=2) is None


@pytest.mark.parametrize(
    "changed", [{"publisher": "null"}, {"enable_kv_cache_events": False}, {"endpoint": None}]
)
def test_an_engine_that_publishes_nothing_has_no_feed(changed):
    assert vllm(**changed) is None
    assert describe.feed(spec(), None) is None


@pytest.mark.parametrize("noise", [b"", b"[]", b"null", b"{", b'{"0":[]}', b'{"detail":"Not Found"}'])
def test_what_is_no_answer_is_no_feed(noise):
    assert describe.read_kv_event_sources(noise) is None


def test_sglang_tells_a_port_and_the_flags_text_tells_the_replay():
    flag = json.dumps({"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5600"})
    told = sglang(kv_events=SGLANG, kv_events_config=flag)
    assert told == FeedSpec("tcp://*:5557", replay="tcp://*:5600", topic="kv", block_size=64, ranks=2)
    found = describe.feed(spec(url="http://[fd00::7]:8000"), told)
    assert found is not None
    assert (found.endpoint, found.replay) == ("tcp://[fd00::7]:5557", "tcp://[fd00::7]:5600")


@pytest.mark.parametrize("flag", [None, "", "not json", "[]", '{"replay_endpoint":"ipc:///x"}'])
def test_sglang_without_a_replay_that_can_be_reached(flag):
    told = sglang(kv_events=SGLANG, kv_events_config=flag)
    assert told is not None
    assert told.replay is None


@pytest.mark.parametrize("block", [None, [], {}, {**SGLANG, "publisher": "null"}, {"publisher": "zmq"}])
def test_sglang_that_publishes_nothing(block):
    assert sglang(kv_events=block) is None


def test_an_address_that_an_engine_tells_is_kept():
    told = vllm(endpoint="tcp://10.1.2.3:41234", replay_endpoint=None)
    found = describe.feed(spec(), told)
    assert found is not None
    assert (found.endpoint, found.bind, found.replay) == ("tcp://10.1.2.3:41234", False, None)


def test_settings_prevail_and_a_wildcard_in_them_is_listened_on():
    configured = spec(kv_events="tcp://other:1", kv_replay="tcp://other:2")
    assert describe.feed(configured, None) == FeedSpec("tcp://other:1", replay="tcp://other:2")
    both = describe.feed(configured, vllm())
    assert both is not None
    assert (both.endpoint, both.replay, both.topic) == ("tcp://other:1", "tcp://other:2", VLLM["topic"])
    assert describe.feed(spec(kv_events="off"), vllm()) is None
    dialled = describe.feed(spec().model_copy(update={"kv_events": "tcp://*:7000"}), vllm())
    assert dialled is not None
    assert (dialled.endpoint, dialled.bind) == ("tcp://*:7000", True)
    assert dialled.replay == "tcp://pod-7:10101"
