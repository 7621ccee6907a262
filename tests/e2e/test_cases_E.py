"""E and D03: what engines say of their caches, from a publisher's socket to where requests go.

Prompts are token ids, so that what the engine stores and what a client sends are the same blocks. What the
proxy believes is what it answers in `x-warmroute-predicted-cached-tokens`.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from proxy.app import Proxy
from proxy.ingest import Ingest
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import metric, serving
from tests.support.publisher import CLEARED, removed, stored
from tests.support.publishing import SIZE, Engine, tokens

NEVER = {"interval": 3600.0}
"""Probes that see the replicas at the start and not again: what is noticed after that came by the events."""


class Scene:
    """A proxy in front of engines."""

    def __init__(self, proxy: Proxy, engines: list[Engine]) -> None:
        self.proxy = proxy
        self.engines = engines

    async def predicted(self, ids: list[int], model: str = "m") -> int:
        """Tokens that the proxy believes to be cached where it sends this prompt and one token more."""
        return int((await self.complete([*ids, 7], model))["x-warmroute-predicted-cached-tokens"])

    async def complete(self, ids: list[int], model: str = "m") -> dict[str, str]:
        """The headers of an answer."""
        body = json.dumps({"model": model, "prompt": ids, "max_tokens": 1}).encode()
        response = await exchange(self.proxy.port, "POST", "/v1/completions", body)
        assert response.status == 200, response.body
        return {name.decode().lower(): value.decode() for name, value in response.headers}

    def held(self, engine: Engine) -> int:
        """Blocks that this engine's events have said it holds."""
        return self.proxy.index.confirmed_blocks(self.name(engine))

    @staticmethod
    def name(engine: Engine) -> str:
        return f"127.0.0.1:{engine.upstream.port}"

    async def holds(self, blocks: int, engine: Engine | None = None) -> None:
        engine = engine or self.engines[0]
        await eventually(lambda: self.held(engine) == blocks, f"{blocks} blocks, not {self.held(engine)}")

    async def mode(self, mode: str, engine: Engine | None = None) -> None:
        """Wait for what the gauge says of a replica."""
        name = self.name(engine or self.engines[0])

        async def shown() -> bool:
            labels = {"replica": name, "mode": mode}
            return sum((await metric(self.proxy, "warmroute_replica_index_mode", **labels)).values()) == 1

        await eventually(shown, f"{name} is {mode}")


@asynccontextmanager
async def scene(*engines: Engine, **settings: Any) -> AsyncIterator[Scene]:
    settings = {"tokenizer": "engine", "probes": NEVER, **settings}
    async with serving(*(engine.upstream for engine in engines), **settings) as proxy:
        it = Scene(proxy, list(engines))
        yield it


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine() as engine:
        yield engine


@pytest.fixture
async def other() -> AsyncIterator[Engine]:
    async with Engine() as engine:
        yield engine


async def test_a_request_goes_to_the_replica_whose_events_say_that_it_holds_the_prompt(engine, other):
    async with scene(engine, other) as it:
        await it.mode("events", engine)
        await it.mode("events", other)
        for turn, one in enumerate((engine, other, engine)):
            ids = tokens(8, seed=turn + 1)
            held = it.held(one)
            await one.publisher.publish(stored(range(turn * 8, turn * 8 + 8), ids))
            await it.holds(held + 8, one)
            headers = await it.complete([*ids, 7])
            assert headers["x-warmroute-replica"] == it.name(one)
            assert headers["x-warmroute-predicted-cached-tokens"] == str(8 * SIZE)


async def test_E02_an_evicted_block_does_not_come_back_with_a_late_replay(engine):
    async with scene(engine) as it:
        await it.mode("events")
        publisher = engine.publisher
        publisher.answers.clear()
        await publisher.publish(stored([1, 2], tokens(2)), lose=True)
        await publisher.publish(removed(2))  # exposes the gap
        await eventually(lambda: len(publisher.asked) > 1, "the gap is asked for")
        await publisher.publish(stored([9], tokens(1, 9)))
        publisher.answers.set()
        await it.holds(2)
        assert await it.predicted(tokens(2)) == SIZE
        assert await it.predicted(tokens(1, 9)) == SIZE


