"""The client's side of the hop for plain requests: those whose end nobody could see in two places.

Nearly every request for a completion is one: POST to a routed path, HTTP/1.1, fields of which none asks for
anything of the hop, and a Content-Length. It is read here in one step, without the objects of the general
way. The first bytes on a connection that are anything else, and all that follow them, are aiohttp's: what
is odd, ambiguous or broken is judged there and nowhere else. Must never interpret: `plain_head` says no.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Protocol, cast

from aiohttp import web

from proxy.answers import on_the_wire
from proxy.connection import cut, reset
from proxy.logs import logger
from proxy.outbox import Outbox
from proxy.prompt.parse import Endpoint
from proxy.relay import Relay
from proxy.request import Request
from proxy.request_head import PlainHead, plain_head

LARGEST = 4 << 20
"""Bytes of a body that are gathered here; aiohttp's flow control is for larger ones."""
AHEAD = 256 << 10
"""Bytes that a client may send ahead of its turn before its connection is no longer read."""
Answer = Callable[[Request, Endpoint], Awaitable[web.StreamResponse]]


class Server(Protocol):
    """What connections share."""

    endpoints: Mapping[bytes, Endpoint]
    """`POST /path HTTP/1.1` of each routed path, to what is served there."""
    answer: Answer
    header_bytes: int
    largest: int
    """Bytes of a body above which a request is not plain."""
    plain: "set[PlainConnection]"
    closing: bool
    """Whether connections end with the request at hand."""
    outbox: Outbox
    loop: asyncio.AbstractEventLoop
    """Asked for once: it costs a system call each time."""

    def general(self) -> asyncio.Protocol:
        """A connection as aiohttp serves it."""


class PlainConnection(asyncio.Protocol):
    """One client connection, until something comes on it that is not plain."""

    __slots__ = (
        "_ahead",
        "_gathered",
        "_head",
        "_parts",
        "_server",
        "_task",
        "quiet_since",
        "relay",
        "transport",
        "writing_paused",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self.transport: asyncio.Transport | None = None
        self.relay: Relay | None = None
        self.writing_paused = False
        self.quiet_since = monotonic()
        """When the last request ended, or the one that is coming began."""
        self._task: asyncio.Task[None] | None = None
        self._head: PlainHead | None = None  # of a request whose body is still coming
        self._parts: list[bytes] = []
        self._gathered = 0
        self._ahead = b""

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What answers a request, while one is being answered."""
        return self._task

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    @property
    def receiving(self) -> bool:
        """Whether a request is there in part."""
        return self._head is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._server.plain.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """The client has left: nothing is computed for it any more."""
        self.transport = None
        self._server.plain.discard(self)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Take in bytes; begin to answer once a request is whole."""
        if self._task is not None:
            self._wait_turn(data)
            return
        head, server = self._head, self._server
        if head is None:
            head = plain_head(data, server.endpoints, server.header_bytes, server.largest)
            if head is None:
                self._hand_over(data)
                return
            size = len(data)
        else:
            self._parts.append(data)
            size = self._gathered + len(data)
        end = head.size + head.length
        if size < end:
            if self._head is None:
                self._head = head
                self._parts.append(data)
                self.quiet_since = monotonic()
            self._gathered = size
            return
        if self._head is not None:
            data = b"".join(self._parts)
            self._head = None
            self._parts = []
        if size > end:
            self._wait_turn(data[end:])
        self._task = server.loop.create_task(self._answer(head, data[head.size : end]))

    async def _answer(self, head: PlainHead, body: bytes) -> None:
        keep_alive, server = False, self._server
        try:
            reusable = head.fields.keep_alive and not server.closing
            response = await server.answer(
                Request(self, "POST", head.line[5:-9], head.fields, body, reusable),
                server.endpoints[head.line],
            )
            keep_alive = reusable and not server.closing and response.keep_alive is not False
            if isinstance(response, web.Response):
                self.send(on_the_wire(response, keep_alive=keep_alive))
        except asyncio.CancelledError:
            pass  # the client has left, or the proxy ends
        except Exception:  # noqa: BLE001 - the last resort of a connection
            logger.exception("a request failed in the proxy")
        self._task = None
        self.quiet_since = monotonic()
        if not keep_alive:
            self.close()
        elif self._ahead:
            self._next()

    def _next(self) -> None:
        """Serve what came while another request was answered."""
        ahead, self._ahead = self._ahead, b""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            if len(ahead) > AHEAD:
                transport.resume_reading()
            self.data_received(ahead)

    def _wait_turn(self, data: bytes) -> None:
        if len(self._ahead) <= AHEAD < len(self._ahead) + len(data) and self.transport is not None:
            self.transport.pause_reading()
        self._ahead += data

    def _hand_over(self, data: bytes) -> None:
        transport = self.transport
        if transport is None:
            return
        self._server.plain.discard(self)
        self._server.outbox.flush()
        general = self._server.general()
        transport.set_protocol(general)
        general.connection_made(transport)
        if self.writing_paused:
            general.pause_writing()
        general.data_received(data)

    def send(self, chunk: bytes) -> None:
        """Queue bytes for the client."""
        if self.transport is not None:
            self._server.outbox.write(self.transport, chunk)

    def reset(self) -> None:
        """Cut the connection so that no client can take what it got for a whole answer."""
        if self.transport is not None:
            self._server.outbox.flush()
            reset(self.transport)

    def close(self) -> None:
        """Close the connection when what is queued has been sent."""
        if self.transport is not None:
            self._server.outbox.flush()
            self.transport.close()

    def end(self) -> None:
        """The proxy ends: end the request at hand, which is told so if nothing has been answered yet."""
        if self._task is None:
            self.close()
        elif not cut(self):
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client does not keep up: stop reading from the replica."""
        self.writing_paused = True
        if self.relay is not None:
            self.relay.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.writing_paused = False
        if self.relay is not None:
            self.relay.resume()
