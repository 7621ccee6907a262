"""A TCP relay between a client and a server: it can hold, cut and swallow what passes, and change its server.

What the server says can be held back until a test has seen that it came, so no test waits for a time to pass.
"""

import asyncio
import ssl
from typing import Self

from tests.support.eventually import eventually


class Relay:
    """Listens on a free port of 127.0.0.1; the port stays whatever server is behind it."""

    def __init__(self, target: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        """The port that new connections go to; those there are stay where they are, as behind a DNS name."""
        self.passing: int | None = None
        """Bytes of the server's that still pass on each connection, the rest is held; None: all pass."""
        self.swallowing = False
        """True: nothing passes in either direction any more, and nothing is kept."""
        self.opened = 0
        """Connections ever taken."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.abort()
        await asyncio.gather(*self._tasks)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def holding(self) -> int:
        """Connections whose server has said what is held back."""
        return sum(bool(line.held) for line in self._lines)

    @property
    def open(self) -> int:
        """Connections there are."""
        return len(self._lines)

    def hold(self, after: int = 0) -> None:
        """From now on, hold back what the server says on each connection after so many bytes."""
        for line in self._lines:
            line.passed = 0
        self.passing = after

    def release(self) -> None:
        """Let through what was held, and all that follows."""
        self.passing = None
        for line in self._lines:
            line.send(b"")

    async def holds(self, connections: int) -> None:
        await eventually(lambda: self.holding >= connections, f"replies held on {connections} connections")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.opened += 1
        line = _Line(self, writer)
        try:
            there, other = await asyncio.open_connection("127.0.0.1", self.target)
            self._lines.add(line)
            line.server = other
            pumps = [self._pump(reader, other.write), self._pump(there, line.send)]
            running = [asyncio.ensure_future(pump) for pump in pumps]
            try:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in running:
                    each.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        except OSError:
            pass
        finally:
            self._lines.discard(line)
            self._tasks.discard(task)
            line.abort()

    async def _pump(self, reader: asyncio.StreamReader, write) -> None:
        while chunk := await reader.read(65536):
            if not self.swallowing:
                write(chunk)


class _Line:
    """The server's side of one connection."""

    def __init__(self, relay: Relay, client: asyncio.StreamWriter) -> None:
        self._relay = relay
        self._client = client
        self.server: asyncio.StreamWriter | None = None
        self.held = b""
        self.passed = 0

    def abort(self) -> None:
        for side in (self._client, self.server):
            if side is not None:
                side.transport.abort()

    def send(self, chunk: bytes) -> None:
        chunk, self.held = self.held + chunk, b""
        passing = self._relay.passing
        if passing is not None:
            room = max(0, passing - self.passed)
            chunk, self.held = chunk[:room], chunk[room:]
        self.passed += len(chunk)
        if chunk and not self._client.transport.is_closing():
            self._client.write(chunk)
