"""A balancer as it stands in front of several proxies: by connection, and only to those whose /ready says so.

It asks each proxy a few times a second and passes bytes on, both ways; it retries nothing.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Self

from tests.support.client import exchange

EVERY = 0.1
"""Seconds between two questions to a proxy."""


class Balancer:
    """`async with` it: inside, it listens on `port`."""

    def __init__(self) -> None:
        self.port = 0
        self.sent: Counter[int] = Counter()
        """Connections by the proxy's port."""
        self._ready: dict[int, bool] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._passing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        tasks = {*self._asking.values(), *self._passing}
        while tasks:  # a cancellation that comes as a wait ends anyway may be lost
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=EVERY)

    def add(self, port: int) -> None:
        """There is a proxy; it gets nothing before it is ready."""
        self._ready[port] = False
        self._asking[port] = asyncio.create_task(self._ask(port))

    def remove(self, port: int) -> None:
        """It has ended."""
        self._asking.pop(port).cancel()
        del self._ready[port]

    def ready(self, port: int) -> bool:
        """Whether it gets new connections."""
        return self._ready[port]

    async def _ask(self, port: int) -> None:
        while True:
            try:
                self._ready[port] = (await exchange(port, "GET", "/ready")).status == 200
            except (OSError, AssertionError):
                self._ready[port] = False
            await asyncio.sleep(EVERY)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        ends = [writer]
        try:
            ports = [port for port, ready in self._ready.items() if ready]
            port = min(ports, key=self.sent.__getitem__)
            self.sent[port] += 1
            theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            ends.append(ours)
            await asyncio.gather(_pass(reader, ours), _pass(theirs, writer))
        finally:
            for end in ends:
                end.close()
            self._passing.discard(task)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until it ends; what a side that is gone does not take is dropped."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
