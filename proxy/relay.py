"""One request's answer on its way from a replica to a client, byte for byte and without a task per chunk.

Everything runs in protocol callbacks. Backpressure holds in both directions: a client that does not read
stops the reading from the replica. Nothing is sent to the client before the replica's head is there and
`respond` has agreed to relay it; from then on the answer is the client's, whatever happens. Must never end a
broken answer as if it were whole: `Ending` says how it ended, and the server aborts what it must.
"""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from proxy import usage_stream
from proxy.http1 import ChunkedBody, Malformed, ResponseHead, response_head
from proxy.sse import Tap
from proxy.upstream import UpstreamConnection


class Ending(enum.Enum):
    """How an exchange ended."""

    COMPLETE = "complete"
    REFUSED = "refused"
    """`respond` declined: nothing was sent to the client, another replica may answer."""
    LOST = "lost"
    """The connection died without a byte of an answer."""
    BROKEN = "broken"
    """The connection died within the answer."""
    MALFORMED = "malformed"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CLIENT_STUCK = "client_stuck"
    """The client's send buffer has been full for as long as a replica may be silent."""


class Client(Protocol):
    """The connection to the client."""

    relay: "Relay | None"

    @property
    def writing_paused(self) -> bool:
        """Whether its send buffer is full."""

    def send(self, chunk: bytes) -> None:
        """Queue bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and bytes that bound one exchange."""

    first_byte: float
    idle: float
    header_bytes: int


def _ended(_: object) -> None:
    """Nothing is asked or told any more."""


