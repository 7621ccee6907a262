"""From a signal to the exit of a real process: who is still served, who is told, what is cut."""

import asyncio
from contextlib import AsyncExitStack
from signal import SIGINT, SIGTERM

import pytest

from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.http import chunked, head, request
from tests.support.processes import Process, proxy_process
from tests.support.upstream import Exchange, Upstream

CHAT = "/v1/chat/completions"
STREAM = dialect.chat(stream=True)
PLAIN = request("POST", CHAT, STREAM)
GENERAL = head(f"POST {CHAT} HTTP/1.1", [("Host", "proxy.test"), ("Transfer-Encoding", "chunked")]) + chunked(
    STREAM
)
OLD = request("POST", CHAT, STREAM, version="1.0")


class Held:
    """A behaviour that begins a stream, or not even that, and ends it when told."""

    def __init__(self, *, begun: bool = True) -> None:
        self.release = asyncio.Event()
        self.begun = begun

    async def __call__(self, exchange: Exchange) -> None:
        if self.begun:
            await exchange.open_stream()
            await exchange.event(dialect.delta("x"))
        await self.release.wait()
        if not self.begun:
            await exchange.open_stream()
        await exchange.event(dialect.delta("y"), dialect.DONE)
        await exchange.end_stream()


async def refuses(process: Process) -> None:
    """Wait until nobody can connect any more."""

    async def so() -> bool:
        try:
            async with await Client.connect(process.port):
                return False
        except OSError:
            return True

    await eventually(so, "it listens no more")


async def test_SIGTERM_tells_first_then_closes_then_drains_then_exits(upstream: Upstream):
    held = upstream.behaviour = Held()
    async with (
        proxy_process([upstream.url], "--shutdown-delay", "3") as process,
        AsyncExitStack() as clients,
    ):
        await process.ready()
        stream = await clients.enter_async_context(await Client.connect(process.port))
        await stream.send(PLAIN)
        await stream.until(method="POST")
        idle = await clients.enter_async_context(await Client.connect(process.port))
        general = await clients.enter_async_context(await Client.connect(process.port))
        await general.exchange("GET", "/health")
        soon = upstream.behaviour = Held()
        busy = await clients.enter_async_context(await Client.connect(process.port))
        await busy.send(GENERAL)
        await busy.until(method="POST")
        process.signal(SIGTERM)

        async def told() -> bool:
            return (await exchange(process.port, "GET", "/ready")).status == 503

        await eventually(told, "/ready says so while it still accepts")
        ready = await exchange(process.port, "GET", "/ready")
        assert ready.json()["status"] == "draining"
        assert ready.one("connection") == b"close"
        upstream.behaviour = Upstream.reply
        async with await Client.connect(process.port) as late:
            for raw in (request("POST", CHAT, dialect.chat()), request("POST", CHAT, dialect.chat())):
                if late.gone.is_set():
                    break
                await late.send(raw)
                response = await late.response("POST")
                assert response.status == 200
                assert response.one("connection") == b"close"
                await late.until_gone()
        assert not idle.gone.is_set()
        await refuses(process)
        await idle.until_gone()
        await general.until_gone()
        soon.release.set()
        assert (await busy.response("POST")).complete
        await busy.until_gone()  # it began as one that could be used again
        held.release.set()
        response = await stream.response("POST")
        assert response.complete
        assert b'"y"' in response.body
        assert await process.exit() == 0
    assert "stopped, with 0 sequences in flight" in process.log


@pytest.mark.parametrize("raw", [PLAIN, GENERAL, OLD], ids=["plain", "general", "old"])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "waiting"])
async def test_when_the_grace_is_over_nothing_that_is_broken_looks_whole(upstream: Upstream, raw, begun):
    upstream.behaviour = Held(begun=begun)
    arguments = ("--shutdown-delay", "0", "--shutdown-grace", "0.2")
    async with (
        proxy_process([upstream.url], *arguments) as process,
        AsyncExitStack() as clients,
    ):
        await process.ready()
        client = await clients.enter_async_context(await Client.connect(process.port))
        await client.send(raw)
        await upstream.arrived()
        if begun:
            await client.until(method="POST")
        process.signal(SIGTERM)
        assert await process.exit() == 0
        await client.until_gone()
        response = await client.response("POST")
        if begun:
            assert isinstance(client.error, ConnectionResetError)
            assert not response.complete or raw is OLD  # whose end is only told by the reset
        else:
            assert (response.status, response.complete) == (503, True)
            assert response.error["code"] == "no_replica"
            assert response.one("retry-after")
            assert response.closes
        await upstream.connections[upstream.last.connection].until_gone()
    assert "stopped, with 0 sequences in flight" in process.log


async def test_a_second_signal_ends_it_at_once(upstream: Upstream):
    upstream.behaviour = Held()
    arguments = ("--shutdown-delay", "3600", "--shutdown-grace", "3600")
    async with (
        proxy_process([upstream.url], *arguments) as process,
        AsyncExitStack() as clients,
    ):
        await process.ready()
        client = await clients.enter_async_context(await Client.connect(process.port))
        await client.send(PLAIN)
        await client.until(method="POST")
        process.signal(SIGTERM)
        await eventually(lambda: "stopping" in process.log)
        process.signal(SIGTERM)
        assert await process.exit() == 0
        await client.until_gone()
        assert not (await client.response("POST")).complete
    assert "stopped, with 0 sequences in flight" in process.log


@pytest.mark.parametrize("served", [True, False])
async def test_who_waits_in_the_queue_is_served_or_told(upstream: Upstream, served):
    held = upstream.behaviour = Held()
    grace = "3600" if served else "0.2"
    arguments = ("--limits.concurrency", "1", "--shutdown-grace", grace)
    async with (
        proxy_process([upstream.url], *arguments) as process,
        AsyncExitStack() as clients,
    ):
        await process.ready()
        first = await clients.enter_async_context(await Client.connect(process.port))
        await first.send(PLAIN)
        await first.until(method="POST")
        second = await clients.enter_async_context(await Client.connect(process.port))
        await second.send(PLAIN)

        await exchange(process.port, "GET", "/health")  # what was sent before has been read by now
        assert len(upstream.requests) == 1
        process.signal(SIGINT)  # no delay: whoever types it is no load balancer
        await refuses(process)
        if served:
            held.release.set()
            assert (await first.response("POST")).complete
            assert (await second.response("POST")).complete
        else:
            response = await second.response("POST")
            assert response.status == 503
            assert response.one("retry-after")
        assert await process.exit() == 0
        assert len(upstream.requests) == (2 if served else 1)


async def test_a_request_that_never_came_whole_keeps_nobody(upstream: Upstream):
    arguments = ("--shutdown-delay", "0", "--shutdown-grace", "0.2")
    async with proxy_process([upstream.url], *arguments) as process, AsyncExitStack() as clients:
        await process.ready()
        for raw in (PLAIN[:-5], GENERAL[:-5], PLAIN[:20]):
            client = await clients.enter_async_context(await Client.connect(process.port))
            await client.send(raw)
        await exchange(process.port, "GET", "/health")  # what was sent before has been read by now
        process.signal(SIGTERM)
        assert await process.exit() == 0
        assert not upstream.requests


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
async def test_a_signal_while_it_starts_ends_it(upstream: Upstream, number):
    upstream.paths["/health"] = lambda exchange: exchange.hang()
    async with proxy_process([upstream.url], "--probes.timeout", "60") as process:
        await eventually(lambda: upstream.internal, "it asks the replica", within=60)
        process.signal(number)
        assert await process.exit() == 0
        assert "listening" not in process.log
