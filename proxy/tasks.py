"""Background work: the one place that creates tasks, so that each is held, named, logged and ended."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from proxy.logs import logger


class Tasks:
    """The background tasks of one proxy."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background; a failure is logged, never lost."""
        self._hold(asyncio.create_task(work, name=name))

    def every(
        self, name: str, seconds: float, step: Callable[[], Awaitable[None] | None]
    ) -> asyncio.Task[None]:
        """Run `step` every so often; a step that fails is logged and the next one runs.

        The task may be cancelled, which ends it.
        """

        async def loop() -> None:
            while True:
                try:
                    result = step()
                    if result is not None:
                        await result
                except Exception:  # noqa: BLE001 - the next step may succeed
                    logger.exception("%s failed", name)
                await asyncio.sleep(seconds)

        task = asyncio.create_task(loop(), name=name)
        self._hold(task)
        return task

    async def close(self) -> None:
        """End every task."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hold(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
