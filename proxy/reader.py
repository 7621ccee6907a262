"""Reads prompts and keys them without holding up the event loop: on the spot, or in a thread if that is long.

Must never wait for tokens longer than the budget: what is not keyed by then is routed by what is.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from proxy.metrics import Metrics
from proxy.model_pool import ModelPool
from proxy.prompt.keying import Keying
from proxy.prompt.parse import Endpoint, Parsed, parse

P = ParamSpec("P")
T = TypeVar("T")

INLINE_CHARACTERS = 8192
"""A cold prompt up to this long is tokenised on the spot: a thread costs as much."""
LARGE_BODY = 1 << 20
"""Bytes; images, mostly. A conversation of 100,000 tokens has half of it."""


class Reader:
    """Bodies to parsed requests to keys."""

    def __init__(self, metrics: Metrics, executor: Executor, *, budget_seconds: float) -> None:
        self._metrics = metrics
        self._executor = executor
        self._budget_seconds = budget_seconds
        self._loop = asyncio.get_running_loop()

    async def parse(self, endpoint: Endpoint, body: bytes) -> Parsed:
        """What a request says. Raises BadRequest."""
        return await self._away(body, parse, endpoint, body)

    async def key(self, endpoint: Endpoint, body: bytes, parsed: Parsed, pool: ModelPool) -> Keying | None:
        """The keys of a prompt; None, and counted, if it has none."""
        if not await pool.ask_engine(endpoint, body, parsed):
            self._metrics.load_only.add(("engine_tokenize",))
            return None
        assert pool.keyer is not None
        keying = await self._away(body, pool.keyer.begin, parsed)
        if not keying.is_understood:
            self._metrics.load_only.add(("template",))
            return None
        if not keying.done:
            await self._finish_keys(keying)
        return keying

    async def _away(self, body: bytes, work: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
        """Do what a body asks for, in a thread if the body is so large that others would wait."""
        if len(body) < LARGE_BODY:
            return work(*given, **more)
        return await self._loop.run_in_executor(self._executor, partial(work, *given, **more))

    async def _finish_keys(self, keying: Keying) -> None:
        """Key the rest of a prompt; what the budget does not allow for stays without keys."""
        if keying.pending <= INLINE_CHARACTERS:
            keying.run()
            return
        future = self._loop.run_in_executor(self._executor, keying.run)
        done, _ = await asyncio.wait((future,), timeout=self._budget_seconds)
        if done:
            future.result()
        else:
            future.cancel()  # unless it runs already: then the next prompt like this one is warm
            self._metrics.over_budget.add(())
