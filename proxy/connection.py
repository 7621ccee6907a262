"""The client's side of the hop, in general: aiohttp's connection, with a relay attached while one runs.

aiohttp parses requests, keeps connections alive and cancels the handler when the client leaves; the relay
writes its answer to the transport itself. Must never answer an error in any shape but OpenAI's.
"""

import asyncio
import socket
import struct
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from proxy.answers import answer
from proxy.errors import BadRequest, HeadersTooLarge, InternalError, ProxyError
from proxy.relay import Relay

HEADERS_TOO_LARGE = "the request's headers are too large; WARMROUTE_LIMITS__HEADER_BYTES sets the limit"


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
        if self.transport is not None:
            reset(self.transport)

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
            error: ProxyError = HeadersTooLarge(HEADERS_TOO_LARGE)
        elif isinstance(exc, BadHttpMessage) or status == BadRequest.status:
            error = BadRequest("this is not an HTTP/1.1 request that can be understood in only one way")
        else:
            error = InternalError("the proxy failed; its log says why")
        response = answer(error)
        response.force_close()
        return response


class Answered(Protocol):
    """A client's connection that may be in the middle of an answer."""

    relay: Relay | None

    def reset(self) -> None:
        """Cut the connection."""


def cut(client: Answered) -> bool:
    """Leave an answer that is on its way; False if the client has got nothing yet and can still be told."""
    relay = client.relay
    if relay is None:
        return False
    if relay.sent:
        client.reset()
    else:
        relay.abandon()
    return relay.sent


def reset(transport: asyncio.Transport) -> None:
    """Cut a connection with a TCP reset."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
