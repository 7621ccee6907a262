"""Waiting for a condition with a deadline: the one way that tests wait for what they cannot be told of."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 10.0
"""Seconds a condition may take before a test fails: far more than it needs, for slow shared machines."""


async def eventually(
    condition: Callable[[], Awaitable[Any] | Any], what: str = "", *, within: float = PATIENCE
) -> Any:
    """Poll `condition` until its answer is true, and return that; AssertionError after `within` seconds."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {within} s: {what or inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.005)


async def turns(count: int = 4) -> None:
    """Let the event loop go round, so that what was just written reaches its reader in this process.

    What is sent before and what is sent after then come in separate reads: so tests cut a stream.
    """
    for _ in range(count):
        await asyncio.sleep(0)
