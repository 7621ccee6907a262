"""The processes of a bench: simulated replicas, proxies, a Valkey. Each is a real one and is ended again."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.client import until
from bench.fleet import wait_for_start
from proxy.shared.embedded import binary

HOST = "127.0.0.1"
_URL = re.compile(r" on (http://\S+)")


@dataclass(frozen=True, slots=True)
class Process:
    """Something that runs and listens."""

    pid: int
    urls: list[str]

    def cpu_seconds(self) -> float:
        """User and system time so far; 0 where /proc does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Memory that it occupies; 0 where /proc does not tell."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except OSError:
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


def machine_cpu_seconds() -> float:
    """Busy time of all cores together so far; 0 where /proc does not tell."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in first[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def end_on_sigterm() -> None:
    """Cancel the running task on SIGTERM, so that no process of a bench outlives it."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def free_port(preferred: int = 0) -> int:
    """`preferred` if nobody listens there, else any free one."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port")


@asynccontextmanager
async def engines(count: int, arguments: Sequence[str], log: Path) -> AsyncIterator[Process]:
    """`count` simulated replicas in one process, on free ports."""
    command = [sys.executable, "-m", "bench", "engine", "--ports", ",".join(["0"] * count), *arguments]
    async with running(command, log) as process:
        urls: list[str] = []
        while len(urls) < count:
            urls = _URL.findall(_read(log))
            await still_there(process, log)
        yield Process(process.pid, urls)


@asynccontextmanager
async def proxy(
    replicas: Sequence[str],
    policy: str,
    log: Path,
    *,
    port: int = 0,
    arguments: Sequence[str] = (),
    of_each: Mapping[str, str] = {},
) -> AsyncIterator[Process]:
    """The proxy in front of `replicas`, ready; they are called r1, r2 and so on.

    `of_each`: what is configured of every replica beside its name and URL.
    """
    port = free_port(port)
    command = [sys.executable, "-m", "proxy", "serve", "--host", HOST, "--port", str(port)]
    command += ["--policy", policy, "--shutdown-delay", "0"]
    named = [{"name": f"r{number}", "url": url, **of_each} for number, url in enumerate(replicas, 1)]
    command += ["--replicas", json.dumps(named), "--tokenizer", "auto", *arguments]
    async with running(command, log) as process:
        url = f"http://{HOST}:{port}"
        async with aiohttp.ClientSession() as session:
            ready = asyncio.ensure_future(wait_for_start(session, url, "/ready"))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
                await still_there(process, log)
                await ready
            finally:
                ready.cancel()
                ended.cancel()
        yield Process(process.pid, [url])


@asynccontextmanager
async def proxies(
    count: int, replicas: Sequence[str], policy: str, logs: Path, *, arguments: Sequence[str] = ()
) -> AsyncIterator[list[Process]]:
    """`count` proxies in front of the same replicas, started at once and all ready."""
    async with AsyncExitStack() as stack:

        async def start(number: int) -> Process:
            log = logs / f"proxy-{number}.log"
            one = proxy(replicas, policy, log, arguments=arguments)
            return await stack.enter_async_context(one)

        try:
            async with asyncio.TaskGroup() as starting:
                tasks = [starting.create_task(start(number)) for number in range(1, count + 1)]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        yield [task.result() for task in tasks]


@asynccontextmanager
async def valkey(log: Path, *, port: int = 0, options: Sequence[str] = ()) -> AsyncIterator[Process]:
    """The Valkey that the product embeds, but on a port: empty, keeping nothing on disk, answering.

    `options` are more of the server's, such as `--maxmemory 20mb`.
    """
    port = free_port(port)
    command = [str(binary()), "--bind", HOST, "--port", str(port), "--save", "", "--appendonly", "no"]
    async with running([*command, *options], log) as process:

        async def answers() -> bool:
            await still_there(process, log)
            try:
                reader, writer = await asyncio.open_connection(HOST, port)
            except OSError:
                return False
            writer.write(b"PING\r\n")
            try:
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()

        await until(answers, timeout=10.0, what=f"the Valkey on port {port} did not answer")
        yield Process(process.pid, [f"redis://{HOST}:{port}/0"])


@asynccontextmanager
async def running(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A subprocess whose output goes to `log`; it is asked to end, then made to."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=output,
            stderr=output,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it may have ended by itself just now
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def still_there(process: asyncio.subprocess.Process, log: Path) -> None:
    """Wait a moment; RuntimeError with the end of its log if it has ended."""
    await asyncio.sleep(0.05)
    if process.returncode is not None:
        tail = "\n".join(_read(log).splitlines()[-15:])
        raise RuntimeError(f"it ended with status {process.returncode}; the end of {log}:\n{tail}")


def _read(log: Path) -> str:
    return log.read_text(errors="replace")