async def test_E03_numbers_that_begin_anew_clear_the_replica(engine):
    async with scene(engine) as it:
        for number in range(20):
            await engine.publisher.publish(stored([number], tokens(1, number + 1)))
        await it.holds(20)
        engine.started += 10
        engine.publisher.sequence, engine.publisher.buffer = 0, []
        for number in range(3):
            await engine.publisher.publish(stored([number], tokens(1, 100 + number)))
        await it.holds(3)
        assert await it.predicted(tokens(1, 5)) == 0
        assert await it.predicted(tokens(1, 101)) == SIZE


async def test_E03_a_batch_that_comes_again_is_passed_over(engine):
    async with scene(engine) as it:
        for number in range(20):
            await engine.publisher.publish(stored([number], tokens(1, number + 1)))
        await it.holds(20)
        await engine.publisher.publish(removed(18))
        await engine.publisher.deliver(*engine.publisher.buffer[18])  # it stored 18
        await engine.publisher.publish(removed(1))
        await it.holds(18)
        assert await it.predicted(tokens(1, 19)) == 0
        assert await it.predicted(tokens(1, 5)) == SIZE


async def test_E03_a_restart_first_seen_in_the_middle_of_its_numbers_clears_the_replica(engine):
    async with scene(engine) as it:
        for number in range(50):
            await engine.publisher.publish(stored([number], tokens(1, number + 1)))
        await it.holds(50)
        engine.started += 10
        engine.publisher.sequence, engine.publisher.buffer = 0, []
        for number in range(37):
            await engine.publisher.publish(stored([number], tokens(1, 100 + number)), lose=True)
        await engine.publisher.publish(stored([500], tokens(1, 500)))
        await it.holds(38)
        assert await it.predicted(tokens(1, 5)) == 0
        assert await it.predicted(tokens(1, 120)) == SIZE


async def test_E04_a_restart_between_two_probes_forgets_what_the_process_held(engine):
    async with scene(engine) as it:
        for number in range(20):
            await engine.publisher.publish(stored([number], tokens(1, number + 1)))
        await it.holds(20)
        assert await it.predicted(tokens(1, 5)) == SIZE
        await engine.restart()
        await it.holds(0)
        assert await it.predicted(tokens(1, 6)) == 0
        await it.mode("events")
        await engine.publisher.publish(stored([1], tokens(1, 200)))
        await it.holds(1)


async def test_E05_a_clear_forgets_one_replica_and_what_comes_after_it_counts(engine, other):
    async with scene(engine, other) as it:
        for one in (engine, other):
            await one.publisher.publish(stored([1, 2, 3, 4, 5], tokens(5)))
            await it.holds(5, one)
        await engine.publisher.publish(CLEARED)
        await it.holds(0, engine)
        await engine.publisher.publish(stored([1], tokens(1)))
        await it.holds(1, engine)
        assert it.held(other) == 5
        headers = await it.complete([*tokens(5), 7])
        assert headers["x-warmroute-replica"] == it.name(other)


async def test_E06_a_block_is_there_while_a_copy_of_it_is(engine):
    async with scene(engine) as it:
        publisher = engine.publisher
        await publisher.publish(removed(77))  # never heard of
        await publisher.publish(stored([1], tokens(1)))
        await publisher.publish(stored([1], tokens(1)))
        await publisher.publish(removed(1))
        await publisher.publish(stored([2], tokens(1, 2)))
        await it.holds(2)
        assert await it.predicted(tokens(1)) == SIZE
        await publisher.publish(removed(1))
        await it.holds(1)
        await publisher.deliver(*publisher.buffer[4])  # 2 is stored, again: the same message
        await publisher.publish(removed(2))
        await it.holds(0)


async def test_E06_an_engine_of_which_it_is_not_known_is_believed_at_its_first_word_of_a_removal():
    async with Engine(name="sglang") as engine:
        spec = {"url": engine.upstream.url, "engine": "sglang", "kv_events": engine.publisher.endpoint}
        async with scene(engine, replicas=[spec]) as it:
            await it.mode("learned")
            await engine.publisher.subscribed()
            await engine.publisher.publish(stored([1], tokens(1)), stored([1], tokens(1)))
            await it.holds(1)
            await engine.publisher.publish(removed(1))
            await it.holds(0)


@pytest.mark.parametrize(("size", "blocks"), [(64, 4), (528, 33), (8, 2)])
async def test_E08_blocks_of_another_size_are_followed_where_one_divides_the_other(engine, size, blocks):
    async with scene(engine) as it:
        ids = tokens(blocks)
        count = len(ids) // size
        await engine.publisher.publish(stored(range(1, count + 1), ids, block_size=size))
        await it.holds(blocks)
        assert await it.predicted(ids) == blocks * SIZE
        assert await it.predicted(tokens(1, 9)[:10]) == 0
        await it.mode("events")
        await engine.publisher.publish(removed(*range(1, count + 1)))
        await it.holds(0)


