"""One end of a TCP connection, with nothing between the test and the bytes."""

import asyncio
import socket
import struct
from typing import cast

from tests.support.eventually import PATIENCE


class Wire(asyncio.Protocol):
    """Everything that arrived (`received`), whether the peer ended it (`eof`) or it is gone (`gone`).

    `gone` means that this end can tell the peer left: its FIN, its RST, or our own close. `error` is what the
    transport reported, None for an orderly end.
    """

    def __init__(self) -> None:
        self.received = bytearray()
        self.eof = False
        self.gone = asyncio.Event()
        self.error: Exception | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._arrived = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._arrived.set()

    def eof_received(self) -> bool:
        self.eof = True
        self.gone.set()
        self._arrived.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self.gone.set()
        self.writable.set()
        self._arrived.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    @property
    def _socket(self) -> socket.socket:
        return self.transport.get_extra_info("socket")

    async def arrival(self, *, within: float = PATIENCE) -> None:
        """Wait for more bytes, or for the end."""
        self._arrived.clear()
        if not self.gone.is_set():
            await asyncio.wait_for(self._arrived.wait(), within)

    async def until_gone(self, *, within: float = PATIENCE) -> None:
        """Wait until the peer has left; TimeoutError if it stays."""
        await asyncio.wait_for(self.gone.wait(), within)

    async def send(self, raw: bytes) -> None:
        """Write, then wait until the transport takes more. That the peer may have left is no error."""
        if not self.transport.is_closing():
            self.transport.write(raw)
        await self.writable.wait()

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's buffers, so that the peer is held back once they are full."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    def finish(self) -> None:
        """Send what is buffered, then FIN, and be done."""
        self.transport.close()

    def half_close(self) -> None:
        """FIN, but keep reading."""
        self.transport.write_eof()

    def reset(self) -> None:
        """RST: linger for zero seconds, then close."""
        if not self.transport.is_closing():
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
