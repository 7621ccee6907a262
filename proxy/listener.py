"""The open connections of clients: what new ones get, and how all of them end."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic

from aiohttp import web

from proxy.connection import ClientConnection
from proxy.plain import LARGEST, Answer, PlainConnection
from proxy.prompt.parse import Endpoint

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Listener:
    """Makes the connections, plain ones that may become general ones."""

    def __init__(
        self,
        handler: Handler,
        answer: Answer,
        *,
        header_bytes: int,
        body_bytes: int,
        keepalive_seconds: float,
    ) -> None:
        self.answer = answer
        self.endpoints: Mapping[bytes, Endpoint] = {
            f"POST {endpoint.value} HTTP/1.1".encode(): endpoint for endpoint in Endpoint
        }
        self.header_bytes = header_bytes
        self.largest = min(body_bytes, LARGEST)
        self.plain: set[PlainConnection] = set()
        self._keepalive_seconds = keepalive_seconds
        self._general = web.Server(handler, handler_cancellation=True)
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> PlainConnection:
        """A connection for the event loop's listener."""
        return PlainConnection(self)

    def general(self) -> ClientConnection:
        """A connection as aiohttp serves it."""
        return ClientConnection(
            self._general,
            loop=self._loop,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._keepalive_seconds,
            max_field_size=self.header_bytes,
            max_line_size=self.header_bytes,
        )

    def sweep(self) -> None:
        """Close the connections that have been quiet for too long; aiohttp closes its own."""
        oldest = monotonic() - self._keepalive_seconds
        for connection in [each for each in self.plain if not each.busy and each.quiet_since < oldest]:
            connection.close()

    async def shutdown(self, seconds: float) -> None:
        """Give the requests at hand `seconds`, then end them, and close all connections."""
        await asyncio.gather(
            self._general.shutdown(seconds), *(each.shutdown(seconds) for each in list(self.plain))
        )
