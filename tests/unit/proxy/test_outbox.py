"""Writes of one turn go out together, in order, and nothing goes to what was closed."""

import asyncio

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
