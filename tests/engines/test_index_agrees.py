"""The index and the engines agree: mixed traffic with evictions, flushes, and what is held or gone.

The share of predictions that come true is measured by `bench agreement`, which also writes the page; here it
is a test. Replicas must publish KV events and replay them (`--kv-events-config`).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from bench import agreement, processes
from tests.engines.calls import BLOCK, SLOW, Answer, get, post, words
from tests.engines.conftest import Served
from tests.support.eventually import eventually

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Following:
    """A proxy that follows the events of one replica, which was empty when it began."""

    url: str
    engine: str

    async def ask(self, prefix: str, question: str = "Go") -> Answer:
        messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
        body = {"model": "mid", "temperature": 0, "ignore_eos": True, "messages": messages, "max_tokens": 2}
        answer = await post(self.url, CHAT, body)
        assert answer.status == 200, answer.text
        return answer

    async def state(self) -> dict[str, object]:
        (state,) = (await get(self.url, "/admin/replicas")).json["replicas"]
        return dict(state)

    async def settled(self) -> int:
        """The index's blocks once they no longer change: every event has come, no prediction is left."""
        seen: list[int] = []

        async def steady() -> bool:
            blocks = (await self.state())["index_blocks"]
            assert isinstance(blocks, int)
            seen.append(blocks)
            return len(seen) > 100 and len(set(seen[-100:])) == 1

        await eventually(steady, "the index no longer changes", within=SLOW)
        return seen[-1]


async def in_events(url: str) -> bool:
    replicas = (await get(url, "/admin/replicas")).json["replicas"]
    return all(replica["index_mode"] == "events" for replica in replicas)


@pytest.fixture
async def following(rested: list[str], tmp_path: Path) -> AsyncIterator[Following]:
    engine = rested[0]
    assert (await get(engine, "/kv_event_sources")).status == 200, f"{engine} must publish KV events"
    async with processes.proxy(
        [engine], "prefix_cost", tmp_path / "log", arguments=["--redis-url", "none"]
    ) as proxy:
        (url,) = proxy.urls
        one = Following(url, engine)
        await one.ask(
            words("first", 100)
        )  # there is something to publish, so the feed is known to be followed
        await eventually(lambda: in_events(url), "its events are followed", within=SLOW)
        assert (await post(url, "/admin/replicas/r1/reset_prefix_cache", b"")).status == 200
        await one.ask(words("second", 100))
        yield one


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("events", [True, False], ids=["events", "learned"])
async def test_what_is_foretold_is_what_engines_report(rested: list[str], tmp_path: Path, events: bool):
    async with aiohttp.ClientSession() as session:
        facts = [await agreement.fleet.facts(session, url) for url in rested]
    run = await agreement.measure(rested, events=events, logs=tmp_path)
    figures = agreement.summary(run, BLOCK, sum(each.cache_tokens for each in facts))
    assert (figures["failed"], figures["unknown"], figures["counted_wrong"]) == (0, 0, 0), figures
    assert figures["turnover"] > 1, "nothing was evicted: this proves little"
    assert figures["all"]["considered"] > 100
    assert figures["all"]["share"] >= agreement.TARGET[events], figures


