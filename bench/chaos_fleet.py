"""A fleet that can be harmed: simulated replicas, each a process of its own, and a proxy in front of them."""

import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from bench import fleet, processes
from bench.client import until
from bench.record import Record

LOGS = Path("bench/out/chaos")
PROFILE, PREFILL, MODEL = "h100x2-32b", 6000.0, "simulated"
"""A third of the profile's prefill rate: so few requests a second as two slow cores can send are a load."""
PATIENCE = 60.0


class Replica:
    """A simulated replica in a process of its own, which can be killed and started again on its port."""

    def __init__(self, number: int) -> None:
        self.name = f"r{number}"
        self.url = ""
        self.killed = False
        self._stack = AsyncExitStack()
        self._pid = 0

    async def start(self) -> None:
        """Start it, also anew, with an empty cache."""
        port = str(urlsplit(self.url).port or 0)
        arguments = ["--ports", port, "--profile", PROFILE, "--model", MODEL]
        arguments += ["--prefill-tokens-per-s", str(PREFILL)]
        log = LOGS / f"{self.name}.log"
        process = await self._stack.enter_async_context(processes.engines(1, arguments, log))
        self._pid, (self.url,) = process.pid, process.urls

    async def kill(self) -> None:
        """End it at once."""
        self.killed = True
        os.kill(self._pid, signal.SIGKILL)
        await self.close()

    async def close(self) -> None:
        """Be done with it."""
        await self._stack.aclose()


class Fleet:
    """Replicas and the proxy in front of them."""

    def __init__(self, session: aiohttp.ClientSession, replicas: int) -> None:
        self.session = session
        self.replicas = [Replica(number) for number in range(1, replicas + 1)]
        self.url = ""

    async def start(self, stack: AsyncExitStack) -> None:
        """Start all, and wait until they take traffic."""
        for replica in self.replicas:
            stack.push_async_callback(replica.close)
            await replica.start()
        urls = [replica.url for replica in self.replicas]
        one = processes.proxy(urls, "prefix_cost", LOGS / "proxy.log", arguments=["--redis-url", "none"])
        self.url = (await stack.enter_async_context(one)).urls[0]
        await self.all_up()

    async def all_up(self) -> None:
        """Wait until the proxy uses every replica."""

        async def up() -> bool:
            return await fleet.total(self.session, self.url, "warmroute_replica_up") == len(self.replicas)

        await until(up, timeout=PATIENCE, what="not every replica was up", every=0.1)

    async def drain(self, replica: Replica) -> None:
        """Let it finish what it has, and give it no more."""
        path = f"{self.url}/admin/replicas/{replica.name}/drain"
        async with self.session.post(path) as response:
            response.raise_for_status()

        async def empty() -> bool:
            counts = await fleet.samples(self.session, self.url, "warmroute_replica_inflight")
            return not next(value for labels, value in counts if labels["replica"] == replica.name)

        await until(empty, timeout=PATIENCE, what=f"{replica.name} was not drained", every=0.1)

    async def let(self, replica: Replica) -> None:
        """Give it requests again."""
        async with self.session.delete(f"{self.url}/admin/replicas/{replica.name}/drain") as response:
            response.raise_for_status()

    async def generated_twice(self, records: Sequence[Record]) -> int | None:
        """Answers that replicas never killed have completed beyond those that were relayed; None without one.

        One that was killed has taken its counts along.
        """
        await fleet.wait_until_idle(self.session, [replica.url for replica in self.replicas])
        if all(replica.killed for replica in self.replicas):
            return None
        relayed = Counter(record.replica for record in records if record.status == 200)
        more = 0
        for replica in self.replicas:
            if not replica.killed:
                ends = await fleet.samples(self.session, replica.url, "vllm:request_success_total")
                done = sum(value for labels, value in ends if labels["finished_reason"] != "abort")
                more += max(0, round(done) - relayed[replica.name])
        return more
