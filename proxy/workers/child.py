"""A worker, as its supervisor sees it: a process that is given its settings, and the sockets to listen on.

It runs the same packages in the same interpreter, in a session of its own: a terminal's Ctrl-C is for the
supervisor. Settings go over the channel, where nobody else can read them.
"""

import asyncio
import os
import pickle
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proxy.config import Settings
from proxy.trace_file import of_worker
from proxy.workers.channel import Channel
from proxy.workers.pages import Page

PROGRAM = "proxy.worker"
_ROOT = str(Path(__file__).parents[2])


class Child:
    """One worker, from `start` to the end of its process."""

    def __init__(self, number: int, process: Process, channel: Channel) -> None:
        self.number = number
        """Which of the workers it is, from 0; whoever takes its place has the same."""
        self.channel = channel
        self.ready = False
        """Whether it accepts connections, and has carried out all that was ordered."""
        self.page: Page = []
        """What it told last."""
        self.replicas: list[str] = []
        """Those of which its page tells."""
        self._process = process
        self._hearing = asyncio.ensure_future(channel.run())

    @classmethod
    async def start(
        cls,
        number: int,
        settings: Settings,
        sockets: Sequence[socket.socket],
        serve: Callable[["Child", str, Any], Any],
    ) -> "Child":
        """`serve` does what it asks."""
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), *(each.fileno() for each in sockets)]
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", PROGRAM, *map(str, descriptors)),
                pass_fds=descriptors,
                stdin=DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        pickled = pickle.dumps(_of(settings, number))
        writer.write(len(pickled).to_bytes(4, "little") + pickled)
        child: Child

        def answer(what: str, details: Any) -> Any:
            return serve(child, what, details)

        child = cls(number, process, Channel(reader, writer, answer))
        return child

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def take(self, told: tuple[Page, list[str]]) -> None:
        """It has told what it counts."""
        self.page, self.replicas = told

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            pass

    async def ended(self) -> int:
        """Its exit status, once it has ended and all that it said was heard."""
        status = await self._process.wait()
        await self._hearing
        self.ready = False
        return status


def _of(settings: Settings, number: int) -> Settings:
    """A worker's settings: it records a trace of its own, in its share of the room."""
    if settings.record is None:
        return settings
    room = max(1, settings.record_mb // settings.workers)
    return settings.model_copy(update={"record": of_worker(settings.record, number), "record_mb": room})


async def settings_from(reader: asyncio.StreamReader) -> Settings:
    """What `Child.start` has sent."""
    size = int.from_bytes(await reader.readexactly(4), "little")
    settings = pickle.loads(await reader.readexactly(size))  # noqa: S301 - from the process that started this one
    assert isinstance(settings, Settings)
    return settings
