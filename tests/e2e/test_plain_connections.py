"""Connections on which plain requests come: in pieces, ahead of their turn, mixed with others, or never."""

from tests.support import dialect
from tests.support.client import Client
from tests.support.http import chunked, head, request

CHAT = "/v1/chat/completions"


def numbered(number: int) -> bytes:
    return request("POST", CHAT, dialect.chat(user=f"u{number}"))


async def test_a_plain_request_may_come_in_any_pieces(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    body = dialect.chat(user="x" * 70000)
    raw = request("POST", CHAT, body)
    async with await Client.connect(proxy.port) as client:
        for at in range(0, len(raw), 9000):
            await client.send(raw[at : at + 9000])
        assert (await client.response("POST")).status == 200
    assert [bytes(one.body) for one in upstream.requests] == [body]


async def test_requests_sent_ahead_are_answered_in_order(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    async with await Client.connect(proxy.port) as client:
        await client.send(b"".join(map(numbered, range(5))))
        for _ in range(5):
            assert (await client.response("POST")).status == 200
    assert [bytes(one.body) for one in upstream.requests] == [
        dialect.chat(user=f"u{number}") for number in range(5)
    ]


async def test_more_than_may_be_sent_ahead_waits_and_is_answered(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    body = dialect.chat(user="x" * 200_000)
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, body) * 6)
        for _ in range(6):
            assert (await client.response("POST")).status == 200
    assert [bytes(one.body) for one in upstream.requests] == [body] * 6


async def test_plain_and_other_requests_share_a_connection(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    body = dialect.chat()
    odd = head(f"POST {CHAT} HTTP/1.1", [("Host", "h"), ("Transfer-Encoding", "chunked")]) + chunked(body)
    async with await Client.connect(proxy.port) as client:
        await client.send(numbered(1) + odd + numbered(2) + request("GET", "/health"))
        for method in ("POST", "POST", "POST", "GET"):
            assert (await client.response(method)).status == 200
    assert len(upstream.requests) == 3


async def test_an_error_keeps_a_plain_connection_usable(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    async with await Client.connect(proxy.port) as client:
        refused = await client.exchange("POST", CHAT, b"[]")
        assert refused.status == 400
        assert (await client.exchange("POST", CHAT, dialect.chat())).status == 200


async def test_a_client_may_ask_for_the_last_answer(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    async with await Client.connect(proxy.port) as client:
        reply = await client.exchange("POST", CHAT, dialect.chat(), [("Connection", "close")])
        assert reply.status == 200
        assert reply.one("connection") == b"close"
        await client.until_gone()


async def test_a_quiet_connection_is_closed_and_a_busy_one_is_not(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"client_keepalive": 0.2, "request": 0.3, "idle": 1.0})
    async with await Client.connect(proxy.port) as client:
        await client.send(numbered(1)[:-1])  # a body that never ends is no request either
        await client.until_gone()
    async with await Client.connect(proxy.port) as client:
        assert (await client.exchange("POST", CHAT, dialect.chat())).status == 200
        await client.until_gone()
