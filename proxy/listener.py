"""The open connections of clients: what new ones get, and how all of them end.

Once `closing`, every answer says that its connection ends with it, so that clients turn to other proxies.
Must never end an answer that is not whole as if it were.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from time import monotonic
from typing import Any

from aiohttp import web

from proxy.certificates import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS
from proxy.connection import ClientConnection, cut
from proxy.outbox import Outbox
from proxy.plain import LARGEST, Answer, PlainConnection
from proxy.prompt.parse import Endpoint

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
BACKLOG = 2048
"""Connections that the kernel may hold for us."""
LAST_SECONDS = 1.0
"""How long the last words may take to be written when the proxy ends."""
IDLE_SECONDS = 0.01
LINGER_SECONDS = 2.0
"""How long a client that was refused may go on sending before its connection ends."""


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
        request_seconds: float,
        outbox: Outbox | None = None,
    ) -> None:
        self.answer = answer
        self.endpoints: Mapping[bytes, Endpoint] = {
            f"POST {endpoint.value} HTTP/1.1".encode(): endpoint for endpoint in Endpoint
        }
        self.header_bytes = header_bytes
        self.largest = min(body_bytes, LARGEST)
        self.plain: set[PlainConnection] = set()
        self.outbox = outbox or Outbox()
        self._keepalive_seconds = keepalive_seconds
        self._request_seconds = request_seconds
        self.closing = False
        self.hurry = asyncio.Event()
        """Set once nothing is to be waited for any more."""
        self._handler = handler
        self._listening: list[asyncio.Server] = []
        self._open: dict[asyncio.Task[Any], ClientConnection] = {}
        """What is being answered on general connections."""
        self._general = web.Server(self._answer, handler_cancellation=True)
        self.loop = asyncio.get_running_loop()

    async def listen(self, places: Iterable[dict[str, Any]], tls: ssl.SSLContext | None) -> None:
        """Take connections at some places, each as the event loop's `create_server` is told of one.

        Raises OSError.
        """
        for place in places:
            listening = await self.loop.create_server(
                self,
                **place,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=None if tls is None else SHUTDOWN_SECONDS,
            )
            self._listening.append(listening)

    @property
    def port(self) -> int:
        """The port of the first place."""
        port: int = self._listening[0].sockets[0].getsockname()[1]
        return port

    def __call__(self) -> PlainConnection:
        """A connection for the event loop's listener."""
        return PlainConnection(self)

    def general(self) -> ClientConnection:
        """A connection as aiohttp serves it."""
        return ClientConnection(
            self._general,
            loop=self.loop,
            access_log=None,
            auto_decompress=False,
            lingering_time=LINGER_SECONDS,
            keepalive_timeout=self._keepalive_seconds,
            max_field_size=self.header_bytes,
            max_line_size=self.header_bytes,
        )

    def sweep(self) -> None:
        """Close the connections that have been quiet for too long; aiohttp closes its own.

        A request that is still coming has `request_seconds` from its first bytes on, however it trickles.
        """
        now = monotonic()
        for connection in [each for each in self.plain if not each.busy]:
            seconds = self._request_seconds if connection.receiving else self._keepalive_seconds
            if connection.quiet_since < now - seconds:
                connection.close()

    async def drain(self, *, delay: float, grace: float) -> None:
        """Accept for `delay` seconds more, then give what is here `grace`; until `hurry` at the most."""
        if not self._listening:
            return
        self.closing = True
        if delay:
            await self._unless_hurried(asyncio.sleep(delay), delay)
        for each in self._listening:
            each.close()
        self._close_idle()
        await self._unless_hurried(self._idle(), grace)

    async def _unless_hurried(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Wait for something, but not for longer, and not once there is hurry."""
        tasks = {asyncio.ensure_future(work), asyncio.ensure_future(self.hurry.wait())}
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _close_idle(self) -> None:
        """Close the connections on which nothing has begun; the others once their request is answered."""
        for connection in [each for each in self.plain if not each.busy and not each.receiving]:
            connection.close()
        busy = set(self._open.values())
        for general in self._general.connections:
            if general not in busy:
                general.force_close()

    async def _idle(self) -> None:
        """Wait until nothing is being answered, nor received."""
        while True:
            if tasks := self._tasks():
                await asyncio.wait(tasks)
            elif any(each.receiving for each in self.plain):
                await asyncio.sleep(IDLE_SECONDS)
            else:
                return

    async def end(self) -> None:
        """End what is left: requests are cancelled, answers that have begun cut, connections closed."""
        self.closing = True
        for connection in list(self.plain):
            connection.end()
        for task, client in list(self._open.items()):
            if not cut(client):
                task.cancel()
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
        for connection in list(self.plain):
            connection.close()
        await self._general.shutdown(IDLE_SECONDS)
        for _ in range(int(LAST_SECONDS / IDLE_SECONDS)):
            if not self.plain:
                return
            await asyncio.sleep(IDLE_SECONDS)  # what was queued for them is still on its way

    def _tasks(self) -> list[asyncio.Task[Any]]:
        """What answers requests now."""
        return [*self._open, *(task for each in self.plain if (task := each.task) is not None)]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        task, client = asyncio.current_task(), request.protocol
        assert task is not None
        assert isinstance(client, ClientConnection)
        self._open[task] = client
        try:
            return await self._handler(request)
        finally:
            del self._open[task]
            if self.closing:
                client.close()
