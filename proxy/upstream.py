"""Keep-alive connections to replicas: opening, pooling, closing.

A connection carries one exchange at a time and hands it the bytes as they come. It must never be given back
to the pool unless its response ended exactly where the framing said, and never outlives its replica's
address: whoever removes a replica closes its pool, and where a name has moved to other addresses, what leads
to the old ones takes no further request.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Protocol, cast
from urllib.parse import urlsplit

from proxy.names import Names, is_name
from proxy.outbox import Outbox


class Exchange(Protocol):
    """Whoever reads a connection's response."""

    def received(self, chunk: bytes) -> None:
        """Bytes came."""

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone; None if the peer ended it cleanly."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to a replica."""

    __slots__ = ("_pool", "address", "exchange", "idle_since", "served", "transport")

    def __init__(self, pool: "Pool", address: str) -> None:
        self._pool = pool
        self.address = address
        self.transport: asyncio.Transport
        self.exchange: Exchange | None = None
        self.served = 0
        """Responses that it has carried to their end."""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the pool's open connections."""
        self.transport = cast(asyncio.Transport, transport)
        self._pool.opened.add(self)

    def data_received(self, chunk: bytes) -> None:
        """Hand bytes to the exchange."""
        if self.exchange is None:  # bytes that nobody asked for would be the next request's answer
            self.transport.abort()
        else:
            self.exchange.received(chunk)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the pool and tell the exchange."""
        self._pool.lost(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.lost(exc)

    def send(self, exchange: Exchange, head: bytes, body: bytes) -> None:
        """Send a request; `exchange` gets the answer."""
        self.exchange = exchange
        if len(body) < 65536:
            self._pool.outbox.write(self.transport, head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    def release(self) -> None:
        """The exchange is over and the response ended where it should: keep the connection."""
        self.exchange = None
        self.served += 1
        self._pool.keep(self)

    def abort(self) -> None:
        """Close at once; the exchange hears nothing more."""
        self.exchange = None
        self.transport.abort()


class Pool:
    """The connections to one replica."""

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float,
        keepalive_seconds: float,
        size: int,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        names: Names | None = None,
        moved: Callable[[], None] | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """`tls` is for https; absent, the system's authorities are asked. `server_name`: who should answer.

        `moved` is called when none of a name's addresses is one that it had before.
        """
        parts = urlsplit(url)
        self.tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self.hostname = parts.hostname or ""
        self.port = parts.port or (443 if self.tls else 80)
        self.host = parts.netloc.encode("ascii")
        """For the Host field."""
        self.is_named = is_name(self.hostname)
        """Whether its address may change."""
        self.addresses: tuple[str, ...] = () if self.is_named else (self.hostname,)
        """Where new connections go, the first that takes one; empty until a name has been looked up."""
        self.opened: set[UpstreamConnection] = set()
        self._server_name = (server_name or self.hostname) if self.tls else None
        self._names = names or Names()
        self._moved = moved
        self._idle: deque[UpstreamConnection] = deque()
        self._connect_seconds = connect_seconds
        self._keepalive_seconds = keepalive_seconds
        self._size = size
        self._closed = False
        self.outbox = outbox or Outbox()

    def take(self) -> UpstreamConnection | None:
        """The idle connection used last, if there is one young enough to be still open."""
        oldest = monotonic() - self._keepalive_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and not connection.transport.is_closing():
                return connection
            connection.transport.abort()
        return None

    async def connect(self) -> UpstreamConnection:
        """Open a connection. Raises OSError (TimeoutError included) if that fails or takes too long.

        Where none can be opened, the name is looked up again: perhaps its address is another one by now.
        """
        async with asyncio.timeout(self._connect_seconds):
            if not self.addresses:
                await self.resolve()
                return await self._open()
            known = self.addresses
            try:
                return await self._open()
            except OSError:
                if not self.is_named or not await self._found_others(known):
                    raise
            return await self._open()

    async def resolve(self) -> None:
        """Look the name up again, and close idle connections to what it no longer stands for.

        Raises OSError if it cannot be looked up: then what was known stays.
        """
        known = self.addresses
        self.addresses = await self._names.addresses(self.hostname, self.port)
        for connection in [each for each in self._idle if each.address not in self.addresses]:
            self._idle.remove(connection)
            connection.transport.abort()
        if known and not set(known) & set(self.addresses) and self._moved is not None:
            self._moved()

    async def _found_others(self, known: tuple[str, ...]) -> bool:
        try:
            await self.resolve()
        except OSError:
            return False
        return set(self.addresses) != set(known)

    async def _open(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for address in self.addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda address=address: UpstreamConnection(self, address),
                    address,
                    self.port,
                    ssl=self.tls,
                    server_hostname=self._server_name,
                )
            except OSError as error:
                failure = error
            else:
                return connection
        assert failure is not None
        raise failure

    def keep(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request."""
        transport = connection.transport
        unread = transport.get_write_buffer_size() > 0  # answered before its request was read to the end
        if (
            self._closed
            or len(self._idle) >= self._size
            or unread
            or transport.is_closing()
            or connection.address not in self.addresses
        ):
            transport.abort()
            return
        connection.idle_since = monotonic()
        self._idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """Forget a connection that is closed."""
        self.opened.discard(connection)
        if connection.exchange is None:
            try:
                self._idle.remove(connection)
            except ValueError:
                pass

    def sweep(self) -> None:
        """Close the connections that have been idle for too long."""
        oldest = monotonic() - self._keepalive_seconds
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().transport.abort()

    def close(self) -> None:
        """Close the idle connections now, and the busy ones when their exchange ends."""
        self._closed = True
        while self._idle:
            self._idle.popleft().transport.abort()
