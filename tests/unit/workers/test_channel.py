"""Calls between two ends of a pair of sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.workers.channel import Channel, Gone
from tests.support.eventually import eventually


class End:
    """What one side was asked."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.hold = asyncio.Event()

    def serve(self, what: str, details: Any) -> Any:
        self.heard.append((what, details))
        if what == "fail":
            raise ValueError("a test")
        return self._later(details) if what == "later" else details

    async def _later(self, details: Any) -> Any:
        await self.hold.wait()
        return details


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Channel, Channel, End]]:
    """Two channels, and what the second one's side was asked."""
    it, sockets = End(), socket.socketpair()
    channels = []
    for sock, serve in zip(sockets, (lambda *_: None, it.serve), strict=True):
        channels.append(Channel(*await asyncio.open_unix_connection(sock=sock), serve))
    running = [asyncio.create_task(channel.run()) for channel in channels]
    yield channels[0], channels[1], it
    for channel in channels:
        channel.close()
    await asyncio.gather(*running)


async def test_a_call_gets_its_answer_and_what_waits_holds_nobody_up(ends):
    ours, _, it = ends
    slow = asyncio.create_task(ours.call("later", 1, seconds=10))
    assert await ours.call("now", {"a": [b"\x00", 2.5]}, seconds=10) == {"a": [b"\x00", 2.5]}
    assert not slow.done()
    it.hold.set()
    assert await slow == 1
    ours.tell("word", "x" * 1_000_000)
    await eventually(lambda: it.heard[-1] == ("word", "x" * 1_000_000))


async def test_what_failed_there_is_said_and_the_channel_lives(ends, caplog):
    ours, _, _ = ends
    with pytest.raises(Gone, match="fail failed there"):
        await ours.call("fail", seconds=10)
    assert await ours.call("now", 3, seconds=10) == 3
    assert "fail failed" in caplog.text


async def test_who_does_not_answer_in_time_is_not_waited_for(ends):
    ours, _, it = ends
    with pytest.raises(TimeoutError):
        await ours.call("later", seconds=0.01)
    it.hold.set()  # its answer comes to nobody
    assert await ours.call("now", 4, seconds=10) == 4


async def test_when_the_other_side_ends_everybody_is_told(ends):
    ours, theirs, it = ends
    waiting = asyncio.create_task(ours.call("later", seconds=10))
    await eventually(lambda: it.heard, "it is asked")
    theirs.close()
    with pytest.raises(Gone):
        await waiting
    await eventually(ours.closed.is_set)
    ours.tell("word")
    with pytest.raises(Gone):
        await ours.call("now", seconds=10)
