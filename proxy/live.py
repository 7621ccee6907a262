"""What is going on, told once a second to all who watch: server-sent events, one frame for all of them.

Nothing is made while nobody watches. Bounded: so many watchers, and each holds one frame at most, however
slowly it reads; it misses those in between. Must never keep the proxy from ending.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from proxy.answers import SERVER
from proxy.errors import NoReplica, Shed
from proxy.tasks import Tasks

SECONDS = 1.0
"""Between two frames."""
MOST = 32
"""Watchers at once."""
SLOW_SECONDS = 30.0
"""How long a watcher may take to read a frame before it counts as gone."""
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # nginx would hold back what is to be seen at once
    "Server": SERVER,
}


Make = Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]]


class Live:
    """The watchers, and the frame that they get next."""

    def __init__(self, make: Make, tasks: Tasks) -> None:
        """`make` gives what is told."""
        self.watchers = 0
        self.make = make
        self._tasks = tasks
        self._ticking: asyncio.Task[None] | None = None
        self._frame = b""
        self._number = 0
        """Of the latest frame."""
        self._told = asyncio.Event()
        """Set, and replaced, with each frame."""
        self._ended = False

    async def stream(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with frames until the watcher leaves. Raises Shed if too many watch."""
        if self._ended:
            raise NoReplica("the proxy is about to end")
        if self.watchers >= MOST:
            raise Shed(f"{MOST} watch already: close one", retry_after=10)
        response = web.StreamResponse(headers=_HEADERS)
        self.watchers += 1
        try:
            await response.prepare(request)
            await self._follow(response)
        except (ConnectionError, TimeoutError):  # it left, or it does not read
            response.force_close()
        finally:
            self.watchers -= 1
            if not self.watchers and self._ticking is not None:
                self._ticking.cancel()
                self._ticking, self._frame = None, b""
        return response

    def end(self) -> None:
        """End every stream; no more begin."""
        self._ended = True
        self._told.set()

    async def _follow(self, response: web.StreamResponse) -> None:
        if self._ticking is None:
            self._ticking = self._tasks.every("live", SECONDS, self._tick)
        seen = 0
        while not self._ended:
            if self._frame and self._number != seen:
                seen = self._number
                async with asyncio.timeout(SLOW_SECONDS):
                    await response.write(self._frame)
            else:
                await self._told.wait()
        await response.write_eof()

    async def _tick(self) -> None:
        told = self.make()
        if inspect.isawaitable(told):
            told = await told
        self._frame = b"data: " + msgspec.json.encode(told) + b"\n\n"
        self._number += 1
        if not self._ended:
            self._told.set()
            self._told = asyncio.Event()
