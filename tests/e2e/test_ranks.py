"""Data-parallel ranks: one engine that is several replicas, from what it tells to where requests go."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from bench.engine import EventOptions, RunningReplica, serve
from bench.engine_events import Dialect
from bench.profiles import EngineSpec
from proxy.app import Proxy
from tests.support.admin import TOKEN, admin, are_up, replicas
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, metric, serving
from tests.support.redis import Server

SPEC = EngineSpec(
    name="test", cache_tokens=8192, prefill_tokens_per_s=1e6, step_s=0.001, step_per_sequence_s=0.0
)
RANKS = 3
JSON = ("Content-Type", "application/json")


@dataclass
class Answer:
    """What came of a completion."""

    replica: str
    predicted: int
    cached: int


@dataclass
class Scene:
    """A proxy in front of the engine `e`, which has ranks."""

    proxy: Proxy
    engine: RunningReplica

    @property
    def names(self) -> list[str]:
        return [f"e@{rank}" for rank in range(len(self.engine.ranks))]

    async def complete(self, seed: int, **headers: str) -> Answer:
        """Send the prompt of this seed: 128 tokens, eight blocks, and one more."""
        prompt = [(seed * 7919 + place * 31) % 1000 + 1 for place in range(129)]
        body = json.dumps({"model": "simulated", "prompt": prompt, "max_tokens": 1}).encode()
        response = await exchange(self.proxy.port, "POST", "/v1/completions", body, [JSON, *headers.items()])
        assert response.status == 200, response.body
        told = {name.decode().lower(): value.decode() for name, value in response.headers}
        usage = response.json()["usage"]
        return Answer(
            told["x-warmroute-replica"],
            int(told["x-warmroute-predicted-cached-tokens"]),
            usage["prompt_tokens_details"]["cached_tokens"],
        )

    async def placed(self, rank: int) -> int:
        """The seed of a prompt that was sent to this rank, and whose blocks the index has by its events."""
        for seed in range(1, 50):
            if (await self.complete(seed)).replica == f"e@{rank}":
                await self.agree()
                return seed
        raise AssertionError(f"nothing goes to rank {rank}")

    async def agree(self) -> None:
        """Wait until the index knows of each rank what that rank holds."""

        def so() -> bool:
            return all(
                self.proxy.index.confirmed_blocks(name) == rank.model.cache.cached
                for name, rank in zip(self.names, self.engine.ranks, strict=True)
            )

        await eventually(so, "index and ranks agree")

    async def follows(self) -> None:
        """Wait until each rank's feed is followed."""

        async def so() -> bool:
            modes = await metric(self.proxy, "warmroute_replica_index_mode", mode="events")
            return {dict(labels)["replica"] for labels in modes} == set(self.names)

        await eventually(so, f"{self.names} are followed")


@asynccontextmanager
async def scene(dialect: Dialect = "vllm", ranks: int = RANKS, **settings: Any) -> AsyncIterator[Scene]:
    async with serve(SPEC, events=EventOptions(dialect), ranks=ranks) as (engine,):
        settings = {"replicas": [{"url": engine.url, "name": "e"}], "admin_token": TOKEN, **settings}
        async with serving(ready=False, tokenizer="engine", **settings) as proxy:
            it = Scene(proxy, engine)
            await are_up(proxy, *it.names)
            await it.follows()
            yield it


@pytest.mark.parametrize("dialect", ["vllm", "sglang-maps"])
async def test_a_prefix_goes_to_the_rank_that_holds_it(dialect):
    async with scene(dialect) as it:
        for rank in (1, 0, 2):
            seed = await it.placed(rank)
            before = [one.model.cached_tokens for one in it.engine.ranks]
            again = await it.complete(seed)
            assert (again.replica, again.predicted, again.cached) == (f"e@{rank}", 128, 128)
            before[rank] += 128
            assert [one.model.cached_tokens for one in it.engine.ranks] == before


async def test_every_place_that_names_replicas_names_ranks():
    async with scene() as it:
        seed = await it.placed(1)
        await it.complete(seed)
        known = await replicas(it.proxy)
        assert list(known) == it.names
        assert {each["url"] for each in known.values()} == {it.engine.url}
        assert known["e@1"]["index_blocks"] == it.engine.ranks[1].model.cache.cached
        assert (await ask(it.proxy, "/ready")).json()["replicas"].keys() == set(it.names)
        one = (await admin(it.proxy, "GET", "/e@1")).json()
        assert one["name"] == "e@1"
        engine = (await admin(it.proxy, "GET", "/e")).json()
        assert [rank["name"] for rank in engine["ranks"]] == it.names
        up = await metric(it.proxy, "warmroute_replica_up")
        assert {dict(labels)["replica"]: value for labels, value in up.items()} == dict.fromkeys(it.names, 1)
        cached = await metric(it.proxy, "warmroute_replica_cached_tokens_total", replica="e@1")
        assert sum(cached.values()) >= 128


async def test_what_a_client_says_of_ranks_counts_for_nothing_where_ranks_are_replicas():
    async with scene() as it:
        seed = await it.placed(1)
        answer = await it.complete(seed, **{"X-Data-Parallel-Rank": "0"})
        assert (answer.replica, answer.cached) == ("e@1", 128)
        assert (await it.complete(seed, **{"X-data-parallel-rank": "99"})).replica == "e@1"


