"""S, endings: the client that leaves (S09, S10), and how long a generation may take (S12)."""

import asyncio
import socket

import pytest

from proxy.model_pool import ModelPool
from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually, turns
from tests.support.fixtures import ask, counts, idle, in_flight, metric
from tests.support.http import request
from tests.support.upstream import Exchange

CHAT = "/v1/chat/completions"
SOON = 2.0
"""Seconds within which a replica must see that its client has left."""
ROUTES = pytest.mark.parametrize("path", dialect.routes())


def body_for(path: str, **fields) -> bytes:
    return dialect.routes(**fields)[path]


async def three_of_a_hundred(exchange: Exchange) -> None:
    """Three events, then nothing until the client has left."""
    await exchange.open_stream()
    await exchange.event(dialect.delta("1"), dialect.delta("2"), dialect.delta("3"))
    await exchange.hang()


@ROUTES
@pytest.mark.parametrize("leave", ["reset", "finish"])
async def test_S09_a_client_that_leaves_mid_stream_frees_the_replica(upstream, proxy_factory, path, leave):
    proxy = await proxy_factory(upstream)
    upstream.behaviour = three_of_a_hundred
    async with await Client.connect(proxy.port) as other, await Client.connect(proxy.port) as client:
        await other.send(request("POST", CHAT, dialect.chat(stream=True)))
        await other.until(dialect.delta("3"))
        await client.send(request("POST", path, body_for(path, stream=True)))
        await client.until(dialect.delta("3"))
        assert await in_flight(proxy) == [2]
        getattr(client, leave)()
        connection = upstream.connections[upstream.last.connection]
        await connection.until_gone(within=SOON)
        await eventually(lambda: loads_are(proxy, [1]))
        assert not other.gone.is_set()
    await idle(proxy)
    assert list((await metric(proxy, "warmroute_replica_up")).values()) == [1]


async def loads_are(proxy, expected: list[float]) -> bool:
    return await in_flight(proxy) == expected


@ROUTES
@pytest.mark.parametrize("gap", [0, 1, 2, 3, 5])
async def test_S09_a_client_that_leaves_while_headers_are_written(upstream, proxy_factory, path, gap):
    proxy = await proxy_factory(upstream)
    client = await Client.connect(proxy.port)

    async def behave(exchange: Exchange) -> None:
        await exchange.wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        await turns()
        await exchange.wire.send(b"Transfer-Encoding: chunked\r\n\r\n")
        await turns(gap)
        client.reset()
        await exchange.hang()

    upstream.behaviour = behave
    await client.send(request("POST", path, body_for(path, stream=True)))
    await upstream.arrived()
    await upstream.connections[upstream.last.connection].until_gone(within=SOON)
    await idle(proxy)


@ROUTES
async def test_S09_a_client_that_leaves_without_reading_frees_the_replica(upstream, proxy_factory, path):
    proxy = await proxy_factory(upstream)
    held_back = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        while not exchange.gone.is_set():
            sending = asyncio.ensure_future(exchange.event(dialect.delta("x" * 65536)))
            done, _ = await asyncio.wait({sending}, timeout=0.5)
            if not done:  # the proxy takes no more: its client does not read
                held_back.set()
                await sending

    upstream.behaviour = behave
    async with await Client.connect(proxy.port, receive_buffer=4096) as client:
        client.stop_reading()
        await client.send(request("POST", path, body_for(path, stream=True)))
        await asyncio.wait_for(held_back.wait(), 30)
        assert await in_flight(proxy) == [1]
        assert not client.gone.is_set()
        client.reset()
        await upstream.connections[upstream.last.connection].until_gone(within=SOON)
    await idle(proxy)


async def test_S09_a_slow_reader_holds_the_replica_back_and_gets_every_byte(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    piece = dialect.delta("x" * 65536)
    pieces = 256  # 16 MiB: more than the sockets between hold
    sent = 0

    async def behave(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.open_stream()
        for _ in range(pieces):
            await exchange.event(piece)
            sent += 1
        await exchange.end_stream()

    async def stands_still() -> bool:
        before = sent
        await asyncio.sleep(0.3)
        return before == sent

    upstream.behaviour = behave
    async with await Client.connect(proxy.port, receive_buffer=4096) as client:
        client.stop_reading()
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        await upstream.arrived()
        await eventually(stands_still, within=30)
        assert sent < pieces
        client.resume_reading()
        response = await client.response(within=60)
    assert response.complete
    assert response.body == piece * pieces


@ROUTES
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["reset", "finish"])
async def test_S10_a_client_that_leaves_before_the_first_byte(upstream, proxy_factory, path, stream, leave):
    proxy = await proxy_factory(upstream)
    upstream.behaviour = dialect.hang
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", path, body_for(path, stream=stream)))
        await upstream.arrived()
        assert await in_flight(proxy) == [1]
        getattr(client, leave)()
        await upstream.connections[upstream.last.connection].until_gone(within=SOON)
    await idle(proxy)
    await counts(proxy, "warmroute_requests_total", 1)
    assert list((await metric(proxy, "warmroute_replica_up")).values()) == [1]
    assert len(upstream.requests) == 1  # what nobody waits for is not tried again


async def test_S10_a_client_that_leaves_while_it_sends_reaches_no_replica(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    sent = request("POST", CHAT, dialect.chat())
    for end in (len(sent) - 1, len(sent) - len(dialect.chat()), 20):
        async with await Client.connect(proxy.port) as client:
            await client.send(sent[:end])
            await turns()
            client.reset()
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    assert len(upstream.requests) == 1
    await idle(proxy)


async def test_S12_a_long_stream_is_bounded_only_by_its_silences(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"idle": 0.8, "first_byte": 0.8})
    events = [dialect.delta(str(at)) for at in range(8)]

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for each in events:
            await asyncio.sleep(0.2)  # the stimulus: twice either limit in all
            await exchange.event(each)
        await exchange.end_stream()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert response.complete
    assert response.body == b"".join(events)


async def test_S12_an_answer_in_one_piece_may_come_late(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"idle": 0.2, "connect": 0.2})

    async def behave(exchange: Exchange) -> None:
        await asyncio.sleep(0.8)
        await exchange.json({"choices": []})

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert response.json() == {"choices": []}