async def test_E08_blocks_that_fit_no_multiple_are_refused_loudly(engine, caplog):
    async with scene(engine) as it:
        await it.mode("events")
        await engine.publisher.publish(stored([1], list(range(2100)), block_size=2100))
        await it.mode("learned")
        await eventually(lambda: "blocks of 2100 tokens" in caplog.text, "it is said")
        assert it.held(engine) == 0
        await it.predicted(tokens(4))
        assert await it.predicted(tokens(4)) == 4 * SIZE  # from what was routed


async def test_E09_only_blocks_that_attend_to_everything_are_hits(engine):
    async with scene(engine) as it:
        full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
        sliding = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
        publish = engine.publisher.publish
        await publish(stored([1], tokens(1), **full), stored([1], tokens(1), **sliding))
        await publish(stored([2], tokens(1, 2), medium="CPU"), stored([3], tokens(1, 3)))
        await it.holds(2)
        assert await it.predicted(tokens(1, 2)) == 0
        await publish(
            {**removed(1), "group_idx": 1}, {**removed(3), "medium": "CPU"}, stored([4], tokens(1, 4))
        )
        await it.holds(3)
        assert await it.predicted(tokens(1)) == SIZE
        await publish({**removed(1), "group_idx": 0})
        await it.holds(2)


async def test_E12_a_replica_that_publishes_nothing_is_learned_with_one_line_that_says_what_to_do(
    engine, caplog, monkeypatch
):
    monkeypatch.setattr("proxy.upkeep.Ingest", partial(Ingest, silent_seconds=0.1))
    async with scene(engine) as it:
        await it.mode("events")  # it has answered a replay: it is there, and its cache is empty
        sent = 0

        async def silent() -> bool:
            nonlocal sent
            sent += 1
            await it.predicted(tokens(4, sent))
            return "--kv-events-config" in caplog.text

        await eventually(silent, "it is said")
        await it.mode("learned")
        for number in range(3):
            await it.predicted(tokens(4, 900 + number))
        assert caplog.text.count("--kv-events-config") == 1
        assert await it.predicted(tokens(4, 901)) == 4 * SIZE  # from what was routed
        await engine.publisher.publish(stored([1, 2], tokens(2, 950)))
        await it.mode("events")
        await it.holds(2)
        assert await it.predicted(tokens(2, 950)) == 2 * SIZE


async def test_E12_a_healthy_replica_that_has_nothing_to_say_stays(engine, monkeypatch):
    monkeypatch.setattr("proxy.upkeep.Ingest", partial(Ingest, silent_seconds=0.05))
    async with scene(engine, probes={"interval": 0.05}) as it:
        await it.mode("events")
        for _ in range(5):
            await it.predicted([1, 2, 3])  # no block of its own
        await it.mode("events")
        up = await metric(it.proxy, "warmroute_replica_up")
        assert list(up.values()) == [1]


async def test_D03_another_pod_at_the_same_address_inherits_nothing():
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Engine(model="m"))
        it = await stack.enter_async_context(scene(first, probes={"interval": 0.05}))
        await first.publisher.publish(stored([1, 2], tokens(2)))
        await it.holds(2)
        assert await it.predicted(tokens(2)) == 2 * SIZE
        pods = [first]
        for model, started in (("n", 2000.0), ("m", 3000.0)):
            old = pods[-1]
            await old.upstream.die()
            await old.publisher.stop()
            new = Engine(model=model)
            new.started = started
            new.upstream.port = old.upstream.port
            new.publisher.endpoint = old.publisher.endpoint
            new.publisher.replay_endpoint = old.publisher.replay_endpoint
            await stack.enter_async_context(new)
            pods.append(new)

            async def serves(model: str = model) -> bool:
                page = await exchange(it.proxy.port, "GET", "/v1/models")
                return [card["id"] for card in json.loads(page.body)["data"]] == [model]

            await eventually(serves, f"the pod of {model} is found")
            await it.mode("events", new)
            assert it.held(new) == 0
            assert await it.predicted(tokens(2), model) == 0
            await new.publisher.publish(stored([1], tokens(1, 50)))
            await it.holds(1, new)
            assert await it.predicted(tokens(1, 50), model) == SIZE
            assert len(new.upstream.requests) == 2
