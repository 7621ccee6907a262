"""H02: what is tried again on another replica, what never is, and how often at most."""

import asyncio

import pytest

from proxy.app import Proxy
from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import idle, in_flight, total
from tests.support.http import request
from tests.support.upstream import Exchange, Upstream

CHAT = "/v1/chat/completions"
STREAMS = pytest.mark.parametrize("stream", [True, False])


@pytest.fixture
async def pair(upstreams) -> list[Upstream]:
    """Two replicas that take a fresh connection for each request."""
    pair = await upstreams(2)
    for each in pair:
        each.keep_alive = False
    return pair


@pytest.fixture
async def proxy(pair, proxy_factory) -> Proxy:
    """A proxy that sends every other request to each, and does not look after them for a while."""
    return await proxy_factory(*pair, policy="round_robin", probes={"interval": 60, "misses": 100})


def tried(pair: list[Upstream]) -> int:
    return sum(len(each.requests) for each in pair)


async def reset(exchange: Exchange) -> None:
    exchange.reset()


@STREAMS
@pytest.mark.parametrize("events", [0, 1, 2])
async def test_H02_a_an_answer_that_has_begun_is_never_tried_again(pair, proxy, stream, events):
    async def behave(exchange: Exchange) -> None:
        if stream:
            await exchange.open_stream()
            await exchange.event(*([dialect.delta("x")] * events))
        else:
            await exchange.head(headers=[("Content-Type", "application/json"), ("Content-Length", 1000)])
            await exchange.send(*([b" " * 10] * events))
        exchange.reset()

    for each in pair:
        each.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
    if events or response.status != 502:
        assert not response.complete
        assert response.body == (dialect.delta("x") if stream else b" " * 10) * events
    assert tried(pair) == 1
    await idle(proxy)


@STREAMS
async def test_H02_a_half_a_head_is_an_answer_that_has_begun(pair, proxy, stream):
    async def behave(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-")
        exchange.reset()

    for each in pair:
        each.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
    assert response.status == 502
    assert tried(pair) == 1
    await idle(proxy)


@STREAMS
async def test_H02_b_a_live_replica_that_took_the_request_may_be_generating(pair, proxy, stream):
    for each in pair:
        each.behaviour = reset
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
    assert response.status == 502
    assert response.error["code"] == "upstream_failed"
    assert tried(pair) == 1
    await idle(proxy)


@STREAMS
async def test_H02_b_a_replica_that_died_before_its_first_byte_is_replaced_once(pair, proxy, stream):
    for each in pair:

        async def behave(exchange: Exchange, each: Upstream = each) -> None:
            if tried(pair) == 1:
                await each.die()
            else:
                await Upstream.reply(exchange)

        each.behaviour = behave
    fields = [("X-Request-Id", "req-1"), ("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01")]
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream), fields)
    assert response.status == 200
    assert response.one("x-warmroute-attempts") == b"2"
    first, second = (each.last for each in pair)
    assert first.one("x-request-id") == second.one("x-request-id") == b"req-1"
    assert first.body == second.body
    assert tried(pair) == 2
    await idle(proxy)


@STREAMS
async def test_H02_a_replica_that_refuses_is_passed_over(pair, proxy, stream):
    dead, alive = pair
    await dead.stop_listening()
    attempts = []
    for _ in range(4):
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
        assert response.status == 200
        attempts.append(response.one("x-warmroute-attempts"))
    assert b"2" in attempts
    assert len(alive.requests) == 4
    await idle(proxy)


@STREAMS
@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests"])
async def test_H02_a_replica_that_is_full_is_passed_over(pair, proxy, stream, status):
    full, free = pair

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b'{"error":"full"}', status, [("Retry-After", "1")])

    full.behaviour = behave
    for _ in range(3):
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
        assert response.status == 200
    assert len(free.requests) == 3
    assert full.requests
    await idle(proxy)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 500, 501, 502, 504])
async def test_H02_any_other_answer_is_the_answer(pair, proxy, status):
    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"no", f"{status} No")

    for each in pair:
        each.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert (response.status, response.body) == (status, b"no")
    assert tried(pair) == 1


async def test_H02_the_last_refusal_is_the_clients(pair, proxy):
    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b'{"error":"full"}', "503 Full", [("Retry-After", "9"), ("X-From", "engine")])

    for each in pair:
        each.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert (response.status, response.body) == (503, b'{"error":"full"}')
    assert response.one("retry-after") == b"9"
    assert response.one("x-from") == b"engine"
    assert tried(pair) == 2
    await idle(proxy)


