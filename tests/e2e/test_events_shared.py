"""Two proxies with a common index: one of them follows a replica's events, and both know what they say."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from proxy.app import Proxy
from proxy.config import Settings
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.publisher import removed, stored
from tests.support.publishing import SIZE, Engine, tokens
from tests.support.redis import Server


class Pair:
    """Both proxies, and the replica before which they stand."""

    def __init__(self, engine: Engine, stack: AsyncExitStack, settings: dict[str, Any]) -> None:
        self.engine = engine
        self.proxies: list[Proxy] = []
        self._stack = stack
        self._settings = settings

    async def join(self) -> Proxy:
        settings = Settings(port=0, tokenizer="engine", log_level="warning", **self._settings)
        proxy = await self._stack.enter_async_context(Proxy(settings))
        self.proxies.append(proxy)
        return proxy

    async def follower(self) -> Proxy:
        """The proxy that follows the replica's events, once one does."""

        def found() -> Proxy | None:
            following = [each for each in self.proxies if each._upkeep.ingest.following("r") is not None]
            assert len(following) < 2
            return following[0] if following else None

        return await eventually(found, "a proxy follows")

    async def know(self, blocks: int) -> None:
        """Wait until every proxy believes its events, and that the replica holds so many blocks."""
        expected = [("events", blocks)] * len(self.proxies)

        def known() -> bool:
            return self.beliefs == expected

        await eventually(known, f"{blocks} blocks are known to all")

    @property
    def beliefs(self) -> list[tuple[str, int]]:
        return [(each.index.mode("r"), each.index.confirmed_blocks("r")) for each in self.proxies]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server(tmp_path))
        engine = await stack.enter_async_context(Engine())
        settings = {
            "redis_url": server.url,
            "secret": "s" * 32,
            "replicas": [{"url": engine.upstream.url, "name": "r"}],
            "probes": {"interval": 0.2},
        }
        pair = Pair(engine, stack, settings)
        await pair.join()
        await pair.join()
        yield pair


async def predicted(proxy: Proxy, ids: list[int]) -> int:
    body = json.dumps({"model": "m", "prompt": [*ids, 7], "max_tokens": 1}).encode()
    response = await exchange(proxy.port, "POST", "/v1/completions", body)
    assert response.status == 200, bytes(response.body)
    return int(response.one("x-warmroute-predicted-cached-tokens") or -1)


async def test_what_one_proxy_hears_both_know(pair):
    await pair.follower()
    await pair.engine.publisher.publish(stored([1, 2, 3], tokens(3)))
    await pair.know(3)
    await pair.engine.publisher.publish(removed(3))
    await pair.know(2)
    first, second = pair.proxies
    assert await predicted(first, tokens(3)) == 2 * SIZE
    await pair.engine.publisher.publish(stored([3], tokens(3)[2 * SIZE :], parent=2))
    await pair.know(3)
    assert await predicted(second, tokens(3)) == 3 * SIZE


async def test_another_proxy_goes_on_with_the_handles_that_the_first_one_knew(pair):
    first = await pair.follower()
    await pair.engine.publisher.publish(stored([1, 2], tokens(2)))
    await pair.engine.publisher.publish(stored([3], tokens(1, 3)))
    await pair.know(3)
    pair.engine.publisher.buffer = pair.engine.publisher.buffer[
        1:
    ]  # the oldest step is not to be had any more
    pair.proxies.remove(first)
    await first.close(grace=0.0)
    (second,) = pair.proxies
    assert await pair.follower() is second
    late = await pair.join()
    await pair.engine.publisher.publish(removed(1))
    await pair.know(2)
    await pair.engine.publisher.publish(stored([4], tokens(2, 3)[SIZE:], parent=3))
    await pair.know(3)
    assert await predicted(late, tokens(2)) == 0
    assert await predicted(second, tokens(2, 3)) == 2 * SIZE


async def test_E04_a_restart_forgets_the_replicas_blocks_in_every_proxy(pair):
    await pair.follower()
    await pair.engine.publisher.publish(stored([1, 2], tokens(2)))
    await pair.know(2)
    await pair.engine.restart()
    await pair.know(0)
    await pair.engine.publisher.publish(stored([1], tokens(1, 9)))
    await pair.know(1)
    late = await pair.join()
    await pair.know(1)
    assert await predicted(late, tokens(2)) == 0
