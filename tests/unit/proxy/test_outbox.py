"""Writes of one turn go out together, in order, and nothing to what is closed or cannot be written to."""

import asyncio
import socket

import pytest
import uvloop

from proxy.outbox import Outbox


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, chunk: bytes) -> None:
        assert not self.closing
        self.written.append(chunk)


async def test_what_is_written_in_one_turn_goes_out_at_its_end_in_order():
    outbox, one, other = Outbox(), Transport(), Transport()
    for number in range(3):
        outbox.write(one, b"%d" % number)
        outbox.write(other, b"o%d" % number)
    assert one.written == other.written == []
    await asyncio.sleep(0)
    assert one.written == [b"0", b"1", b"2"]
    assert other.written == [b"o0", b"o1", b"o2"]
    outbox.write(one, b"3")
    await asyncio.sleep(0)
    assert one.written[-1] == b"3"


async def test_a_flush_writes_at_once_and_nothing_twice():
    outbox, transport = Outbox(), Transport()
    outbox.write(transport, b"a")
    outbox.flush()
    outbox.write(transport, b"b")
    outbox.flush()
    await asyncio.sleep(0)
    assert transport.written == [b"a", b"b"]


async def test_a_transport_that_was_closed_meanwhile_is_left_alone():
    outbox, closed, open_ = Outbox(), Transport(), Transport()
    outbox.write(closed, b"a")
    outbox.write(open_, b"b")
    closed.closing = True
    await asyncio.sleep(0)
    assert (closed.written, open_.written) == ([], [b"b"])


class Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def connected() -> tuple[asyncio.Transport, Protocol, socket.socket]:
    """A transport, its protocol, and the other end, which reads without an event loop."""
    ours, theirs = socket.socketpair()
    transport, protocol = await asyncio.get_running_loop().create_connection(Protocol, sock=ours)
    theirs.setblocking(False)
    return transport, protocol, theirs


async def one_of_three_cannot_be_written_to() -> None:
    loop, outbox = asyncio.get_running_loop(), Outbox()
    ends = [await connected() for _ in range(3)]
    _, (broken, broken_protocol, broken_end), _ = ends
    for turn in range(2):
        for transport, _, _ in ends:
            outbox.write(transport, b"<%d>" % turn)
    broken.write_eof()  # from now on the event loop's transport refuses every write with an error
    outbox.write(ends[2][0], b"<last>")
    await broken_protocol.lost.wait()
    assert await loop.sock_recv(broken_end, 100) == b"", "what comes behind a lost chunk must not be sent"
    for (transport, protocol, end), expected in ((ends[0], b"<0><1>"), (ends[2], b"<0><1><last>")):
        assert await loop.sock_recv(end, 100) == expected
        assert not transport.is_closing(), "the failure of another transport closed this one"
        outbox.write(transport, b"more")
        outbox.flush()
        assert await loop.sock_recv(end, 100) == b"more"
        transport.close()
        await protocol.lost.wait()
    for *_, end in ends:
        end.close()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_write_that_raises_costs_only_its_own_transport_and_is_told_once(new_loop, caplog):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(one_of_three_cannot_be_written_to(), 30))
    told = [record for record in caplog.records if record.name == "warmroute"]
    assert len(told) == 1
    assert "RuntimeError" in (told[0].exc_text or "")
