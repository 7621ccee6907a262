"""H, framing and limits: no request is smuggled in (H06), nothing oversize hangs or is cut (H05)."""

import pytest

from tests.support import dialect
from tests.support.client import Client, converse, exchange
from tests.support.eventually import turns
from tests.support.fixtures import ask, idle
from tests.support.http import ResponseReader, chunked, head, request
from tests.support.upstream import Exchange

CHAT = "/v1/chat/completions"
BODY = dialect.chat()
SMUGGLED = request("POST", "/v1/completions", dialect.body(prompt="smuggled"))
START = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"

AMBIGUOUS = {
    "both": START + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n" + b"0\r\n\r\n",
    "both-the-other-way": START + CHUNKED + LENGTH + b"\r\n" + chunked(BODY),
    "two-lengths": START + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "two-lengths-in-one": START + b"Content-Length: 2, 3\r\n\r\n{} ",
    "signed-length": START + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
    "negative-length": START + b"Content-Length: -1\r\n\r\n" + BODY,
    "underscored-length": START + b"Content-Length: 1_0\r\n\r\n" + BODY,
    "hex-length": START + b"Content-Length: 0x10\r\n\r\n" + BODY,
    "empty-length": START + b"Content-Length: \r\n\r\n" + BODY,
    "superscript-length": START + "Content-Length: \u00b2\r\n\r\n".encode("latin-1") + BODY,
    "chunked123": START + b"Transfer-Encoding: chunked123\r\n\r\n" + chunked(BODY),
    "chunked-not-last": START + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked(BODY),
    "chunked-twice": START + CHUNKED + CHUNKED + b"\r\n" + chunked(BODY),
    "obsolete-coding": START + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
    "vertical-tab": START + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + chunked(BODY),
    "signed-size": START + CHUNKED + b"\r\n" + b"+%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "negative-size": START + CHUNKED + b"\r\n" + b"-1\r\n" + BODY,
    "space-before-size": START + CHUNKED + b"\r\n" + b" %x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "prefixed-size": START + CHUNKED + b"\r\n" + b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "underscored-size": START + CHUNKED + b"\r\n" + b"0_%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "no-size": START + CHUNKED + b"\r\n" + b"\r\n" + BODY,
    "size-too-large": START + CHUNKED + b"\r\n" + b"f" * 40 + b"\r\n" + BODY,
    "longer-than-its-size": START + CHUNKED + b"\r\n" + b"2\r\n{}x\r\n0\r\n\r\n",
    "space-before-colon": START + b"Content-Length : 2\r\n\r\n{}",
    "folded": START + b"X-A: 1\r\n Content-Length: 2\r\n" + LENGTH + b"\r\n" + BODY,
    "bare-cr": START + b"X-A: 1\rContent-Length: 2\r\n" + LENGTH + b"\r\n" + BODY,
    "nul": START + b"X-A: 1\0\r\n" + LENGTH + b"\r\n" + BODY,
    "no-colon": START + b"X-A\r\n" + LENGTH + b"\r\n" + BODY,
    "space-in-name": START + b"X A: 1\r\n" + LENGTH + b"\r\n" + BODY,
    "empty-name": START + b": 1\r\n" + LENGTH + b"\r\n" + BODY,
    "two-hosts": START + b"Host: other\r\n" + LENGTH + b"\r\n" + BODY,
    "no-version": b"POST /v1/chat/completions\r\nHost: h\r\n" + LENGTH + b"\r\n" + BODY,
    "version-2": b"POST /v1/chat/completions HTTP/2.0\r\nHost: h\r\n" + LENGTH + b"\r\n" + BODY,
    "space-in-target": b"POST /v1/chat completions HTTP/1.1\r\nHost: h\r\n" + LENGTH + b"\r\n" + BODY,
    "chunked-in-1.0": START.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n" + chunked(BODY),
    "not-http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_H06_ambiguous_framing_is_refused_and_closed(upstream, proxy_factory, raw):
    proxy = await proxy_factory(upstream)
    received = await converse(proxy.port, raw + SMUGGLED)
    reader = ResponseReader("POST")
    assert reader.feed(received), received
    assert reader.message.status in {400, 501, 505}, received
    assert reader.used == len(received), "one answer, then the end"
    await turns()
    assert not upstream.requests
    await idle(proxy)


TOLERATED = {
    "same-length-twice": START + LENGTH + LENGTH + b"\r\n" + BODY,
    "bare-lf": START.replace(b"\r\n", b"\n") + LENGTH.replace(b"\r\n", b"\n") + b"\n" + BODY,
    "missing-host": START.replace(b"Host: h\r\n", b"") + LENGTH + b"\r\n" + BODY,
    "padded-length": START + b"Content-Length:  00%d \r\n\r\n" % len(BODY) + BODY,
    "size-with-extension": START + CHUNKED + b"\r\n" + b'%x;a="b;c"\r\n%b\r\n0\r\n\r\n' % (len(BODY), BODY),
    "trailers": START + CHUNKED + b"\r\n" + chunked(BODY, end=b"0\r\nContent-Length: 5\r\nX-T: 1\r\n\r\n"),
    "coding-in-capitals": START + b"Transfer-Encoding: Chunked\r\n\r\n" + chunked(BODY),
    "size-with-lf": START + CHUNKED + b"\r\n" + b"%x\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "space-after-size": START + CHUNKED + b"\r\n" + b"%x \r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    "lf-in-extension": START + CHUNKED + b"\r\n" + b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
}


@pytest.mark.parametrize("raw", TOLERATED.values(), ids=TOLERATED)
async def test_H06_what_a_lenient_reader_accepts_is_passed_whole_or_refused(upstream, proxy_factory, raw):
    proxy = await proxy_factory(upstream)
    async with await Client.connect(proxy.port) as client:
        await client.send(raw)
        response = await client.response("POST")
    if response.status == 400:
        assert response.closes
        assert not upstream.requests
    else:
        assert response.status == 200
        assert [bytes(each.body) for each in upstream.requests] == [BODY]
        assert upstream.last.one("content-length") == str(len(BODY)).encode()
        assert not upstream.last.all("transfer-encoding")


async def test_H06_pipelined_requests_are_answered_in_order(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)

    async def echo(exchange: Exchange) -> None:
        await exchange.answer(bytes(exchange.request.body))

    upstream.behaviour = echo
    bodies = [dialect.chat(user=str(at)) for at in range(5)]
    async with await Client.connect(proxy.port) as client:
        await client.send(b"".join(request("POST", CHAT, each) for each in bodies))
        for each in bodies:
            assert (await client.response("POST")).body == each
    assert [bytes(each.body) for each in upstream.requests] == bodies


async def test_H06_a_body_that_holds_a_request_is_a_body(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", "/v1/audio/speech?model=m", SMUGGLED)
    assert response.status in {200, 400}
    assert [bytes(each.body) for each in upstream.requests] in ([], [SMUGGLED])


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "PUT"])
async def test_H06_a_body_with_any_method_stays_a_body(upstream, proxy_factory, method):
    proxy = await proxy_factory(upstream)
    async with await Client.connect(proxy.port) as client:
        await client.send(request(method, "/v1/files", SMUGGLED))
        response = await client.response(method)
        assert response.status in {200, 400, 404, 405}
    await turns()
    assert [(each.method.decode(), bytes(each.body)) for each in upstream.requests] in (
        [],
        [(method, SMUGGLED)],
    )


