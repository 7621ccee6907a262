"""A simulated replica with data-parallel ranks: one address; for each rank a cache and a feed of its own."""

from time import monotonic

import aiohttp
import msgspec
import pytest

from bench.engine_publisher import EventOptions
from tests.support.eventually import eventually
from tests.support.replicas import FAST, Subscriber, serve

PROMPT = list(range(100, 132))


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def complete(session, one, rank=None):
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    body = {"prompt": PROMPT, "max_tokens": 1}
    async with session.post(f"{one.url}/v1/completions", json=body, headers=headers) as response:
        return response.status, await response.json()


async def told(session, one, path):
    async with session.get(one.url + path) as response:
        assert response.status == 200
        return await response.read()


async def test_each_rank_computes_and_publishes_for_itself(session):
    async with serve(FAST, events=EventOptions(), ranks=2) as (one,):
        first, second = (publisher.feed for publisher in one.publishers)
        assert (second.port, second.replay_port) == (first.port + 1, first.replay_port + 1)
        async with Subscriber(first) as quiet, Subscriber(second) as subscriber:
            for cached in (0, 16):
                status, answer = await complete(session, one, 1)
                assert status == 200
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == cached
            await eventually(lambda: subscriber.messages, "its event has come")
            assert msgspec.msgpack.decode(subscriber.messages[0].payload)[2] == 1
            assert not quiet.messages
        page = (await told(session, one, "/metrics")).decode()
        assert 'vllm:prefix_cache_hits_total{engine="0",model_name="simulated"} 0.0' in page
        assert 'vllm:prefix_cache_hits_total{engine="1",model_name="simulated"} 16.0' in page
        sources = msgspec.json.decode(await told(session, one, "/kv_event_sources"))
        assert [sources[rank]["endpoint"] for rank in ("0", "1")] == [
            f"tcp://*:{first.port}",
            f"tcp://*:{second.port}",
        ]


async def test_sglang_tells_how_many_there_are(session):
    async with serve(FAST, events=EventOptions("sglang-maps"), ranks=3) as (one,):
        info = msgspec.json.decode(await told(session, one, "/server_info"))
        assert (info["dp_size"], info["kv_events"]["dp_size"]) == (3, 3)
        assert info["kv_events"]["endpoint_port_base"] == one.feed.port


async def test_a_rank_that_is_not_there_is_refused_and_what_is_no_number_is_ignored(session):
    async with serve(FAST, ranks=2) as (one,):
        status, answer = await complete(session, one, 5)
        assert status == 400
        assert answer["error"]["message"] == "data_parallel_rank 5 is out of range [0, 2)."
        assert (await complete(session, one, "abc"))[0] == 200


async def test_who_names_no_rank_gets_the_one_with_least_to_do(session):
    async with serve(FAST, ranks=2) as (one,):
        ids = one.replica.prompt.encode("a b c")
        with one.replica.generate(ids, received=monotonic(), max_tokens=1000, ignore_eos=True):
            await complete(session, one)
        assert one.ranks[1].model.prompt_tokens == len(PROMPT)


async def test_a_restart_is_of_all_ranks_on_the_same_ports(session):
    async with serve(FAST, events=EventOptions(), ranks=2) as (one,):
        ports = [publisher.feed.port for publisher in one.publishers]
        await complete(session, one, 1)
        await one.restart()
        assert [publisher.feed.port for publisher in one.publishers] == ports
        assert [rank.model.cache.cached for rank in one.ranks] == [0, 0]
        assert (await complete(session, one, 1))[0] == 200
