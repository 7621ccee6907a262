"""A replica that is a process of its own, to be killed and stopped, and keeps a journal that outlives it.

It streams as many numbers as the request's `max_tokens`, one every few milliseconds. The journal has a line
for each request as it arrives, for its first and its last byte, and for a proxy that has left; whatever it
says of a request was so, also when the process was killed within it. As a program: `python -m
tests.support.replica_process PORT JOURNAL`; as a test's: `ReplicaProcess`.
"""

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support import dialect
from tests.support.eventually import eventually
from tests.support.redis import free_port
from tests.support.upstream import METRICS, TEXT, Exchange, Upstream

PATIENCE = 30.0
"""Seconds for an interpreter to start, on a machine that is busy."""
PREFILL_SECONDS, TOKEN_SECONDS = 0.05, 0.005


class ReplicaProcess:
    """`async with` it: inside, it listens. It may be killed and started again, on the same port."""

    def __init__(self, directory: Path, name: str) -> None:
        self.port = free_port()
        self.journals: list[Path] = []
        """One for each process that it has been."""
        self._directory = directory
        self._name = name
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """As the proxy calls it."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.resume()
        await self.kill()

    async def start(self) -> None:
        journal = self._directory / f"{self._name}-{len(self.journals)}.journal"
        journal.touch()
        self.journals.append(journal)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.replica_process", str(self.port), str(journal)),
            cwd=Path(__file__).parents[2],
        )
        await eventually(lambda: "listening" in journal.read_text(), "it listens", within=PATIENCE)

    async def kill(self) -> None:
        """With SIGKILL, as the kernel does when memory runs out."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        await self._process.wait()

    def stop(self) -> None:
        """It does nothing any more; its connections stay, and the kernel takes new ones."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def slow(self, seconds: float) -> None:
        """From now on each first token, and each answer to a probe, takes so long."""
        (self._directory / f"{self.port}.slow").write_text(str(seconds))

    def events(self) -> list[tuple[int, str, str]]:
        """What happened: which process it was, what, and the request's id."""
        found = []
        for number, journal in enumerate(self.journals):
            for line in journal.read_text().splitlines():
                what, _, request = line.partition(" ")
                found.append((number, what, request))
        return found

    def count(self, what: str) -> int:
        return sum(event == what for _, event, _ in self.events())

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def generated_twice(replicas: list[ReplicaProcess]) -> list[str]:
    """Requests that two processes have worked on of which the first was not dead, nor had been left."""
    begun: Counter[str] = Counter()
    for replica in replicas:
        last = len(replica.journals) - 1
        left = {request for _, what, request in replica.events() if what == "left"}
        ended = {(number, request) for number, what, request in replica.events() if what == "end"}
        for number, what, request in replica.events():
            died_within = number < last and (number, request) not in ended
            if what == "begin" and not died_within and request not in left:
                begun[request] += 1
    return [request for request, times in begun.items() if times > 1]


async def serve(port: int, journal: Path) -> None:
    """Be the replica until killed."""
    log = os.open(journal, os.O_WRONLY | os.O_APPEND)
    upstream, started = Upstream(), time.time()
    upstream.port = port
    control = journal.parent / f"{port}.slow"

    def note(what: str, request: str = "") -> None:
        os.write(log, f"{what} {request}\n".encode())

    def delay() -> float:
        return float(control.read_text() or 0) if control.exists() else 0.0

    async def generate(exchange: Exchange) -> None:
        request = (exchange.request.one("x-request-id") or b"").decode()
        note("begin", request)
        await asyncio.sleep(delay() or PREFILL_SECONDS)
        if exchange.gone.is_set():
            note("left", request)
            return
        await exchange.open_stream()
        for number in range(exchange.request.json()["max_tokens"]):
            if exchange.gone.is_set():
                note("left", request)
                return
            await exchange.event(dialect.delta(f"{number} "))
            if not number:
                note("first", request)
            await asyncio.sleep(TOKEN_SECONDS)
        await exchange.event(dialect.usage_event(), dialect.DONE)
        await exchange.end_stream()
        note("end", request)

    async def health(exchange: Exchange) -> None:
        await asyncio.sleep(delay())
        await exchange.answer(b"")

    async def metrics(exchange: Exchange) -> None:
        page = f"{METRICS}# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {started}\n"
        await exchange.answer(page.encode(), "200 OK", [TEXT])

    upstream.behaviour = generate
    upstream.paths |= {"/health": health, "/metrics": metrics}
    async with upstream:
        note("listening")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
