"""Whatever a replica answers, in whatever cuts, the client gets exactly that or is visibly cut off."""

import string
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import dialect
from tests.support.hop import Hop, cuts_of, hopping
from tests.support.http import Response, chunked, head, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
few = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CHAT = "/v1/chat/completions"
CHUNKED = ("Transfer-Encoding", "chunked")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hop() -> AsyncIterator[Hop]:
    async with hopping(stream_usage="never") as hop:
        yield hop


async def relayed(hop: Hop, *cuts: bytes, method="POST", version="1.1", finish=False) -> Response:
    """What a client gets when the replica writes these cuts and then, if told so, FIN."""
    hop.answers(cuts, finish=finish)
    path, body = (CHAT, dialect.chat(stream=True)) if method == "POST" else ("/v1/files/7", None)
    return await hop.send([request(method, path, body, version=version)], method)


places = st.lists(st.integers(0, 1 << 16), max_size=8)
pieces = [
    b"data: ",
    b"\n",
    b"\r\n",
    b"\n\n",
    b"\r",
    b": x",
    b"\xf0\x9f\x99\x82",
    b"[DONE]",
    b'{"choices":[]}',
]
payloads = st.binary(max_size=3000) | st.lists(st.sampled_from([*pieces, b"0\r\n\r\n"])).map(b"".join)
versions = st.sampled_from(["1.1", "1.0"])
kinds = st.sampled_from(["text/event-stream", "application/json", "application/octet-stream", None])
names = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=12).map(
    lambda name: "X-" + name
)
values = st.text([chr(code) for code in range(0x21, 0x7F)] + ["\xe9", "\xff"], min_size=1, max_size=20)
fields = st.lists(st.tuples(names, values), max_size=5)


def typed(kind: str | None) -> list[tuple[str, str]]:
    return [] if kind is None else [("Content-Type", kind)]


def ours(response) -> list[tuple[bytes, bytes]]:
    """The headers that the proxy did not add."""
    added = (b"x-warmroute-", b"x-request-id", b"content-length", b"transfer-encoding", b"connection")
    return [(name, value) for name, value in response.headers if not name.lower().startswith(added)]


@few
@given(payloads, places, kinds, fields)
async def test_relay_of_an_answer_with_a_length(hop, payload, at, kind, extra):
    start = head("HTTP/1.1 200 OK", [*typed(kind), *extra, ("Content-Length", len(payload))])
    response = await relayed(hop, *cuts_of(start + payload, at))
    assert (response.status, response.complete) == (200, True)
    assert response.body == payload
    assert response.one("content-length") == str(len(payload)).encode()
    assert ours(response) == [
        (name.encode(), value.encode("latin-1")) for name, value in [*typed(kind), *extra]
    ]


chunk_lines = st.sampled_from(
    [b"%x", b"%X", b"000%x", b"%x;a", b'%x;a="b;c"', b"%x  ", b"%x ;a", b'%x\t; a = "b"', b"%x;" + b"e" * 300]
)
trailers = st.sampled_from([b"", b"X-T: 1\r\n", b"X-T: 1\r\nX-U:\r\n"])


@st.composite
def chunked_bodies(draw) -> tuple[bytes, bytes]:
    """(payload, wire)."""
    chunks = draw(st.lists(st.binary(min_size=1, max_size=400), max_size=8))
    wire = b"".join(b"%b\r\n%b\r\n" % (draw(chunk_lines) % len(chunk), chunk) for chunk in chunks)
    return b"".join(chunks), wire + draw(chunk_lines) % 0 + b"\r\n" + draw(trailers) + b"\r\n"


@few
@given(chunked_bodies(), places, kinds, versions)
async def test_relay_of_a_chunked_answer(hop, body, at, kind, version):
    payload, wire = body
    raw = head("HTTP/1.1 200 OK", [*typed(kind), CHUNKED]) + wire
    response = await relayed(hop, *cuts_of(raw, at), version=version)
    assert (response.status, response.complete) == (200, True)
    assert response.body == payload
    if version == "1.0":
        assert not response.all("transfer-encoding")


@few
@given(payloads, places, kinds, st.tuples(versions, versions))
async def test_relay_of_an_answer_that_ends_with_the_connection(hop, payload, at, kind, spoken):
    spoken, version = spoken
    raw = head(f"HTTP/{spoken} 200 OK", [*typed(kind), ("Connection", "close")]) + payload
    response = await relayed(hop, *cuts_of(raw, at), version=version, finish=True)
    assert (response.status, response.complete) == (200, True)
    assert response.body == payload