async def test_a_client_may_choose_a_rank_where_ranks_are_no_replicas(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    chosen = [("X-Data-Parallel-Rank", "1")]
    await exchange(proxy.port, "POST", "/v1/completions", b'{"model":"m","prompt":"x"}', chosen)
    assert upstream.requests[-1].all("x-data-parallel-rank") == [b"1"]


async def test_ranks_that_are_configured_are_steered_to_without_events(upstream, proxy_factory):
    spec = {"url": upstream.url, "name": "e", "ranks": 2, "model": "m"}
    settings = {"admin_token": TOKEN, "ready": False, "policy": "round_robin"}
    proxy = await proxy_factory(upstream, replicas=[spec], **settings)
    await are_up(proxy, "e@0", "e@1")
    for _ in range(4):
        await exchange(proxy.port, "POST", "/v1/completions", b'{"model":"m","prompt":"x"}')
    asked = [each for each in upstream.requests if each.method == b"POST"]
    assert sorted(each.all("x-data-parallel-rank") for each in asked) == [[b"0"], [b"0"], [b"1"], [b"1"]]


async def test_an_engine_drains_and_goes_with_all_its_ranks():
    async with scene() as it:
        for path, method in (("/e@1/drain", "POST"), ("/e@1", "DELETE")):
            refused = await admin(it.proxy, method, path)
            assert refused.status == 409
            assert b"name e" in refused.body
        assert (await admin(it.proxy, "GET", "/e@7")).status == 404
        told = (await admin(it.proxy, "POST", "/e/drain")).json()
        assert [rank["state"] for rank in told["ranks"]] == ["draining"] * RANKS
        assert not it.proxy.fleet.candidates("simulated")
        await admin(it.proxy, "DELETE", "/e/drain")
        assert len(it.proxy.fleet.candidates("simulated")) == RANKS
        assert (await admin(it.proxy, "DELETE", "/e")).status == 204
        assert not it.proxy.fleet.replicas
        assert (await admin(it.proxy, "GET", "/e@1")).status == 404
        await admin(it.proxy, "POST", "", {"url": it.engine.url, "name": "e"})  # and comes with all of them
        await are_up(it.proxy, *it.names)
        await it.follows()


async def test_a_flush_of_the_engine_empties_all_its_ranks():
    async with scene() as it:
        for rank in range(RANKS):
            await it.placed(rank)
        assert (await admin(it.proxy, "POST", "/e/reset_prefix_cache")).status == 200
        assert [it.proxy.index.blocks(name) for name in it.names] == [0] * RANKS
        assert [rank.model.cache.cached for rank in it.engine.ranks] == [0] * RANKS


async def test_proxies_share_what_each_rank_holds(tmp_path):
    """By its events, and what is placed before they come; each proxy steers to the same rank."""
    async with Server(tmp_path) as server:
        common = {"redis_url": server.url, "secret": "s" * 32}
        async with scene(**common) as it:
            spec = [{"url": it.engine.url, "name": "e"}]
            other = {"replicas": spec, "admin_token": TOKEN, "tokenizer": "engine", **common}
            async with serving(ready=False, **other) as proxy:
                await are_up(proxy, *it.names)
                there = Scene(proxy, it.engine)
                await there.follows()
                for rank in (2, 1):
                    seed = await it.placed(rank)
                    await there.agree()
                    answer = await there.complete(seed)
                    assert (answer.replica, answer.predicted, answer.cached) == (f"e@{rank}", 128, 128)


async def test_one_probe_speaks_for_all_ranks():
    async with scene() as it:
        await it.engine.stop()

        async def down() -> bool:
            return sum((await metric(it.proxy, "warmroute_replica_up")).values()) == 0

        await eventually(down, "all ranks are down")


@pytest.mark.parametrize("after", [2, 1])
async def test_an_engine_that_comes_back_with_another_number_of_ranks_is_other_replicas(after):
    async with scene() as it:
        await it.placed(2)
        await it.engine.stop()
        del it.engine.ranks[after:]
        await it.engine.restart()
        names = it.names if after > 1 else ["e"]
        await are_up(it.proxy, *names)

        async def followed() -> bool:
            modes = await metric(it.proxy, "warmroute_replica_index_mode", mode="events")
            return {dict(labels)["replica"] for labels in modes} == set(names)

        await eventually(followed, "each is followed")
        assert [it.proxy.index.blocks(name) for name in names] == [0] * after
        answer = await it.complete(1)
        again = await it.complete(1)
        assert answer.replica == again.replica
        assert (answer.cached, again.cached) == (0, 128)


async def test_a_drained_engine_that_restarts_with_other_ranks_stays_drained():
    async with scene() as it:
        await admin(it.proxy, "POST", "/e/drain")
        await it.engine.stop()
        del it.engine.ranks[2:]
        await it.engine.restart()
        await eventually(lambda: list(it.proxy.fleet.replicas) == it.names, "it has two ranks")
        assert not it.proxy.fleet.candidates("simulated")
