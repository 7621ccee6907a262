"""A replica that answers like a vLLM and publishes what a test says that its cache does."""

import json
from contextlib import AsyncExitStack
from typing import Self

from tests.support.publisher import Publisher
from tests.support.upstream import METRICS, TEXT, Exchange, Upstream, usage

SIZE = 16
"""Tokens a block."""


def tokens(blocks: int, seed: int = 1) -> list[int]:
    """The token ids of so many blocks, another prompt for each seed."""
    return [seed * 1_000_000 + number for number in range(blocks * SIZE)]


class Engine:
    """A replica that answers and publishes; `async with` it."""

    def __init__(self, *, model: str = "m", block_size: int = SIZE, name: str = "vllm") -> None:
        self.upstream = Upstream(model=model)
        self.publisher = Publisher(topic=f"kv@{model}")
        self.model = model
        self.block_size = block_size
        self.name = name
        self.started = 1000.0
        self.upstream.paths["/metrics"] = self._metrics
        self.upstream.paths["/kv_event_sources"] = self._sources
        self.upstream.paths["/v1/completions"] = self._complete
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.upstream)
        await self._stack.enter_async_context(self.publisher)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        assert not self.upstream.violations
        assert not self.upstream.faults, self.upstream.faults

    async def restart(self) -> None:
        """Another process at the same address, whose numbers begin at 0 and whose cache is empty."""
        self.started += 10
        await self.publisher.stop()
        await self.publisher.start()

    async def _metrics(self, exchange: Exchange) -> None:
        page = METRICS.replace('block_size="16"', f'block_size="{self.block_size}"')
        page += f"process_start_time_seconds {self.started}\n"
        await exchange.answer(page.encode(), "200 OK", [TEXT])

    async def _sources(self, exchange: Exchange) -> None:
        publisher = self.publisher
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint.replace("127.0.0.1", "*"),
            "replay_endpoint": publisher.replay_endpoint.replace("127.0.0.1", "*"),
            "topic": publisher.topic.decode(),
        }
        await exchange.json({"0": source})

    async def _complete(self, exchange: Exchange) -> None:
        prompt = json.loads(exchange.request.body)["prompt"]
        choice = {"index": 0, "text": "ok", "finish_reason": "stop"}
        await exchange.json({"id": "c", "choices": [choice], "usage": usage(len(prompt), cached=None)})