@few
@given(
    places, st.sampled_from(["204 No Content", "304 Not Modified"]), st.sampled_from(["POST", "GET", "HEAD"])
)
async def test_relay_of_an_answer_without_a_body(hop, at, status, method):
    raw = head(f"HTTP/1.1 {status}", [("ETag", '"x"')])
    response = await relayed(hop, *cuts_of(raw, at), method=method)
    assert (response.status, response.complete) == (int(status[:3]), True)
    assert response.one("etag") == b'"x"'
    assert not response.body
    assert not response.closes


@few
@given(places, st.sampled_from([("Content-Length", 1234), CHUNKED, ("Content-Length", 0)]))
async def test_relay_of_the_answer_to_a_head_request(hop, at, framing):
    raw = head("HTTP/1.1 200 OK", [("Content-Type", "text/plain"), framing])
    response = await relayed(hop, *cuts_of(raw, at), method="HEAD")
    assert (response.status, response.complete) == (200, True)
    assert not response.body
    if framing[0] == "Content-Length":
        assert response.one("content-length") == str(framing[1]).encode()


@few
@given(st.lists(st.sampled_from([100, 102, 103]), min_size=1, max_size=4), payloads, places)
async def test_relay_takes_no_interim_answer_for_the_final_one(hop, interim, payload, at):
    heads = [head(f"HTTP/1.1 {status} Wait", [("Link", "</x>")]) for status in interim]
    raw = b"".join(heads) + head("HTTP/1.1 201 Made", [("Content-Length", len(payload))]) + payload
    response = await relayed(hop, *cuts_of(raw, at))
    assert (response.status, response.complete) == (201, True)
    assert response.body == payload
    assert set(response.interim) <= set(interim)


@few
@given(payloads.filter(bool), places, st.integers(1, 50))
async def test_relay_of_more_than_was_promised_sends_what_was_promised(hop, payload, at, promised):
    promised = min(promised, len(payload))
    raw = head("HTTP/1.1 200 OK", [("Content-Length", promised)]) + payload
    response = await relayed(hop, *cuts_of(raw, at))
    assert response.complete
    assert response.body == payload[:promised]
    after = await relayed(hop, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    assert after.body == b"ok"


@few
@given(payloads, places, st.integers(1, 5000), kinds)
async def test_relay_of_less_than_was_promised_cuts_the_client(hop, payload, at, missing, kind):
    raw = head("HTTP/1.1 200 OK", [*typed(kind), ("Content-Length", len(payload) + missing)]) + payload
    response = await relayed(hop, *cuts_of(raw, at), finish=True)
    assert not response.complete or response.status == 502
    if response.status == 200:
        assert payload.startswith(bytes(response.body))


@few
@given(chunked_bodies(), places, st.integers(1, 1 << 16), versions)
async def test_relay_of_an_unfinished_chunked_answer_cuts_the_client(hop, body, at, left, version):
    payload, wire = body
    raw = (
        head("HTTP/1.1 200 OK", [("Content-Type", "text/event-stream"), CHUNKED])
        + wire[: -(left % len(wire) or 1)]
    )
    response = await relayed(hop, *cuts_of(raw, at), version=version, finish=True)
    if version == "1.0":  # only a reset tells such a client that the answer is not whole
        assert hop.client is None
    else:
        assert not response.complete or response.status == 502
    if response.status == 200:
        assert payload.startswith(bytes(response.body))


@few
@given(st.binary(min_size=1, max_size=300), places)
async def test_relay_of_garbage_is_a_502_or_a_cut(hop, garbage, at):
    raw = garbage + b"\r\n\r\n"
    response = await relayed(hop, *cuts_of(raw, at), finish=True)
    assert response.status == 502
    assert response.error["code"] == "upstream_failed"


@few
@given(st.binary(min_size=1, max_size=40), places)
async def test_relay_of_a_broken_chunk_size_cuts_the_client(hop, garbage, at):
    size = b"g" + garbage.replace(b"\r", b"").replace(b"\n", b"")
    raw = head("HTTP/1.1 200 OK", [CHUNKED]) + chunked(b"abc", end=size + b"\r\nxyz\r\n")
    response = await relayed(hop, *cuts_of(raw, at), finish=True)
    assert not response.complete or response.status == 502
    if response.status == 200:
        assert b"abc".startswith(bytes(response.body))
