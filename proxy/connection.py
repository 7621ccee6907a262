"""The client's side of the hop: aiohttp's server connection, with a relay attached while one runs.

aiohttp parses requests, keeps connections alive and cancels the handler when the client leaves; the relay
writes its answer to the transport itself. Must never answer an error in any shape but OpenAI's.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from proxy.errors import (
    BadRequest,
    ExpectationFailed,
    HeadersTooLarge,
    InternalError,
    ProxyError,
    TooLarge,
)
from proxy.relay import Relay

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


SERVER = "warmroute"
"""Names the proxy's own answers; a replica's keep the replica's name."""


class Relayed(web.StreamResponse):
    """Stands for an answer that a relay has already written."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._reusable = keep_alive

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection may carry another request."""
        return self._reusable

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        """Nothing is left to send."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to send."""


RELAYED = Relayed(keep_alive=True)
RELAYED_LAST = Relayed(keep_alive=False)


class ClientConnection(web.RequestHandler):
    """One client connection."""

    __slots__ = ("relay",)

    def __init__(self, manager: web.Server, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(manager, loop=loop, **options)
        self.relay: Relay | None = None

    def send(self, chunk: bytes) -> None:
        """Queue bytes for the client."""
        if self.transport is not None:
            self.transport.write(chunk)

    def reset(self) -> None:
        """Cut the connection so that no client can take what it got for a whole answer."""
        transport = self.transport
        if transport is None:
            return
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    def pause_writing(self) -> None:
        """The client does not keep up: stop reading from the replica."""
        super().pause_writing()
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if self.relay is not None:
            self.relay.resume()

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - the signature is aiohttp's
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the HTTP parser refused."""
        if isinstance(exc, LineTooLong) or (message and "Too many" in message):
            error: ProxyError = HeadersTooLarge(
                "the request's headers are too large; WARMROUTE_LIMITS__HEADER_BYTES sets the limit"
            )
        elif isinstance(exc, BadHttpMessage) or status == BadRequest.status:
            error = BadRequest("this is not an HTTP/1.1 request that can be understood in only one way")
        else:
            error = InternalError("the proxy failed; its log says why")
        response = answer(error)
        response.force_close()
        return response


def answer(error: ProxyError) -> web.Response:
    """An error as a response."""
    response = web.Response(
        status=error.status,
        body=error.body(),
        content_type="application/json",
        headers={"Server": SERVER},
    )
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if isinstance(error, TooLarge | ExpectationFailed):  # the request's body was not read to its end
        response.force_close()
    return response


class HttpServer(web.Server):
    """Makes a ClientConnection for each client, and cancels its handler when it leaves."""

    def __init__(self, handler: Handler, *, header_bytes: int, keepalive_seconds: float) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._options = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": keepalive_seconds,
            "max_field_size": header_bytes,
            "max_line_size": header_bytes,
        }

    def __call__(self) -> web.RequestHandler:
        """A connection for the event loop's listener."""
        return ClientConnection(self, loop=self._loop, **self._options)
