"""H, what passes a hop and what does not: headers (H07, H09), expectations (H08), credentials (H10)."""

import pytest

from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, counts, idle
from tests.support.http import head, request
from tests.support.upstream import Exchange

CHAT = "/v1/chat/completions"
OWN = {"host", "content-length", "x-request-id", "traceparent"}
"""Names that the proxy may add to a request."""


async def test_H07_hop_by_hop_headers_stop_here_on_the_way_in(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    fields = [
        ("X-A", "1"),
        ("Connection", "close, X-Hop"),
        ("X-Hop", "1"),
        ("x-HOP", "2"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic b"),
        ("Keep-Alive", "5"),
        ("Proxy-Connection", "keep-alive"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABk"),
        ("Trailer", "X-T"),
        ("x-a", "2"),
        ("X-a", "1"),
        ("X-Request-Id", "req-1"),
        ("X-Empty", ""),
        ("Accept", "text/event-stream"),
        ("X-Bytes", "caf\xe9"),
    ]
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), fields)
    assert response.status == 200
    got = upstream.last
    stopped = {
        "connection", "x-hop", "te", "proxy-authorization", "keep-alive",
        "proxy-connection", "upgrade", "http2-settings", "trailer", "transfer-encoding",
    }  # fmt: skip
    assert not got.names() & stopped
    assert got.one("host") == f"127.0.0.1:{upstream.port}".encode()
    kept = [(name, value) for name, value in got.headers if name.decode().lower() not in OWN]
    assert kept == [
        (b"X-A", b"1"),
        (b"x-a", b"2"),
        (b"X-a", b"1"),
        (b"X-Empty", b""),
        (b"Accept", b"text/event-stream"),
        (b"X-Bytes", b"caf\xe9"),
    ]
    assert got.one("x-request-id") == b"req-1"
    assert response.one("x-request-id") == b"req-1"


async def test_H07_hop_by_hop_headers_stop_here_on_the_way_out(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        fields = [
            ("Set-Cookie", "a=1"),
            ("Connection", "X-R, keep-alive"),
            ("X-R", "1"),
            ("Keep-Alive", "timeout=5"),
            ("Proxy-Authenticate", "Basic"),
            ("Upgrade", "h2c"),
            ("Content-Type", "text/x-odd"),
            ("set-cookie", "b=2"),
            ("X-Request-Id", "from-the-engine"),
            ("Server", "engine"),
            ("X-Warmroute-Decision", "the engine's own"),
            ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
            ("X-Bytes", "caf\xe9"),
        ]
        await exchange.answer(b"hi", headers=fields)

    upstream.behaviour = behave
    async with await Client.connect(proxy.port) as client:
        for _ in range(2):
            response = await client.exchange("POST", CHAT, dialect.chat(), [("X-Request-Id", "req-1")])
            assert response.body == b"hi"
            assert not response.closes
            assert not response.names() & {"x-r", "proxy-authenticate", "upgrade"}
            cookies = [pair for pair in response.headers if pair[0].lower() == b"set-cookie"]
            assert cookies == [(b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2")]
            assert response.one("content-type") == b"text/x-odd"
            assert response.one("server") == b"engine"
            assert response.one("x-warmroute-decision") in {b"cold", b"hit", b"partial"}
            assert response.one("date") == b"Thu, 01 Jan 2026 00:00:00 GMT"
            assert response.one("x-bytes") == b"caf\xe9"
            assert response.one("x-request-id") == b"req-1"


@pytest.mark.parametrize(
    "named", ["Content-Length", "Host", "Transfer-Encoding", "close, content-length, host"]
)
async def test_H07_connection_cannot_take_the_framing_away(upstream, proxy_factory, named):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), [("Connection", named)])
    assert response.status in {200, 400}
    if response.status == 200:
        assert upstream.last.body == dialect.chat()
        assert upstream.last.one("content-length") == str(len(dialect.chat())).encode()
        assert upstream.last.one("host") == f"127.0.0.1:{upstream.port}".encode()


async def test_H07_a_request_id_is_made_once_and_told_once(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    seen = set()
    for _ in range(3):
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
        made = response.one("x-request-id")
        assert made
        assert upstream.last.one("x-request-id") == made
        seen.add(made)
    assert len(seen) == 3


@pytest.mark.parametrize("sent", ["a b", "x" * 2000, "\xe9", "<script>", "a,b"])
async def test_H07_an_odd_request_id_harms_nothing(upstream, proxy_factory, sent):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), [("X-Request-Id", sent)])
    assert response.status in {200, 400}
    if response.status == 200:
        assert response.one("x-request-id") == upstream.last.one("x-request-id")


@pytest.mark.parametrize("path", [CHAT, "/v1/audio/speech"])
async def test_H08_expect_is_answered_here_and_once(upstream, proxy_factory, path):
    proxy = await proxy_factory(upstream)
    sent = dialect.chat(pad="x" * 2_000_000)
    whole = request("POST", path, sent, [("Expect", "100-continue")])
    start, body = whole[: -len(sent)], whole[-len(sent) :]
    async with await Client.connect(proxy.port) as client:
        await client.send(start)
        await eventually(lambda: client.received == b"HTTP/1.1 100 Continue\r\n\r\n")
        assert not upstream.requests
        await client.send(body)
        response = await client.response()
        assert (response.status, response.interim) == (200, [100])
    assert upstream.last.body == sent
    assert "expect" not in upstream.last.names()


async def test_H08_a_body_that_would_be_too_large_is_not_asked_for(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, limits={"body_bytes": 100_000})
    start = head(
        f"POST {CHAT} HTTP/1.1", [("Host", "h"), ("Expect", "100-continue"), ("Content-Length", 200_000)]
    )
    async with await Client.connect(proxy.port) as client:
        await client.send(start)
        response = await client.response()
        assert (response.status, response.interim) == (413, [])
        assert response.error["code"] == "request_too_large"
    assert not upstream.requests


async def test_H08_an_unknown_expectation_is_417(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), [("Expect", "foo")])
    assert response.status == 417
    assert response.error["code"] == "expectation_failed"
    assert not upstream.requests


