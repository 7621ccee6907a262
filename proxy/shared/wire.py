"""Connections to one Redis server: opened, used by one at a time, closed at the least doubt.

A connection is redis-py's; the pool is our own, because what must hold here is simple and absolute: whatever
ends an exchange before its last reply was read (a cancelled caller, a deadline, a broken stream) ends the
connection too. So no reply is ever read by another than who asked (redis-py #2624, #2665, #4121). Nothing is
retried here, and no deadline kept: the caller's covers waiting for a connection, opening it, the exchange.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from redis.asyncio.connection import AbstractConnection, Connection, UnixDomainSocketConnection
from redis.exceptions import ResponseError

from proxy.redis_url import Address, Credentials, Tls

Argument = bytes | str | int | float | memoryview
Command = Sequence[Argument]
Reply = Any
"""bytes, int, None, or a list of these; in the replies of several commands also a ResponseError."""

CONNECT = 2.0
"""Seconds that opening a connection may take, TLS and authentication included."""


class _Closing(AbstractConnection):
    """What a pool needs beyond redis-py: to know whether a connection is fit, and to end it at once."""

    @property
    def fit(self) -> bool:
        """False if the server has closed it, or has sent what nobody asked for."""
        reader = self._reader
        return (
            reader is not None
            and not reader.at_eof()
            and reader.exception() is None
            and bool(self._socket_is_empty())  # type: ignore[no-untyped-call]
        )

    def abort(self) -> None:
        """Close without sending what is still to be sent: a stopped server would never take it."""
        writer, self._reader, self._writer = self._writer, None, None
        self._parser.on_disconnect()  # type: ignore[no-untyped-call]
        if writer is not None:
            writer.transport.abort()


class _Tcp(_Closing, Connection):
    tls: ssl.SSLContext | None = None

    def _connection_arguments(self) -> dict[str, Any]:
        return {"host": self.host, "port": self.port, "ssl": self.tls}


class _Unix(_Closing, UnixDomainSocketConnection):
    pass


Wire = _Tcp | _Unix


def context(tls: Tls) -> ssl.SSLContext:
    """Read the certificates. One context serves every connection: making one takes tens of milliseconds."""
    made = ssl.create_default_context(cafile=tls.ca_certs)
    made.check_hostname = tls.check_hostname
    made.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.certfile is not None:
        made.load_cert_chain(tls.certfile, tls.keyfile, tls.key_password)
    return made


class Pool:
    """At most `size` connections to the server at `address`; the one used last is used next."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        *,
        db: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
        size: int,
    ) -> None:
        self._address = address
        self._tls = tls
        self._options: dict[str, Any] = {
            "username": credentials.user,
            "password": credentials.password,
            "db": db,
            "client_name": "warmroute",
            "driver_info": None,
            "protocol": 2,  # replies as they are, and no push messages between them
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT,
        }
        self._room = asyncio.Semaphore(size)
        self._idle: deque[Wire] = deque()
        self._busy: set[Wire] = set()
        self._condemned: set[Wire] = set()

    async def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one write and read their replies; an error reply is in its place in the list."""
        async with self._wire() as wire:
            await wire.send_packed_command(wire.pack_commands(commands), check_health=False)
            replies: list[Reply] = []
            for _ in commands:
                try:
                    replies.append(await wire.read_response())
                except ResponseError as error:
                    replies.append(error)
            return replies

    def reset(self, *, now: bool = False) -> None:
        """Close what is idle, and what is in use when it comes back, or at once."""
        while self._idle:
            self._idle.pop().abort()
        for wire in self._busy:
            if now:
                wire.abort()
            self._condemned.add(wire)

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._idle) + len(self._busy)

    @asynccontextmanager
    async def _wire(self) -> AsyncIterator[Wire]:
        async with self._room:
            wire = self._take()
            self._busy.add(wire)
            complete = False
            try:
                if not wire.is_connected:
                    await wire.connect()  # type: ignore[no-untyped-call]
                yield wire
                complete = True
            finally:
                self._busy.discard(wire)
                if complete and wire not in self._condemned and wire.fit:
                    self._idle.append(wire)
                else:
                    self._condemned.discard(wire)
                    wire.abort()

    def _take(self) -> Wire:
        while self._idle:
            wire = self._idle.pop()
            if wire.fit:
                return wire
            wire.abort()
        host, port = self._address
        if not port:
            return cast("Wire", _Unix(path=host, **self._options))
        wire = _Tcp(host=host, port=port, **self._options)
        wire.tls = self._tls() if self._tls is not None else None
        return wire
