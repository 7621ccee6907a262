"""Heads and chunk framing: what is ambiguous is refused, what is cut anywhere is put together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.http1 import ChunkedBody, Malformed, parse_response_head, response_head
from proxy.request_head import forwardable, lines, request_head


def test_a_head_keeps_order_and_multiplicity_and_loses_what_is_per_hop():
    head = parse_response_head(
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-R: 1\r\nConnection: X-R, close\r\nset-cookie: b=2\r\n"
        b"Keep-Alive: timeout=5\r\nContent-Length: 3"
    )
    assert [(name, value) for _, name, value in head.fields] == [
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]
    assert (head.status, head.reason, head.length, head.chunked, head.keep_alive) == (
        200,
        b"OK",
        3,
        False,
        False,
    )


@pytest.mark.parametrize(
    "lines",
    [
        b"HTTP/1.1 20 OK",
        b"HTTP/2 200 OK",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nName : value",
        b"HTTP/1.1 200 OK\r\n folded: value",
        b"HTTP/1.1 200 OK\r\nbare\nnewline: value",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nX: a\x00b",
        b"",
    ],
)
def test_an_ambiguous_head_is_malformed(lines: bytes):
    with pytest.raises(Malformed):
        parse_response_head(lines)


@pytest.mark.parametrize(
    ("version", "connection", "reusable"),
    [(b"1.1", b"", True), (b"1.1", b"close", False), (b"1.0", b"", False), (b"1.0", b"keep-alive", True)],
)
def test_when_a_connection_may_be_used_again(version: bytes, connection: bytes, reusable: bool):
    line = b"\r\nConnection: " + connection if connection else b""
    assert parse_response_head(b"HTTP/" + version + b" 200 OK" + line).keep_alive is reusable


def test_request_fields_lose_what_is_per_hop_or_addressed_to_the_proxy():
    fields = [
        (b"Host", b"proxy"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"TE", b"trailers"),
        (b"Proxy-Authorization", b"b"),
        (b"Keep-Alive", b"5"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"Content-Length", b"9"),
        (b"X-Warmroute-Group", b"shared"),
        (b"Cookie", b"a"),
        (b"cookie", b"b"),
        (b"Authorization", b"Bearer u"),
    ]
    kept, noted = forwardable(fields)
    assert kept == [(b"Cookie", b"a"), (b"cookie", b"b"), (b"Authorization", b"Bearer u")]
    assert noted == {
        b"expect": b"100-continue",
        b"x-warmroute-group": b"shared",
        b"authorization": b"Bearer u",
    }
    assert forwardable(fields, frozenset((b"authorization",)))[0] == [(b"Cookie", b"a"), (b"cookie", b"b")]


def test_a_request_head_has_one_framing_field():
    assert request_head(b"POST", b"/v1/x?a=b", b"h:1", lines([(b"A", b"b")]), 3) == (
        b"POST /v1/x?a=b HTTP/1.1\r\nHost: h:1\r\nA: b\r\nContent-Length: 3\r\n\r\n"
    )
    assert request_head(b"GET", b"/", b"h", b"", None) == b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(chunks, st.sampled_from([b"", b";ext=1", b" ;a=b"]), st.sampled_from([b"", b"T: 1\r\n"]), st.data())
def test_a_chunked_body_is_read_however_it_is_cut(pieces, extension, trailer, data):
    wire = b"".join(b"%x%b\r\n%b\r\n" % (len(p), extension, p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"
    after = data.draw(st.binary(max_size=8))
    stream = wire + after
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    body, payload = ChunkedBody(), b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if body.done:
            break
        part = stream[start:end]
        payload += (got := body.feed(part))
        assert not body.whole or part == b"%x\r\n%b\r\n" % (len(got), got)
        assert not body.excess or (body.done and end > len(wire))
    assert body.done
    assert payload == b"".join(pieces)


@pytest.mark.parametrize(
    "wire",
    [
        b"+5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello!",
        b"\r\n",
        b"5\nhello\r\n",
        b"zz\r\n",
        b"f" * 5000,
        b"0\r\n" + b"A: b\r\n" * 4000,
    ],
)
def test_bad_chunk_framing_is_malformed(wire: bytes):
    with pytest.raises(Malformed):
        ChunkedBody().feed(wire)
    with pytest.raises(Malformed):
        byte_by_byte(wire)


def byte_by_byte(wire: bytes) -> None:
    body = ChunkedBody()
    for byte in wire:
        body.feed(bytes((byte,)))


def test_heads_that_differ_in_their_length_only_are_read_once():
    first, second = (response_head(b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: %d" % n) for n in (7, 1234))
    assert first[0] is second[0]
    assert (first[1], second[1]) == (7, 1234)
    assert first[0].lines == b"HTTP/1.1 200 OK\r\nA: b\r\n"


def test_a_length_that_comes_twice_is_one_length_or_malformed():
    twice = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nCONTENT-LENGTH: %d"
    assert response_head(twice % (5, 5))[1] == 5
    with pytest.raises(Malformed):
        response_head(twice % (5, 6))
    with pytest.raises(Malformed):
        response_head(twice % (5, 0))


def test_what_the_proxy_writes_itself_is_not_taken_from_a_replica():
    head, length = response_head(b"HTTP/1.1 200 OK\r\nX-Request-Id: a\r\nx-warmroute-arm: b\r\nC: d")
    assert length is None
    assert head.lines == b"HTTP/1.1 200 OK\r\nC: d\r\n"
