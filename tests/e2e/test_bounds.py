"""What a client may take of time and room: requests that trickle, heads that swell, connections that idle."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.support import dialect
from tests.support.client import Client
from tests.support.fixtures import ask
from tests.support.http import head, request
from tests.support.upstream import Exchange

CHAT = "/v1/chat/completions"
BODY = dialect.chat()
SHORT = {"request": 0.4, "client_keepalive": 0.4, "idle": 1.0}


@asynccontextmanager
async def trickling(client: Client, byte: bytes = b" "):
    """Sends a byte again and again, meanwhile: never quiet, never done."""

    async def go() -> None:
        while not client.gone.is_set():
            await client.send(byte)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(go())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


LONG = [("Host", "localhost"), ("Content-Length", 100_000)]
BEGINNINGS = {
    "a plain body": head(f"POST {CHAT} HTTP/1.1", LONG),
    "a general body": head(f"POST {CHAT} HTTP/1.1", [*LONG, ("Connection", "keep-alive, x")]),
    "a body that is passed on": head("POST /v1/files HTTP/1.1", LONG),
    "a chunked body": head(f"POST {CHAT} HTTP/1.1", [("Host", "h"), ("Transfer-Encoding", "chunked")])
    + b"fffff\r\n",
    "a plain head": f"POST {CHAT} HTTP/1.1\r\nX: ".encode(),
    "a general head": b"GET /health HTTP/1.1\r\nX: ",
    "a body for the operator": head(
        "POST /admin/replicas HTTP/1.1", [("Host", "localhost"), ("Content-Length", 3000)]
    ),
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
async def test_a_request_that_trickles_ends(upstream, proxy_factory, beginning):
    proxy = await proxy_factory(upstream, timeouts=SHORT)
    async with await Client.connect(proxy.port) as client:
        await client.send(beginning)
        async with trickling(client):
            await client.until_gone()
        if client.received:
            reply = await client.response("POST")
            assert (reply.status, reply.error["code"]) == (408, "request_timeout")
    assert not upstream.requests


@pytest.mark.parametrize("first", [None, "/health", CHAT])
async def test_a_connection_that_idles_ends(upstream, proxy_factory, first):
    proxy = await proxy_factory(upstream, timeouts=SHORT)
    async with await Client.connect(proxy.port) as client:
        if first == CHAT:
            assert (await client.exchange("POST", CHAT, BODY)).status == 200
        elif first is not None:
            assert (await client.exchange("GET", first)).status == 200
        await client.until_gone()


async def test_an_answer_that_takes_its_time_is_no_idle_connection(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={**SHORT, "idle": 30})
    go_on = asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        await go_on.wait()
        await upstream.reply(exchange)

    upstream.behaviour = slowly
    async with await Client.connect(proxy.port) as client, await Client.connect(proxy.port) as other:
        await client.send(request("POST", CHAT, BODY))
        await other.until_gone()  # which is quiet as long
        go_on.set()
        assert (await client.response("POST")).status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_many_fields_are_as_large_as_one(upstream, proxy_factory, method):
    proxy = await proxy_factory(upstream, limits={"header_bytes": 16_384})
    fields = [(f"X-{number}", "x" * 300) for number in range(100)]
    target, body = ("/health", None) if method == "GET" else (CHAT, BODY)
    async with await Client.connect(proxy.port) as client:
        reply = await client.exchange(method, target, body, fields)
        assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
        assert reply.closes
    assert not upstream.requests
    assert (await ask(proxy, "/health")).status == 200


async def test_a_replica_that_talks_without_end_is_not_heard_out(
    upstream, proxy_factory, monkeypatch, caplog
):
    monkeypatch.setattr("proxy.probes.LONGEST", 100_000)

    async def endless(exchange: Exchange) -> None:
        await exchange.answer(b"#" * 1_000_000)

    upstream.paths["/metrics"] = endless
    proxy = await proxy_factory(upstream, ready=False)
    assert (await ask(proxy, "/ready")).status == 503
    assert "more than" in caplog.text


STEERING = [
    (
        CHAT,
        [
            ("X-Forwarded-Host", "{decoy}"),
            ("Forwarded", "host={decoy}"),
            ("X-Original-Url", "http://{decoy}/"),
        ],
    ),
    ("http://{decoy}" + CHAT, []),
    (CHAT + "?url=http://{decoy}/", [("X-Replica", "{decoy}"), ("X-Warmroute-Replica", "{decoy}")]),
    ("/v1/@{decoy}/x", []),
    ("/v1/files#@{decoy}/", []),
    ("//{decoy}" + CHAT, []),
]


@pytest.mark.parametrize(("target", "fields"), STEERING)
async def test_no_request_chooses_an_address(upstreams, proxy_factory, target, fields):
    """Replicas' addresses come from the configuration and the operator, whatever a client names."""
    upstream, decoy = await upstreams(2)
    proxy = await proxy_factory(upstream)
    address = f"127.0.0.1:{decoy.port}"
    named = [(name, value.format(decoy=address)) for name, value in fields]
    body = dialect.chat(url=f"http://{address}/", base_url=f"http://{address}/v1")
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", target.format(decoy=address), body, named, host=address))
        assert (await client.response("POST")).status in {200, 400, 404}
    assert not decoy.connections
    assert all(each.one("host") == f"127.0.0.1:{upstream.port}".encode() for each in upstream.requests)
