"""Reads and keys the prompts that would hold up the event loop: in threads.

Must never wait for tokens longer than the budget: what is not keyed by then is routed by what is.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
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
LARGE_BODY = 1 << 18
"""Bytes, some 60,000 tokens: of those that are longer, several at once would hold up every stream."""
THREADS = 2
NICER = 10
"""Steps of priority that the threads stand back behind the event loop, which may have one core with them."""


def threads() -> ThreadPoolExecutor:
    """Threads for a `Reader`, all started: whoever starts one waits until it runs."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="prompts", initializer=_stand_back)
    all_there = threading.Barrier(THREADS)
    for _ in range(THREADS):
        pool.submit(all_there.wait)
    return pool


def _stand_back() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)


class Reader:
    """Large bodies to parsed requests, long prompts to keys."""

    def __init__(self, metrics: Metrics, executor: Executor, *, budget_seconds: float) -> None:
        self._metrics = metrics
        self._executor = executor
        self._budget_seconds = budget_seconds
        self._loop = asyncio.get_running_loop()

    async def parse(self, endpoint: Endpoint, body: bytes) -> Parsed:
        """What a large body says. Raises BadRequest."""
        return await self._away(parse, endpoint, body)

    async def begin(self, endpoint: Endpoint, body: bytes, parsed: Parsed, pool: ModelPool) -> Keying | None:
        """Begin to key the prompt of a large body, or one that the engine tokenises; None if it does not."""
        if not await pool.ask_engine(endpoint, body, parsed):
            self._metrics.load_only.add(("engine_tokenize",))
            return None
        assert pool.keyer is not None
        return await self._away(pool.keyer.begin, parsed)

    async def finish(self, keying: Keying) -> None:
        """Key the rest of a long prompt; what the budget does not allow for stays without keys."""
        future = self._loop.run_in_executor(self._executor, keying.run)
        done, _ = await asyncio.wait((future,), timeout=self._budget_seconds)
        if done:
            future.result()
        else:
            future.cancel()  # unless it runs already: then the next prompt like this one is warm
            self._metrics.over_budget.add(())

    async def _away(self, work: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
        return await self._loop.run_in_executor(self._executor, partial(work, *given, **more))
