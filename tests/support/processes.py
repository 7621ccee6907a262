"""The proxy as a process of its own, which gets real signals."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.support.client import exchange
from tests.support.eventually import PATIENCE, eventually


class Process:
    """One that has been started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.port = 0
        self.log = ""
        self._process = process
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.log += line.decode()

    async def listening(self) -> None:
        """Wait until it says where it listens."""
        pattern = re.compile(r"listening on http://\S+:(\d+)")
        found = await eventually(lambda: pattern.search(self.log), "it listens", within=6 * PATIENCE)
        self.port = int(found[1])

    async def ready(self) -> None:
        """Wait until it has a replica."""

        async def so() -> bool:
            return (await exchange(self.port, "GET", "/ready")).status == 200

        await self.listening()
        await eventually(so, f"it is ready: {self.log}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def exit(self, *, within: float = PATIENCE) -> int:
        """Its exit status, and all that it logged in `log`."""
        status = await asyncio.wait_for(self._process.wait(), within)
        await self._reading
        return status

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def proxy_process(
    replicas: Sequence[str], *arguments: str, redis_url: str = "none"
) -> AsyncIterator[Process]:
    """A proxy in front of these URLs, which may not listen yet; killed at the end if it still runs."""
    command = [sys.executable, "-m", "proxy", "serve", "--port", "0", "--replicas", ",".join(replicas)]
    command += ["--tokenizer", "bytes", "--redis-url", redis_url, "--probes.interval", "0.2", *arguments]
    process = Process(await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE))
    try:
        yield process
    finally:
        await process.kill()
