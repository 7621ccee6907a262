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
    return describe.read_kv_event_sources(json.dumps({"0": {**VLLM, **changed}}).encode()).get(rank)


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
    feeds = describe.read_kv_event_sources(body)
    assert [(feed.endpoint, feed.rank, feed.ranks) for feed in feeds.values()] == [
        ("tcp://*:9101", 0, 2),
        ("tcp://*:9102", 1, 2),
    ]


def listed(*ranks: int, endpoint: str = "tcp://10.0.0.1:{}") -> list[dict[str, Any]]:
    """As newer vLLMs answer."""
    return [
        {"data_parallel_rank": r, "endpoint": endpoint.format(5557 + r), "replay_endpoint": None, "topic": ""}
        for r in ranks
    ]


@pytest.mark.parametrize("wrap", [lambda sources: sources, lambda sources: {"sources": sources}])
def test_a_list_of_sources_says_the_same(wrap):
    feeds = describe.read_kv_event_sources(json.dumps(wrap(listed(1, 0))).encode())
    assert {rank: feed.endpoint for rank, feed in feeds.items()} == {
        0: "tcp://10.0.0.1:5557",
        1: "tcp://10.0.0.1:5558",
    }


def test_ranks_that_all_tell_the_configured_endpoint_have_the_ports_above_it():
    feeds = describe.read_kv_event_sources(json.dumps({"0": VLLM, "1": VLLM, "2": VLLM}).encode())
    assert [(f.endpoint, f.replay, f.rank) for f in feeds.values()] == [
        (f"tcp://*:{9101 + rank}", f"tcp://*:{10101 + rank}", rank) for rank in range(3)
    ]


def ranks(configured: ReplicaSpec, engine: Description, body: Any = None, page: str | None = None) -> Any:
    feeds = {} if body is None else describe.read_kv_event_sources(json.dumps(body).encode())
    return describe.by_rank(configured, engine, feeds, page)


def test_each_rank_is_described_for_itself():
    page = "\n".join(
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="{100 + rank}"}} 1.0'
        for rank in (1, 0)
    )
    one, other = ranks(spec(), Description(engine="vllm"), listed(0, 1), page)
    assert (one.cache_blocks, other.cache_blocks) == (100, 101)
    assert (one.ranks, other.ranks) == (2, 2)
    assert [each.feed.endpoint for each in (one, other)] == ["tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"]
    assert [each.feed.ranks for each in (one, other)] == [1, 1]  # a request is steered to one


def test_what_is_configured_is_of_the_first_rank_and_prevails():
    configured = spec(ranks=3, kv_events="tcp://pod-7:7000", kv_replay="tcp://pod-7:8000", capacity=9)
    told = ranks(configured, Description(engine="vllm", cache_blocks=100), listed(0, 1))
    assert [(d.feed.endpoint, d.feed.replay, d.feed.rank, d.cache_blocks) for d in told] == [
        (f"tcp://pod-7:{7000 + rank}", f"tcp://pod-7:{8000 + rank}", rank, 9) for rank in range(3)
    ]


def test_ranks_that_are_left_to_the_engine_are_one_replica_whose_events_tell_nothing():
    (only,) = ranks(spec(ranks=1), Description(engine="vllm"), listed(0, 1))
    assert only.feed.ranks == 2
    (only,) = ranks(spec(), Description(engine="vllm"), listed(4, 5))  # which rank is which, nobody says
    assert only.feed.ranks == 2


def test_a_server_of_one_rank_of_several_is_one_replica():
    (only,) = ranks(spec(), Description(engine="vllm"), listed(3))
    assert (only.feed.endpoint, only.feed.ranks) == ("tcp://10.0.0.1:5560", 1)


def test_sglang_tells_how_many_ranks_there_are_without_events_too():
    engine = Description(engine="sglang")
    told = {"dp_size": 2, "page_size": 16, "max_running_requests": 64, "enable_dp_attention": True}
    describe.read_server_info(json.dumps(told).encode(), engine)
    both = ranks(spec(), engine)
    assert [(each.max_seqs, each.feed, each.ranks) for each in both] == [(32, None, 2)] * 2


def test_a_rank_is_as_full_as_its_own_label_says():
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    assert [describe.kv_usage(page, rank) for rank in (0, 1, 7, None)] == [0.2, 0.6, 0.4, 0.4]
    assert describe.kv_usage("sglang:token_usage 0.5", 1) == 0.5


@pytest.mark.parametrize(
    "changed", [{"publisher": "null"}, {"enable_kv_cache_events": False}, {"endpoint": None}]
)
def test_an_engine_that_publishes_nothing_has_no_feed(changed):
    assert vllm(**changed) is None
    assert describe.feed(spec(), None) is None


@pytest.mark.parametrize("noise", [b"", b"[]", b"null", b"{", b'{"0":[]}', b'{"detail":"Not Found"}'])
def test_what_is_no_answer_is_no_feed(noise):
    assert describe.read_kv_event_sources(noise) == {}


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