async def test_what_the_index_says_is_held_is_found_and_what_it_says_is_gone_is_not(following: Following):
    """More prefixes than fit, some used again: afterwards some are held, some in part, some not at all."""
    tokens, capacity = 1500, (await following.state())["cache_blocks"]
    assert isinstance(capacity, int)
    prefixes = [words(f"held {number}", tokens) for number in range(2 * capacity * BLOCK // tokens)]
    for number, prefix in enumerate(prefixes):
        await following.ask(prefix)
        await following.ask(prefixes[number // 2], "Go again")
    assert 0 < await following.settled() <= capacity
    seen = []
    for prefix in reversed(prefixes):
        answer = await following.ask(prefix)
        prompt, cached = answer.usage()
        assert answer.counted == prompt
        assert abs(answer.predicted - cached) <= BLOCK, (answer.predicted, cached, seen)
        seen.append(cached)
    assert min(seen) == 0
    assert max(seen) >= tokens - 2 * BLOCK


async def test_an_engine_that_was_flushed_by_others_says_so_with_its_next_events(following: Following):
    prefix = words("flushed", 600)
    await following.ask(prefix)
    held = await following.ask(prefix)
    assert held.predicted == held.usage()[1] > 0
    assert (await post(following.engine, "/reset_prefix_cache", b"")).status == 200
    await following.ask(words("something else", 200))
    await following.settled()
    gone = await following.ask(prefix)
    assert (gone.predicted, gone.usage()[1]) == (0, 0)


async def test_a_flush_through_the_proxy_is_forgotten_at_once(following: Following):
    prefix = words("flushed here", 600)
    await following.ask(prefix)
    assert (await post(following.url, "/admin/replicas/r1/reset_prefix_cache", b"")).status == 200
    gone = await following.ask(prefix)
    assert (gone.predicted, gone.usage()[1]) == (0, 0)
    await following.settled()
    back = await following.ask(prefix)
    assert back.predicted == back.usage()[1] > 0


async def test_blocks_in_the_index_are_those_that_the_engine_says_it_stored(following: Following):
    """Prompts at once, each of them twice, that fit easily: each block is there once, and none is missing."""
    assert (await post(following.url, "/admin/replicas/r1/reset_prefix_cache", b"")).status == 200
    await following.ask(words("an event that tells of it", 100))
    before = await following.settled()
    prefixes = [words(f"stored {number}", 700) for number in range(6)]
    answers = await asyncio.gather(*(following.ask(prefix) for prefix in [*prefixes, *prefixes]))
    distinct = {answer.usage()[0] // BLOCK for answer in answers[:6]}
    stored = sum((answer.usage()[0] + 1) // BLOCK for answer in answers[:6])  # the last token is not computed
    assert distinct
    assert await following.settled() - before == stored


async def test_a_new_proxy_knows_from_the_replay_what_the_engine_holds(following: Following, tmp_path: Path):
    prefix = words("replayed", 600)
    first = await following.ask(prefix)
    async with processes.proxy(
        [following.engine], "prefix_cost", tmp_path / "second.log", arguments=["--redis-url", "none"]
    ) as proxy:
        second = Following(proxy.urls[0], following.engine)
        await eventually(lambda: in_events(second.url), "its events are followed", within=SLOW)
        answer = await second.ask(prefix)
    assert answer.predicted == answer.usage()[1] == (first.counted - 1) // BLOCK * BLOCK


async def test_proxies_with_a_common_index_agree_with_the_engines(rested: list[str], tmp_path: Path):
    """What one proxy's requests left is foretold by another one, and only one of them follows each feed."""
    async with processes.valkey(tmp_path / "valkey.log") as server:
        settings = ["--redis-url", server.urls[0], "--secret", "0123456789abcdef" * 2]
        async with processes.proxies(2, rested, "prefix_cost", tmp_path, arguments=settings) as pair:
            one, other = (Served(proxy.urls[0], {}) for proxy in pair)
            for served in (one, other):
                for number in range(1, len(rested) + 1):
                    reset = f"/admin/replicas/r{number}/reset_prefix_cache"
                    assert (await post(served.url, reset, b"")).status == 200
            homes = {}
            for number in range(4):
                prefix = words(f"common {number}", 600)
                homes[prefix] = (await Following(one.url, "").ask(prefix)).replica
            for url in (one.url, other.url):
                await eventually(lambda url=url: in_events(url), "both know the feeds", within=SLOW)
            for prefix, home in homes.items():
                answer = await Following(other.url, "").ask(prefix)
                assert answer.replica == home
                assert abs(answer.predicted - answer.usage()[1]) <= BLOCK
                assert answer.predicted > 600 - 2 * BLOCK
