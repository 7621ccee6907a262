"""Which worker of a proxy serves a connection, as the kernel tells: so tests ask each, and kill one."""

import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from tests.support.client import Client
from tests.support.eventually import eventually
from tests.support.processes import Process

PATIENCE = 60.0
"""Seconds for several interpreters to start, on a machine that is busy."""
CONNECTIONS = 400
"""Opened at most until each worker has one: which takes a connection is chance."""


class Workers:
    """The workers of a proxy. `async with` it: its connections are closed at the end."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def pids(self) -> dict[int, int]:
        """Number to process, of those that said last that they serve."""
        told = re.findall(r"worker (\d+) \(pid (\d+)\) serves", self.process.log)
        return {int(number): int(pid) for number, pid in told}

    async def serve(self, count: int, *, but: int | None = None) -> None:
        """Wait until so many live and serve, and `but` is none of them."""

        def so() -> bool:
            pids = self.pids.values()
            return len(pids) == count and but not in pids and all(map(lives, pids))

        await eventually(so, f"{count} workers: {self.process.log}", within=PATIENCE)

    async def connections(self) -> dict[int, Client]:
        """A connection to each worker, by its process."""
        found: dict[int, Client] = {}
        for _ in range(CONNECTIONS):
            client = await self._stack.enter_async_context(await Client.connect(self.process.port))
            assert (await client.exchange("GET", "/health")).status == 200
            found.setdefault(self.serving(client), client)
            if found.keys() == set(self.pids.values()):
                return found
        raise AssertionError(f"of {self.pids} only {list(found)} take connections")

    async def connection(self, pid: int) -> Client:
        """One more connection to this worker."""
        for _ in range(CONNECTIONS):
            client = await self._stack.enter_async_context(await Client.connect(self.process.port))
            assert (await client.exchange("GET", "/health")).status == 200
            if self.serving(client) == pid:
                return client
        raise AssertionError(f"{pid} takes no connections")

    def serving(self, client: Client) -> int:
        """The worker that has accepted this connection."""
        port = client.transport.get_extra_info("sockname")[1]
        here, there = f":{self.process.port:04X}", f":{port:04X}"
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (inode,) = [row[9] for row in rows if row[1].endswith(here) and row[2].endswith(there)]
        for pid in self.pids.values():
            if f"socket:[{inode}]" in open_files(pid):
                return pid
        raise AssertionError(f"none of {self.pids} has accepted it")


def open_files(pid: int) -> list[str]:
    found = []
    for each in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.append(str(each.readlink()))
        except OSError:
            pass
    return found


def lives(pid: int) -> bool:
    """Whether there is such a process; one that nobody has reaped counts."""
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> list[int]:
    """The processes that this one has started, and not reaped."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def are_gone(pids: list[int]) -> None:
    await eventually(lambda: not any(map(lives, pids)), f"{pids} are gone", within=PATIENCE)
