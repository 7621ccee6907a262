"""Calls in both directions over one stream between a worker and its supervisor.

A frame is four bytes of length and msgpack of [number, what, details]: a call has a number from 1, its answer
the same below zero, and what needs no answer 0. Incoming frames are served in the order in which they came,
up to where serving one waits. Must only join processes that trust each other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec

from proxy.logs import logger

Serve = Callable[[str, Any], Awaitable[Any] | Any]
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder().decode


class Gone(ConnectionError):
    """The other side has ended, or could not do what it was asked."""


class Channel:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, serve: Serve) -> None:
        """`serve` does what the other side asks; what it returns, or what that comes to, is the answer."""
        self.closed = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._serve = serve
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: set[asyncio.Future[Any]] = set()

    async def call(self, what: str, details: Any = None, *, seconds: float) -> Any:
        """The other side's answer. Raises Gone, or TimeoutError after so many seconds."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, what, details)
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            del self._waiting[number]

    def tell(self, what: str, details: Any = None) -> None:
        """Say something that needs no answer; nothing happens if the other side has ended."""
        try:
            self._send(0, what, details)
        except Gone:
            pass

    async def run(self) -> None:
        """Serve until the other side has ended, or `close`."""
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "little")
                self._take(*_DECODE(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """End it; whoever waits for an answer gets none."""
        self.closed.set()
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Gone("the other process has ended"))

    def _send(self, number: int, what: str, details: Any) -> None:
        if self.closed.is_set():
            raise Gone("the other process has ended")
        frame = _ENCODE((number, what, details))
        self._writer.write(len(frame).to_bytes(4, "little") + frame)

    def _take(self, number: int, what: str, details: Any) -> None:
        if number < 0:
            answer = self._waiting.get(-number)
            if answer is not None and not answer.done():
                if what == "failed":
                    answer.set_exception(Gone(str(details)))
                else:
                    answer.set_result(details)
            return
        try:
            result = self._serve(what, details)
        except Exception:  # noqa: BLE001 - the other side is told, and goes on
            logger.exception("%s failed", what)
            self._answer(number, "failed", f"{what} failed there; its log says why")
            return
        if isinstance(result, Awaitable):
            serving = asyncio.ensure_future(self._finish(number, what, result))
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)
        else:
            self._answer(number, "done", result)

    async def _finish(self, number: int, what: str, result: Awaitable[Any]) -> None:
        try:
            done = await result
        except Exception:  # noqa: BLE001 - likewise
            logger.exception("%s failed", what)
            self._answer(number, "failed", f"{what} failed there; its log says why")
        else:
            self._answer(number, "done", done)

    def _answer(self, number: int, what: str, details: Any) -> None:
        if number:
            try:
                self._send(-number, what, details)
            except Gone:
                pass
