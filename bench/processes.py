"""The processes of a demo: simulated replicas and the proxy, each a real subprocess that is ended again."""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.fleet import wait_for_start

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


def machine_cpu_seconds() -> float:
    """Busy time of all cores together so far; 0 where /proc does not tell."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in first[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


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
    command = ["-m", "bench", "engine", "--ports", ",".join(["0"] * count), *arguments]
    async with _running(command, log) as process:
        urls: list[str] = []
        while len(urls) < count:
            urls = _URL.findall(_read(log))
            await _still_there(process, log)
        yield Process(process.pid, urls)


@asynccontextmanager
async def proxy(
    replicas: Sequence[str], policy: str, log: Path, *, port: int = 0, arguments: Sequence[str] = ()
) -> AsyncIterator[Process]:
    """The proxy in front of `replicas`, ready; they are called r1, r2 and so on."""
    port = free_port(port)
    command = ["-m", "proxy", "serve", "--host", HOST, "--port", str(port), "--policy", policy]
    named = [{"name": f"r{number}", "url": url} for number, url in enumerate(replicas, 1)]
    command += ["--replicas", json.dumps(named), "--tokenizer", "auto", *arguments]
    async with _running(command, log) as process:
        url = f"http://{HOST}:{port}"
        async with aiohttp.ClientSession() as session:
            ready = asyncio.ensure_future(wait_for_start(session, url, "/ready"))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
                await _still_there(process, log)
                await ready
            finally:
                ready.cancel()
                ended.cancel()
        yield Process(process.pid, [url])


@asynccontextmanager
async def _running(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python subprocess whose output goes to `log`; it is asked to end, then made to."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
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
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _still_there(process: asyncio.subprocess.Process, log: Path) -> None:
    await asyncio.sleep(0.05)
    if process.returncode is not None:
        tail = "\n".join(_read(log).splitlines()[-15:])
        raise RuntimeError(f"it ended with status {process.returncode}; the end of {log}:\n{tail}")


def _read(log: Path) -> str:
    return log.read_text(errors="replace")
