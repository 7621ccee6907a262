"""Orders: what a worker that begins later has to be told, how one is carried out, and each worker's part."""

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest

from proxy.config import Settings
from proxy.workers.orders import Answer, Journal, Order, carry_out, order
from proxy.workers.share import share

DONE = Answer(200, b"application/json", b"{}")


def noted(*orders: tuple[str, str]) -> list[tuple[str, str]]:
    """What is left of these, all carried out; what follows the method is the body, and a name."""
    journal = Journal()
    for what, target in orders:
        method, _, name = what.partition(" ")
        answer = Answer(201, b"", json.dumps({"name": name}).encode()) if name else DONE
        journal.note(Order(method, target, [], name.encode()), answer)
    return [(f"{each.method} {each.body.decode()}".strip(), each.target) for each in journal]


@pytest.mark.parametrize(
    ("orders", "left"),
    [
        ([("POST", "/admin/flush")], []),
        ([("POST", "/admin/policy"), ("POST", "/admin/policy")], [("POST", "/admin/policy")]),
        (
            [('POST {"policy":"random"}', "/admin/canary"), ('POST {"action":"promote"}', "/admin/canary")],
            [('POST {"policy":"random"}', "/admin/canary")],
        ),
        ([("POST", "/admin/replicas/a/drain"), ("DELETE", "/admin/replicas/a/drain")], []),
        (
            [("POST", "/admin/replicas/a/drain"), ("POST", "/admin/replicas/a/drain")],
            [("POST", "/admin/replicas/a/drain")],
        ),
        (
            [
                ("POST a", "/admin/replicas"),
                ("POST", "/admin/replicas/a/drain"),
                ("DELETE", "/admin/replicas/a"),
            ],
            [("DELETE", "/admin/replicas/a")],
        ),
        (
            [("DELETE", "/admin/replicas?name=a"), ("POST a", "/admin/replicas")],
            [("DELETE", "/admin/replicas?name=a"), ("POST a", "/admin/replicas")],
        ),
        (
            [("POST", "/admin/replicas/a%20b/drain"), ("DELETE", "/admin/replicas/a b")],
            [("DELETE", "/admin/replicas/a b")],
        ),
    ],
)
def test_what_still_matters_is_kept_in_order(orders, left):
    assert noted(*orders) == left


class Answering(asyncio.Protocol):
    """A listener that answers with what it was sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, chunk: bytes) -> None:
        self.transport.write(b"HTTP/1.1 404 No\r\nContent-Type: text/x\r\n\r\n" + chunk)
        self.transport.close()


async def test_an_order_is_carried_out_as_if_it_had_come_here():
    fields = [(b"Host", b"h"), (b"Connection", b"keep-alive"), (b"Authorization", b"Bearer t")]
    answer = await carry_out(order("POST", "/admin/x?y=1", fields, b"body"), Answering)
    assert (answer.status, answer.kind) == (404, b"text/x")
    assert answer.body == (
        b"POST /admin/x?y=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer t\r\n"
        b"Connection: close\r\nContent-Length: 4\r\n\r\nbody"
    )


def test_what_is_for_all_together_is_divided():
    settings = Settings(
        workers=3,
        cache_mb=100,
        record=Path("/tmp/trace.jsonl"),
        priority={"queue": {"batch": 10}},
        limits={"pool_size": 4, "concurrency": 6},
        breaks={"per_second": 9.0},
    )
    one, other = share(settings, 0), share(settings, 2)
    assert one.priority.queue == {"interactive": 334, "standard": 334, "batch": 4}
    assert (one.cache_mb, one.limits.pool_size, one.breaks.per_second) == (34, 2, 3.0)
    assert one.limits.concurrency == 6  # what all have in flight counts
    assert (one.record, other.record) == (Path("/tmp/trace.w0.jsonl"), Path("/tmp/trace.w2.jsonl"))
    assert one.secret == other.secret