async def test_H02_nobody_left_is_an_error_of_openais_shape(pair, proxy):
    for each in pair:
        await each.stop_listening()
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert response.status in {502, 503}
    assert response.error
    if response.status == 503:
        assert int(response.one("retry-after") or 0) >= 1
    await idle(proxy)


async def test_H02_retries_stay_within_a_budget(pair, proxy):
    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", "503 Full")

    for each in pair:
        each.behaviour = behave
    for _ in range(150):
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 503
    assert 150 < tried(pair) <= 150 + 15  # a tenth of the requests
    assert await total(proxy, "warmroute_retries_total") == tried(pair) - 150
    await idle(proxy)


async def test_H02_one_attempt_is_one_attempt(pair, proxy_factory):
    proxy = await proxy_factory(*pair, policy="round_robin", limits={"attempts": 1})

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", "503 Full")

    for each in pair:
        each.behaviour = behave
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 503
    assert tried(pair) == 1


@pytest.mark.parametrize("ending", ["finish", "reset"])
async def test_H02_a_kept_connection_that_the_replica_closed_costs_nothing(upstream, proxy_factory, ending):
    proxy = await proxy_factory(upstream)
    for _ in range(3):
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
        for connection in upstream.connections:
            if not connection.gone.is_set():
                getattr(connection, ending)()
    assert len(upstream.requests) == 3
    await idle(proxy)


async def test_H02_a_kept_connection_that_dies_under_a_request_is_not_the_clients_problem(
    upstream, proxy_factory
):
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        kept = [each.connection for each in upstream.requests].count(exchange.request.connection) > 1
        if kept:
            exchange.reset()  # as a replica whose keep-alive ran out while the request was on its way
        else:
            await Upstream.reply(exchange)

    upstream.behaviour = behave
    for _ in range(3):
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    await idle(proxy)


async def test_H02_a_client_that_leaves_between_attempts_ends_them(pair, proxy):
    first, left = asyncio.Event(), asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        if tried(pair) == 1:
            first.set()
            await left.wait()
            await exchange.answer(b"{}", "503 Full")
        else:
            await exchange.hang()

    for each in pair:
        each.behaviour = behave
    client = await Client.connect(proxy.port)
    await client.send(request("POST", CHAT, dialect.chat()))
    await first.wait()
    assert sum(await in_flight(proxy)) == 1
    client.reset()
    left.set()
    await idle(proxy)


@pytest.mark.parametrize("kept", [True, False])
async def test_H02_b_a_replica_that_dies_loses_nobody_it_had_not_answered(upstreams, proxy_factory, kept):
    """More than the budget for retries allows: what a dead replica had begun died with it."""
    first, second = pair = await upstreams(2)
    proxy = await proxy_factory(*pair, policy="round_robin", probes={"interval": 60, "misses": 100})
    crowd = 60
    if kept:
        gate = asyncio.Event()

        async def wait(exchange: Exchange) -> None:
            await gate.wait()
            await Upstream.reply(exchange)

        for each in pair:
            each.behaviour = wait
        async with asyncio.TaskGroup() as warming:
            for _ in range(crowd):
                warming.create_task(exchange(proxy.port, "POST", CHAT, dialect.chat()))
            await eventually(lambda: tried(pair) == crowd, "a connection each")
            gate.set()
    before = len(second.requests)
    first.behaviour, second.behaviour = dialect.hang, Upstream.reply
    async with asyncio.TaskGroup() as clients:
        asked = [
            clients.create_task(exchange(proxy.port, "POST", CHAT, dialect.chat())) for _ in range(crowd)
        ]
        await eventually(lambda: tried(pair) - before == crowd + before * kept, "all are there")
        await first.die()
    assert {each.result().status for each in asked} == {200}
    assert len(second.requests) - before == crowd
    await idle(proxy)


async def test_H02_b_a_request_that_kills_its_replica_does_not_kill_them_all(upstreams, proxy_factory):
    replicas = await upstreams(4)
    proxy = await proxy_factory(*replicas, policy="round_robin", probes={"interval": 60, "misses": 100})
    for each in replicas:

        async def die(_: Exchange, each: Upstream = each) -> None:
            await each.die()

        each.behaviour, each.keep_alive = die, False
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert response.status == 502
    assert tried(replicas) == 2
    for each in replicas:
        each.behaviour = Upstream.reply
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    await idle(proxy)
