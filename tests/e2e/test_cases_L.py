"""L01: whatever ends a request, the load that it put on a replica is taken back exactly once.

Each way out runs while both replicas stream to somebody else, so that a count taken back twice shows as well
as one that is never taken back.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.app import Proxy
from proxy.index.memory import MemoryIndex
from proxy.metrics import Metrics
from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import idle, in_flight, serving
from tests.support.http import request
from tests.support.upstream import Exchange, Upstream

CHAT = "/v1/chat/completions"
STREAMS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
HELD = "held"


@dataclass
class Scene:
    """Two replicas, each with one stream that stays open, and the request under test."""

    proxy: Proxy
    replicas: list[Upstream]

    async def loads(self, *expected: float) -> None:
        """Wait until each replica has so many in flight."""

        async def settled() -> bool:
            return await in_flight(self.proxy) == list(expected)

        await eventually(settled, f"in flight is {expected}")

    def behave(self, behaviour) -> None:
        """What both replicas do with the request under test."""

        async def choose(exchange: Exchange) -> None:
            if HELD.encode() in exchange.request.body:
                await exchange.open_stream()
                await exchange.event(dialect.delta("x"))
                await exchange.hang()
            else:
                await behaviour(exchange)

        for replica in self.replicas:
            replica.behaviour = choose

    @property
    def tried(self) -> list[Upstream]:
        """The replicas that the request under test reached."""
        return [each for each in self.replicas if any(HELD.encode() not in r.body for r in each.requests)]


@asynccontextmanager
async def scene(upstreams, **settings: Any) -> AsyncIterator[Scene]:
    """Enter with one in flight on each replica; leave with that restored, then with nothing."""
    replicas = await upstreams(2)
    settings = {"policy": "round_robin", "probes": {"interval": 60, "misses": 100}, **settings}
    async with serving(*replicas, **settings) as proxy, AsyncExitStack() as stack:
        this = Scene(proxy, replicas)
        this.behave(Upstream.reply)
        for _ in replicas:
            client = await stack.enter_async_context(await Client.connect(proxy.port))
            await client.send(request("POST", CHAT, dialect.chat(stream=True, user=HELD)))
            await client.until(dialect.delta("x"))
        await this.loads(1, 1)
        yield this
        await this.loads(1, 1)
        await stack.aclose()
        await idle(proxy)


async def success(exchange: Exchange) -> None:
    if b'"stream": true' in exchange.request.body:
        await exchange.stream(dialect.delta("x"), dialect.usage_event(), dialect.DONE)
    else:
        await Upstream.reply(exchange)


def status(line: str):
    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", line)

    return behave


def cut(after: bytes, how: str):
    async def behave(exchange: Exchange) -> None:
        await exchange.send(after)
        if how == "hang":
            await exchange.hang()
        else:
            getattr(exchange, how)()

    return behave


HALF = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
HALF_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda"
)
REPLIES = {
    "success": success,
    "no-content": cut(b"HTTP/1.1 204 No Content\r\n\r\n", "finish"),
    "closes-to-end": cut(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: x\n\n", "finish"),
    **{str(code): status(f"{code} No") for code in (400, 401, 404, 408, 422, 429, 500, 501, 502, 503, 504)},
    **{
        f"{how}-{where}": cut(raw, how)
        for how in ("reset", "finish")
        for where, raw in {
            "before-head": b"",
            "in-head": HALF[:30],
            "after-head": HALF.partition(b"{")[0],
            "in-body": HALF,
            "in-stream": HALF_STREAM,
            "in-interim": b"HTTP/1.1 103 Early Hints\r\n\r\n",
        }.items()
    },
    "garbage": cut(b"\0" * 200 + b"\r\n\r\n", "finish"),
    "bad-chunk": cut(HALF_STREAM[:-5] + b"zz\r\n", "hang"),
    "large-head": cut(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "hang"),
    "excess": cut(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{}{}", "hang"),
}


@STREAMS
@pytest.mark.parametrize("reply", REPLIES)
async def test_L01_however_the_replica_answers(upstreams, reply, stream):
    async with scene(upstreams) as this:
        this.behave(REPLIES[reply])
        for _ in range(3):
            await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream))
        assert this.tried


@STREAMS
async def test_L01_refused_by_one_and_by_all(upstreams, stream):
    async with scene(upstreams) as this:
        for replica in this.replicas:
            await replica.stop_listening()
            for _ in range(3):
                await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream))
        assert this.replicas[1].requests


@STREAMS
async def test_L01_no_first_byte_in_time(upstreams, stream):
    async with scene(upstreams, timeouts={"first_byte": 0.3}) as this:
        this.behave(dialect.hang)
        response = await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream))
        assert response.status == 504


@pytest.mark.parametrize(
    "raw", [HALF[:30], HALF[:-1], HALF, HALF_STREAM], ids=["head", "body", "json", "events"]
)
async def test_L01_silence_for_too_long(upstream, raw):
    async def behave(exchange: Exchange) -> None:
        await exchange.send(raw)
        await exchange.hang()

    async with serving(upstream, timeouts={"idle": 0.3}) as proxy:
        upstream.behaviour = behave
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
        assert response.status == 504 or not response.complete
        await idle(proxy)


@STREAMS
@pytest.mark.parametrize("leave", ["reset", "finish"])
@pytest.mark.parametrize("when", ["before-head", "in-head", "after-head", "mid-body", "at-the-end"])
async def test_L01_the_client_leaves(upstreams, when, leave, stream):
    parts = [HALF[:20], HALF[20:-1], HALF[-1:]]
    if stream:
        parts = [HALF_STREAM[:20], HALF_STREAM[20:-5], HALF_STREAM[-5:]]
    at = ["before-head", "in-head", "after-head", "mid-body", "at-the-end"].index(when)

    async with scene(upstreams) as this, await Client.connect(this.proxy.port) as client:

        async def behave(exchange: Exchange) -> None:
            if when == "at-the-end":
                await exchange.wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            else:
                await exchange.send(*parts[:at])
            getattr(client, leave)()
            if when != "at-the-end":
                await exchange.hang()

        this.behave(behave)
        await client.send(request("POST", CHAT, dialect.chat(stream=stream)))
        await eventually(client.transport.is_closing, "the client has left")
        await this.loads(1, 1)
        assert len(this.tried) == 1


@STREAMS
async def test_L01_a_retry_on_the_second_replica(upstreams, stream):
    async with scene(upstreams) as this:

        async def behave(exchange: Exchange) -> None:
            if len(this.tried) == 1:
                await exchange.answer(b"{}", "503 Full")
            else:
                await success(exchange)

        this.behave(behave)
        response = await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream))
        assert (response.status, response.one("x-warmroute-attempts")) == (200, b"2")
        assert len(this.tried) == 2


FAULTS = {
    "metrics": (Metrics, "book"),
    "match": (MemoryIndex, "match"),
    "predict": (MemoryIndex, "predict"),
    "confirm": (MemoryIndex, "confirm"),
}


@STREAMS
@pytest.mark.parametrize("fault", FAULTS)
async def test_L01_a_fault_of_our_own(upstreams, monkeypatch, caplog, fault, stream):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of our own")

    async with scene(upstreams) as this:
        this.behave(success)
        with monkeypatch.context() as patch:
            patch.setattr(*FAULTS[fault], fail)
            for _ in range(2):
                response = await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream))
                assert response.status in {200, 500}
                assert b"a fault of our own" not in response.body
        await this.loads(1, 1)
        assert (await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream))).status == 200


@STREAMS
@pytest.mark.parametrize("begun", [True, False])
async def test_L01_the_proxy_stops(upstreams, begun, stream):
    [replica] = await upstreams(1)

    async def behave(exchange: Exchange) -> None:
        if begun:
            await exchange.send(HALF_STREAM)
        await exchange.hang()

    replica.behaviour = behave
    async with AsyncExitStack() as stack:
        async with serving(replica, shutdown_grace=0.1) as proxy:
            client = await stack.enter_async_context(await Client.connect(proxy.port))
            await client.send(request("POST", CHAT, dialect.chat(stream=stream)))
            await replica.arrived()
            assert await in_flight(proxy) == [1]
        assert [each.view.in_flight for each in proxy.fleet.replicas.values()] == [0]
        await replica.connections[replica.last.connection].until_gone()
        await client.until_gone()
        if client.received:
            response = await client.response()
            assert not response.complete or response.status >= 500


@pytest.mark.parametrize(
    "fields", [{"n": 4}, {"n": 0}, {"n": "2"}, {"n": 129}, {"n": -3}, {"n": None}, {"n": 1e9}]
)
async def test_L01_sequences_are_taken_back_as_they_were_counted(upstreams, fields):
    async with scene(upstreams) as this:
        this.behave(success)
        for stream in (True, False):
            await exchange(this.proxy.port, "POST", CHAT, dialect.chat(stream=stream, **fields))
            await this.loads(1, 1)