async def test_H09_no_cookie_goes_from_one_client_to_the_next(upstreams, proxy_factory):
    [upstream] = await upstreams(1, host="localhost")
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", headers=[("Set-Cookie", "sid=1; Path=/")])

    upstream.behaviour = behave
    for user in range(3):
        fields = [("Cookie", "own=2")] if user == 2 else []
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), fields)
        assert response.one("set-cookie") == b"sid=1; Path=/"
        assert upstream.last.one("cookie") == (b"own=2" if fields else None)
        assert upstream.last.one("host") == f"localhost:{upstream.port}".encode()


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"]
)
async def test_H09_redirects_are_the_clients_business(upstream, proxy_factory, status):
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"there", status, [("Location", "/other")])

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert response.status == int(status[:3])
    assert response.one("location") == b"/other"
    assert response.body == b"there"
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings", "/v1/audio/speech"])
async def test_H09_no_header_is_invented(upstream, proxy_factory, path):
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", path, dialect.body(input="x", messages=dialect.MESSAGES))
    assert upstream.last.names() <= OWN
    own = {name for name in response.names() if name.startswith("x-warmroute-")}
    assert response.names() - own <= {"content-length", "x-request-id"}


@pytest.mark.parametrize("replace", [False, True], ids=["forwarded", "replaced"])
async def test_H10_credentials_are_the_same_on_every_route(upstream, proxy_factory, replace):
    async def guarded(exchange: Exchange) -> None:
        if exchange.request.one("authorization") == b"Bearer key":
            await open_models(exchange)
        else:
            await exchange.answer(b"{}", "401 Unauthorized")

    open_models = upstream.paths["/v1/models"]
    upstream.paths["/v1/models"] = guarded
    proxy = await proxy_factory(upstream, upstream_api_key="key", replace_auth=replace)
    multipart = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
    for path, body, kind in [
        *((path, body, "application/json") for path, body in dialect.routes().items()),
        ("/v1/embeddings", dialect.body(input="x"), "application/json"),
        ("/v1/rerank", dialect.body(query="x", documents=["y"]), "application/json"),
        ("/v1/audio/transcriptions", multipart, "multipart/form-data; boundary=b"),
        ("/tokenize", dialect.body(prompt="x"), "application/json"),
        ("/detokenize", dialect.body(tokens=[1]), "application/json"),
    ]:
        fields = [("authorization", "Bearer u1"), ("Content-Type", kind), ("X-Api-Key", "u1")]
        response = await exchange(proxy.port, "POST", path, body, fields)
        assert response.status == 200, path
        got = upstream.last
        assert (got.path, bytes(got.body)) == (path, body)
        assert got.one("authorization") == (b"Bearer key" if replace else b"Bearer u1"), path
        if not replace:
            assert (b"authorization", b"Bearer u1") in got.headers
            assert got.one("x-api-key") == b"u1"
    assert upstream.internal
    assert all(each.one("authorization") == b"Bearer key" for each in upstream.internal)


@pytest.mark.parametrize("replace", [False, True], ids=["forwarded", "replaced"])
async def test_H10_a_client_without_a_credential(upstream, proxy_factory, replace):
    proxy = await proxy_factory(upstream, upstream_api_key="key", replace_auth=replace)
    await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert upstream.last.one("authorization") == (b"Bearer key" if replace else None)


async def test_H10_a_401_on_tokenize_degrades_loudly(upstream, proxy_factory):
    async def refuse(exchange: Exchange) -> None:
        await exchange.answer(b'{"error":"Unauthorized"}', "401 Unauthorized")

    upstream.paths["/tokenize"] = refuse
    proxy = await proxy_factory(upstream, tokenizer="engine")
    for _ in range(3):
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
        assert response.status == 200
    await counts(proxy, "warmroute_load_only_requests_total", 3)
    ready = await ask(proxy, "/ready")
    assert ready.status == 200
    assert b"degraded" in ready.body
    await idle(proxy)