class Relay:
    """Reads one response from an upstream connection and writes it to a client."""

    __slots__ = (
        "_chunks",
        "_client",
        "_connection",
        "_encode_chunks",
        "_ended",
        "_filter",
        "_head",
        "_hide_usage",
        "_http10",
        "_last_read",
        "_left",
        "_limits",
        "_loop",
        "_no_body",
        "_on_first_token",
        "_paused_at",
        "_pending",
        "_respond",
        "_reusable",
        "_started",
        "_timer",
        "client_keep_alive",
        "done",
        "fresh",
        "got_bytes",
        "head",
        "sent",
        "tap",
    )

    def __init__(
        self,
        connection: UpstreamConnection,
        client: Client,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        *,
        respond: Callable[[ResponseHead], list[bytes] | None],
        on_first_token: Callable[[float], None],
        is_head: bool = False,
        http10: bool = False,
        hide_usage: bool = False,
        client_keep_alive: bool = True,
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._client = client
        self._limits = limits
        self._respond = respond
        self._on_first_token = on_first_token
        self._no_body = is_head
        self._http10 = http10
        self._hide_usage = hide_usage
        self._ended = False
        self._head = b""
        self._chunks: ChunkedBody | None = None
        self._left: int | None = None
        self._encode_chunks = False
        self._reusable = False
        self._pending = b""
        self._filter: usage_stream.UsageFilter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused_at: float | None = None
        self._started = self._last_read = monotonic()
        self.client_keep_alive = client_keep_alive
        """Whether the client's connection can carry another request after this answer."""
        self.fresh = not connection.served
        self.head: ResponseHead | None = None
        self.tap: Tap | None = None
        self.got_bytes = False
        self.sent = False
        """Whether the client has been sent anything."""
        self.done: asyncio.Future[Ending] = self._loop.create_future()

    def start(self, head: bytes, body: bytes) -> None:
        """Send the request; from here `done` tells the end."""
        self._client.relay = self
        self._connection.send(self, head, body)
        if self._client.writing_paused:
            self.pause()

    def age(self) -> float:
        """Seconds since the request was sent."""
        return monotonic() - self._started

    def abandon(self) -> None:
        """The client is gone: close the replica's connection, so that it stops computing."""
        if not self._ended:
            self._stop()
            self._connection.abort()

    def pause(self) -> None:
        """The client's send buffer is full."""
        if not self._ended and not self._connection.transport.is_closing():
            self._paused_at = monotonic()
            self._connection.transport.pause_reading()

    def resume(self) -> None:
        """The client reads again."""
        if self._paused_at is not None and not self._ended:
            self._paused_at = None
            self._last_read = monotonic()
            if not self._connection.transport.is_closing():
                self._connection.transport.resume_reading()

    def check(self, now: float) -> None:
        """End the exchange if it has been silent for too long; called every so often."""
        if self._ended:
            return
        if self._paused_at is not None:
            if now - self._paused_at > self._limits.idle:
                self._finish(Ending.CLIENT_STUCK)
        elif not self.got_bytes:
            if now - self._started > self._limits.first_byte:
                self._finish(Ending.FIRST_BYTE_TIMEOUT)
        elif now - self._last_read > self._limits.idle:
            self._finish(Ending.IDLE_TIMEOUT)

    def received(self, chunk: bytes) -> None:
        """Bytes from the replica."""
        self.got_bytes = True
        self._last_read = monotonic()
        try:
            if self.head is None:
                rest = self._read_head(chunk)
                if rest is None:
                    return
                chunk = rest
            self._read_body(chunk)
        except Malformed:
            self._finish(Ending.MALFORMED)

    def lost(self, exc: Exception | None) -> None:
        """The replica's connection is gone."""
        if self._ended:
            return
        if self.head is not None and self._chunks is None and self._left is None and exc is None:
            self._end_body()
            self._finish(Ending.COMPLETE)
        else:
            self._finish(Ending.BROKEN if self.got_bytes else Ending.LOST)

    def _read_head(self, chunk: bytes) -> bytes | None:
        """Take in head bytes; what follows the head once it is whole and accepted, else None."""
        self._head += chunk
        while True:
            end = self._head.find(b"\r\n\r\n")
            if end < 0 or end > self._limits.header_bytes:
                if len(self._head) > self._limits.header_bytes:
                    raise Malformed("too long a head")
                return None
            head, length = response_head(self._head[:end])
            self._head = self._head[end + 4 :]
            if head.status >= 200:
                break
            if head.status == 101:
                raise Malformed("a switch of protocols that nobody asked for")
        rest, self._head = self._head, b""
        lines = self._respond(head)
        if lines is None:
            self._finish(Ending.REFUSED)
            return None
        self.head = head
        self._frame(head, length, lines)
        return rest

    def _frame(self, head: ResponseHead, length: int | None, lines: list[bytes]) -> None:
        """Settle how the body ends on either side, and queue the client's head."""
        self._reusable = head.keep_alive
        if self._no_body or head.status in (204, 304):
            self._left = 0
            if length is not None and head.status != 204:
                lines.append(b"Content-Length: %d\r\n" % length)
        else:
            if head.is_read:
                self.tap = Tap(stream=head.is_stream)
                if self._hide_usage and head.is_stream and head.status == 200:
                    self._filter = usage_stream.UsageFilter()
            if head.chunked:
                self._chunks = ChunkedBody()
            else:
                self._left = length
                self._reusable = self._reusable and length is not None
            if length is not None and self._filter is None:
                lines.append(b"Content-Length: %d\r\n" % length)
            elif self._http10:
                self.client_keep_alive = False
            else:
                self._encode_chunks = True
                lines.append(b"Transfer-Encoding: chunked\r\n")
        if not self.client_keep_alive:
            lines.append(b"Connection: close\r\n")
        elif self._http10:
            lines.append(b"Connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._pending = b"".join(lines)

    def _read_body(self, wire: bytes) -> None:
        done = excess = False
        if self._chunks is not None:
            payload = self._chunks.feed(wire)
            done, excess = self._chunks.done, self._chunks.excess
        elif self._left is not None:
            excess = len(wire) > self._left
            payload = wire[: self._left] if excess else wire
            self._left -= len(payload)
            done = not self._left
        else:
            payload = wire
        if payload and self.tap is not None and self.tap.feed(payload, self._last_read):
            self._on_first_token(self._last_read)
        if self._filter is not None:
            self._write(self._encode(self._filter.feed(payload)))
            if self._filter.holding and self._timer is None:
                self._timer = self._loop.call_later(usage_stream.HOLD_SECONDS, self._release_held)
        elif self._encode_chunks and self._chunks is not None and self._chunks.whole:
            self._write(wire)
        else:
            self._write(self._encode(payload))
        if done:
            self._end_body()
            self._reusable = self._reusable and not excess
            self._finish(Ending.COMPLETE)

    def _release_held(self) -> None:
        self._timer = None
        if self._filter is not None and self._filter.holding and not self._ended:
            self._write(self._encode(self._filter.release()))

    def _encode(self, payload: bytes) -> bytes:
        if not payload or not self._encode_chunks:
            return payload
        return b"%x\r\n%b\r\n" % (len(payload), payload)

    def _end_body(self) -> None:
        held = self._encode(self._filter.release()) if self._filter is not None else b""
        self._write(held + b"0\r\n\r\n" if self._encode_chunks else held)

    def _write(self, chunk: bytes) -> None:
        if self._pending:
            chunk, self._pending = self._pending + chunk, b""
            self.sent = True
        if chunk:
            self._client.send(chunk)

    def _finish(self, ending: Ending) -> None:
        self._stop()
        if ending is Ending.COMPLETE and self._reusable:
            self._connection.release()
        else:
            self._connection.abort()
        if self.tap is not None:
            self.tap.finish()
        if not self.done.done():
            self.done.set_result(ending)

    def _stop(self) -> None:
        self._ended = True
        self._respond = self._on_first_token = _ended  # or they and this would keep each other alive
        self._client.relay = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
