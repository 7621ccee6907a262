"""A client of raw bytes: sends exactly what it is given, and can misbehave in every way a real one does."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Self

from tests.support.eventually import PATIENCE
from tests.support.http import Response, ResponseReader, request
from tests.support.wire import Wire


class Client(Wire):
    """One connection to the proxy."""

    def __init__(self) -> None:
        super().__init__()
        self._read = 0
        self._start = 0
        self._reader: ResponseReader | None = None

    @classmethod
    async def connect(cls, port: int, *, receive_buffer: int | None = None) -> Self:
        """Connect to 127.0.0.1. A small `receive_buffer`, in bytes, makes backpressure come early."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(sock, ("127.0.0.1", port))
        except OSError:
            sock.close()
            raise
        _, client = await loop.create_connection(cls, sock=sock)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.transport.is_closing():
            self.transport.abort()

    async def response(self, method: str = "GET", *, within: float = PATIENCE) -> Response:
        """The next response; not `complete` where the proxy cut it. AssertionError where there is none."""
        reader = self._under_way(method)
        while not self._feed():
            if self.gone.is_set():
                reader.feed(b"")
                break
            await self.arrival(within=within)
        assert reader.begun, f"no response, but {bytes(self.received[self._start :])!r}"
        self._reader = None
        if reader.used is not None:
            self._read = self._start + reader.used
        return reader.message

    async def until(
        self, part: bytes | None = None, method: str = "GET", *, within: float = PATIENCE
    ) -> Response:
        """The response under way, once its body ends with `part`; `response` reads on."""
        reader = self._under_way(method)
        while True:
            over = self._feed() or self.gone.is_set()
            if reader.begun and (part is None or reader.message.body.endswith(part)):
                return reader.message
            assert not over, f"it ended with {bytes(self.received[self._start :][-300:])!r}"
            await self.arrival(within=within)

    async def exchange(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        headers: Sequence[tuple[str, str | int]] = (),
        *,
        within: float = PATIENCE,
    ) -> Response:
        """Send one well-formed request and read its whole response."""
        await self.send(request(method, target, body, headers))
        return await self.response(method, within=within)

    def _under_way(self, method: str) -> ResponseReader:
        if self._reader is None:
            self._reader, self._start = ResponseReader(method), self._read
        return self._reader

    def _feed(self) -> bool:
        assert self._reader is not None
        fresh = bytes(self.received[self._read :])
        self._read += len(fresh)
        return self._reader.feed(fresh) if fresh else self._reader.used is not None


async def exchange(
    port: int,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Sequence[tuple[str, str | int]] = (),
    *,
    within: float = PATIENCE,
) -> Response:
    """One request on a connection of its own."""
    async with await Client.connect(port) as client:
        return await client.exchange(method, target, body, headers, within=within)


async def converse(port: int, raw: bytes, *, within: float = PATIENCE) -> bytes:
    """Send raw bytes, and return all that comes until the proxy closes; TimeoutError if it does not."""
    async with await Client.connect(port) as client:
        await client.send(raw)
        await client.until_gone(within=within)
        return bytes(client.received)