@pytest.mark.parametrize("stream", [True, False])
async def test_S12_headers_and_then_nothing_end_by_the_idle_limit(upstream, proxy_factory, stream):
    proxy = await proxy_factory(upstream, timeouts={"idle": 0.3})

    async def behave(exchange: Exchange) -> None:
        if stream:
            await exchange.open_stream()
        else:
            await exchange.head(headers=[("Content-Length", 100)])
        await exchange.hang()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
    if response.complete:
        assert response.status == 504
        assert response.error["code"] == "upstream_timeout"
    else:
        assert (response.status, response.body) == (200, b"")
    await upstream.connections[upstream.last.connection].until_gone(within=SOON)
    await idle(proxy)


async def test_S12_a_stream_that_falls_silent_is_cut(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"idle": 0.3})
    upstream.behaviour = three_of_a_hundred
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert not response.complete
    assert response.body == b"".join(dialect.delta(each) for each in "123")
    await upstream.connections[upstream.last.connection].until_gone(within=SOON)
    await idle(proxy)


@pytest.mark.parametrize("stream", [True, False])
async def test_S12_no_first_byte_is_a_504_and_is_not_tried_again(upstreams, proxy_factory, stream):
    first, second = await upstreams(2)
    proxy = await proxy_factory(first, second, timeouts={"first_byte": 0.3})
    first.behaviour = second.behaviour = dialect.hang
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
    assert (response.status, response.complete) == (504, True)
    assert response.error["code"] == "upstream_timeout"
    [tried] = [each for each in (first, second) if each.requests]
    assert len(tried.requests) == 1
    await tried.connections[tried.last.connection].until_gone(within=SOON)
    await idle(proxy)


async def flood(exchange: Exchange) -> None:
    """32 MiB: more than the sockets between hold."""
    await exchange.open_stream()
    await exchange.event(*([dialect.delta("x" * 65536)] * 512))
    await exchange.end_stream()


async def test_S12_a_client_that_pauses_is_no_idle_replica(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"idle": 2.0})
    upstream.behaviour = flood
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        for megabytes in (4, 8, 12):
            client.stop_reading()
            await asyncio.sleep(0.8)  # the stimulus: pauses that add up to more than the limit
            client.resume_reading()
            while len(client.received) < megabytes << 20:
                await client.arrival()
        response = await client.response(within=60)
    assert response.complete
    assert response.body == dialect.delta("x" * 65536) * 512


async def test_S12_a_client_that_never_reads_frees_the_replica(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"idle": 0.3})
    upstream.behaviour = flood
    async with await Client.connect(proxy.port, receive_buffer=4096) as client:
        client.stop_reading()
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        await upstream.arrived()
        await upstream.connections[upstream.last.connection].until_gone()
        await idle(proxy)
        client.resume_reading()
        assert not (await client.response()).complete
    assert list((await metric(proxy, "warmroute_replica_up")).values()) == [1]


async def test_S12_a_replica_that_takes_no_connection_is_left_after_the_connect_limit(
    upstreams, proxy_factory
):
    good, dark = await upstreams(2)
    proxy = await proxy_factory(
        good, dark, timeouts={"connect": 0.3}, policy="round_robin", probes={"interval": 30}
    )
    await dark.die()
    hole = socket.create_server(("127.0.0.1", dark.port), backlog=0)
    filling = []
    try:
        for _ in range(3):  # a full accept queue: the kernel answers no further connection
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(hole.getsockname())
            filling.append(sock)
        for _ in range(4):
            response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
            assert response.status == 200
    finally:
        for sock in (*filling, hole):
            sock.close()
    assert len(good.requests) == 4
    assert (await ask(proxy, "/health")).status == 200
    await idle(proxy)


@pytest.mark.parametrize("stream", [True, False])
async def test_S09_a_failure_of_our_own_at_the_end_gives_the_load_back(
    upstream, proxy_factory, monkeypatch, stream
):
    planted = 0

    def broken(*_: object) -> bool:
        nonlocal planted
        planted += 1
        raise ArithmeticError("planted")

    proxy = await proxy_factory(upstream)
    monkeypatch.setattr(ModelPool, "learn", broken)
    answer = await exchange(
        proxy.port,
        "POST",
        CHAT,
        dialect.chat(stream=stream),
        [("Content-Type", "application/json")],
    )
    assert answer.status == 200
    await idle(proxy)
    assert planted