POISON = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunked", "none", "head"])
async def test_H06_what_a_replica_adds_after_its_answer_reaches_nobody(
    upstream, proxy_factory, framing, together
):
    proxy = await proxy_factory(upstream)
    answers = {
        "length": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        "chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"{}"),
        "none": b"HTTP/1.1 204 No Content\r\n\r\n",
        "head": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    }
    good = answers[framing]

    async def behave(exchange: Exchange) -> None:
        await exchange.send(*([good + POISON] if together else [good, POISON]))

    upstream.behaviour = behave
    expected = {"length": b"{}", "chunked": b"{}"}.get(framing, b"")
    for _ in range(4):
        response = await exchange(proxy.port, "POST", CHAT, BODY)
        assert response.complete
        assert response.body == expected
    await idle(proxy)


REFUSED = {
    "both": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "odd-coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "bad-length": b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\n{}",
    "no-http": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "binary": bytes(range(256)) + b"\r\n\r\n",
    "no-status": b"HTTP/1.1 OK\r\n\r\n",
    "http-2": b"HTTP/2 200\r\n\r\n",
    "space-before-colon": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "cut-head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "switching": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "nothing": b"",
    "endless-interim": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED)
async def test_H06_a_replica_that_does_not_speak_http_is_a_502(upstream, proxy_factory, raw):
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        await exchange.send(raw)
        exchange.finish()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, BODY)
    assert (response.status, response.complete) == (502, True)
    assert response.error["code"] == "upstream_failed"
    await idle(proxy)
    upstream.behaviour = type(upstream).reply
    assert (await exchange(proxy.port, "POST", CHAT, BODY)).status == 200


