"""Real Valkey servers for tests, on free ports of 127.0.0.1: alone, as Sentinel, as a cluster.

Each is a process of its own with its directory under `tmp_path`; it is killed when its context ends.
"""

import asyncio
import signal
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from redis.crc import key_slot
from redis.exceptions import ResponseError

from proxy.redis_url import Credentials, parse
from proxy.shared.client import Link
from proxy.shared.embedded import binary
from proxy.shared.wire import Pool
from tests.support.eventually import eventually

PATIENCE = 30.0
"""Seconds for what takes Sentinel or a cluster several rounds of gossip."""


class Server:
    """One server process; `await server.run(...)` is a command to it, beside the link under test."""

    def __init__(self, directory: Path, *options: Any, port: int = 0, first: Sequence[str] = ()) -> None:
        self.directory = directory
        self.options = [str(option) for option in options]
        self.port = port
        self._first = first
        self._process: Process | None = None
        self._log: asyncio.Task[None] | None = None
        self._lines: list[str] = []
        self._pool: Pool | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The server's own, also where a supervisor runs it."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.port:
            assert await self.start(), self._lines
            return self
        for _ in range(9):  # a port that was free may be taken by another before the server binds it
            self.port = free_port()
            if await self.start():
                return self
        raise AssertionError(self._lines)

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> bool:
        """Start it, also anew, empty; False if it ended instead."""
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.directory}
        if not self._first:
            options |= {"save": "", "appendonly": "no"}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._process = await asyncio.create_subprocess_exec(
            *(str(binary()), *self._first, *words, *self.options), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
        )
        ready = asyncio.Event()
        self._log = asyncio.create_task(self._read(self._process, ready))
        await ready.wait()
        # Sentinel says nothing of being ready, and a server that loads answers before it is.
        return self._process.returncode is None

    async def kill(self) -> None:
        """End it at once; its sockets are reset."""
        if self._pool is not None:
            self._pool.reset(now=True)
            self._pool = None
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._log is not None:
            await self._log

    def pause(self) -> None:
        """Stop it: connections stay, and the kernel still takes new ones, but nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def run(self, *command: Any) -> Any:
        """One command, on a connection of the test's own."""
        if self._pool is None:
            password = self.options[self.options.index("--requirepass") + 1] if self._locked else None
            self._pool = Pool(("127.0.0.1", self.port), Credentials(None, password), size=4)
        (reply,) = await self._pool.exchange([command])
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    @property
    def _locked(self) -> bool:
        return "--requirepass" in self.options

    async def _read(self, process: Process, ready: asyncio.Event) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._lines = [*self._lines[-30:], line.decode(errors="replace").strip()]
            text = line.lower()
            if b"ready to accept connections" in text or b"sentinel id is" in text:
                ready.set()
        await process.wait()
        ready.set()


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[Link]:
    """A link, whether or not it is up."""
    link = Link(parse(url))
    await link.start()
    try:
        yield link
    finally:
        await link.close()


async def down(link: Link) -> None:
    await eventually(lambda: not link.up, "the link is down", within=PATIENCE)


async def up(link: Link) -> None:
    await eventually(lambda: link.up, "the link is up", within=PATIENCE)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


@asynccontextmanager
async def sentinel(directory: Path, primary: Server, service: str) -> AsyncIterator[Server]:
    """A Sentinel that watches `primary` and knows its replica; it alone decides a failover."""
    config = directory / "sentinel.conf"
    _write(
        config,
        f"sentinel monitor {service} 127.0.0.1 {primary.port} 1\n"
        f"sentinel down-after-milliseconds {service} 1000\n"
        f"sentinel failover-timeout {service} 10000\n",
    )
    async with Server(directory, "--sentinel", first=[str(config)]) as it:

        async def knows_the_replica() -> bool:
            found = await it.run("SENTINEL", "REPLICAS", service)
            return bool(found) and b"s_down" not in found[0][found[0].index(b"flags") + 1]

        await eventually(knows_the_replica, within=PATIENCE)
        yield it


@asynccontextmanager
async def replicated(directory: Path) -> AsyncIterator[tuple[Server, Server]]:
    """A primary, and a replica that is in step with it."""
    fast = ("--repl-diskless-sync-delay", 0)
    async with Server(directory / "a", *fast) as primary, Server(directory / "b", *fast) as replica:
        await replica.run("REPLICAOF", "127.0.0.1", primary.port)

        async def in_step() -> bool:
            return b"master_link_status:up" in await replica.run("INFO", "replication")

        await eventually(in_step, within=PATIENCE)
        yield primary, replica


class Nodes:
    """A cluster of primaries."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def owner(self, key: str) -> Server:
        """The node that a key was given to at first."""
        return self.servers[key_slot(key.encode()) * len(self.servers) // 16384]

    def tag(self, index: int) -> str:
        """A hash tag that belongs to this node."""
        return next(tag for tag in map(str, range(9999)) if self.owner(tag) is self.servers[index])


@asynccontextmanager
async def cluster(directory: Path, size: int = 3) -> AsyncIterator[Nodes]:
    """A cluster whose nodes agree."""
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(size):
            options = (
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                free_port(),
                "--cluster-node-timeout",
                2000,
            )
            server = Server(directory / str(number), *options)
            servers.append(await stack.enter_async_context(server))
        for number, server in enumerate(servers):
            first, last = (-(-16384 * n // size) for n in (number, number + 1))
            await server.run("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            await server.run("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for other in servers[1:]:
            bus = other.options[other.options.index("--cluster-port") + 1]
            await servers[0].run("CLUSTER", "MEET", "127.0.0.1", other.port, bus)

        async def agreed() -> bool:
            told = [await server.run("CLUSTER", "INFO") for server in servers]
            slots = [await server.run("CLUSTER", "SLOTS") for server in servers]
            return all(b"cluster_state:ok" in each for each in told) and all(len(s) == size for s in slots)

        await eventually(agreed, within=PATIENCE)
        yield Nodes(servers)