async def test_H05_a_large_prompt_passes(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_200_000}}
    sent = dialect.body(messages=[{"role": "user", "content": [image]}])
    assert (await exchange(proxy.port, "POST", CHAT, sent)).status == 200
    assert upstream.last.body == sent


@pytest.mark.parametrize("path", [CHAT, "/v1/audio/speech"])
@pytest.mark.parametrize("over", [0, 1, 100_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_H05_the_limit_on_bodies_is_exact(upstream, proxy_factory, path, over, framing):
    limit = 200_000
    proxy = await proxy_factory(upstream, limits={"body_bytes": limit})
    padding = limit + over - len(dialect.chat(pad=""))
    sent = dialect.chat(pad="x" * padding)
    assert len(sent) == limit + over
    if framing == "length":
        raw = request("POST", path, sent)
    else:
        raw = head(f"POST {path} HTTP/1.1", [("Host", "h"), ("Transfer-Encoding", "chunked")])
        raw += chunked(*(sent[at : at + 50_000] for at in range(0, len(sent), 50_000)))
    async with await Client.connect(proxy.port) as client:
        await client.send(raw)
        response = await client.response("POST")
    if over:
        assert response.status == 413
        assert response.error["code"] == "request_too_large"
        assert not upstream.requests
    else:
        assert response.status == 200
        assert upstream.last.body == sent
    await idle(proxy)


@pytest.mark.parametrize("framing", [("Content-Length", 10**15), ("Transfer-Encoding", "chunked")])
async def test_H05_an_endless_body_is_refused_before_its_end(upstream, proxy_factory, framing):
    proxy = await proxy_factory(upstream, limits={"body_bytes": 200_000})
    async with await Client.connect(proxy.port) as client:
        await client.send(head(f"POST {CHAT} HTTP/1.1", [("Host", "h"), framing]))
        if framing[1] == "chunked":
            await client.send(chunked(*([b"x" * 60_000] * 5), end=b""))
        response = await client.response("POST")
        assert response.status == 413
        assert response.closes
    assert not upstream.requests
    await idle(proxy)


async def test_H05_an_answer_before_the_end_of_the_request_is_the_answer(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)

    async def refuse(exchange: Exchange) -> None:
        exchange.wire.stop_reading()
        await exchange.answer(b"too large for me", "413 Too Large")
        await exchange.hang()

    upstream.on_head = refuse
    sent = dialect.chat(pad="x" * 16_000_000)  # more than the sockets between hold
    for count in (1, 2):
        response = await exchange(proxy.port, "POST", CHAT, sent)
        assert (response.status, response.body) == (413, b"too large for me")
        assert len(upstream.requests) == count
    first, second = upstream.requests
    assert first.connection != second.connection
    await idle(proxy)


async def test_H05_nine_kilobyte_headers_pass_both_ways(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    large = "x" * 9000

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", headers=[("X-Large", large)])

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, BODY, [("Authorization", f"Bearer {large}")])
    assert response.status == 200
    assert response.one("x-large") == large.encode()
    assert upstream.last.one("authorization") == f"Bearer {large}".encode()


@pytest.mark.parametrize(
    "fields",
    [[("X-Large", "x" * 20_000)], [(f"X-{at}", "x" * 100) for at in range(200)]],
    ids=["one-field", "many-fields"],
)
async def test_H05_headers_over_the_limit_are_refused_both_ways(upstream, proxy_factory, fields):
    proxy = await proxy_factory(upstream, limits={"header_bytes": 16_384})
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, BODY, fields))
        response = await client.response("POST")
    assert response.status in {400, 431}
    assert not upstream.requests

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", headers=fields)

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, BODY)
    assert response.status == 502
    assert response.error["code"] == "upstream_failed"
    await idle(proxy)
    assert (await ask(proxy, "/health")).status == 200


async def test_H05_a_head_without_end_is_refused(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, limits={"header_bytes": 16_384})

    async def behave(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nX-Large: " + b"x" * 100_000)
        await exchange.hang()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, BODY)
    assert response.status == 502
    async with await Client.connect(proxy.port) as client:
        await client.send(START + b"X-Large: " + b"x" * 100_000)
        assert (await client.response("POST")).status in {400, 431}
