"""What is taken for a plain request, a general parser reads as the same one; what is odd is left to it."""

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.request_head import plain_head

LINE = b"POST /v1/completions HTTP/1.1"
SPECIAL = ["Host", "content-length", "Connection", "Transfer-Encoding", "Expect", "Upgrade", "X-A"]
VALUES = ["", "h", "3", "03", "+3", "3, 3", "close", "keep-alive", "Keep-Alive, X-A", "chunked"]
names = st.sampled_from(SPECIAL) | st.text("abcXYZ019-_!: \t\x00é", min_size=0, max_size=6)
values = st.sampled_from(VALUES) | st.text("ab 19,;\t\r\n\x00\x7fé", max_size=8)
separators = st.sampled_from([": ", ":", ":  ", " : ", ":\t"])
ends = st.sampled_from(["\r\n"] * 8 + ["\n", " \r\n", "\r\r\n"])
lines = st.lists(st.tuples(names, separators, values, ends), max_size=6)
bodies = st.binary(max_size=12)


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def generally(loop: asyncio.AbstractEventLoop, data: bytes):
    protocol = Mock(_reading_paused=False)
    parser = HttpRequestParser(protocol, loop, 2**16, auto_decompress=False)
    messages, upgraded, _ = parser.feed_data(data)
    assert not upgraded
    return messages


def without_length(field: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    return (field[0], b"0") if field[0].lower() == b"content-length" else field


@settings(max_examples=400, deadline=None)
@given(given_lines=lines, body=bodies, framed=st.booleans())
def test_a_plain_head_is_what_a_general_parser_reads(loop, given_lines, body, framed):
    fields = "".join(f"{name}{mark}{value}{end}" for name, mark, value, end in given_lines)
    usual = "Host: h\r\nContent-Length: 3\r\n" if framed else ""
    data = LINE + b"\r\n" + (usual + fields).encode("latin-1") + b"\r\n" + body
    head = plain_head(data, {LINE}, 65536, 1000)
    if head is None:
        return
    try:
        ((message, payload),) = generally(loop, data[: head.size + head.length])[:1]
    except HttpProcessingError as error:
        raise AssertionError(f"aiohttp refuses what was taken for plain: {error}") from error
    assert [without_length(field) for field in message.raw_headers] == head.fields.sent
    assert not message.chunked
    assert not message.upgrade
    assert message.should_close is not head.fields.keep_alive
    sent = data[head.size : head.size + head.length]
    if len(sent) == head.length:
        assert payload.is_eof()
        assert payload.read_nowait() == sent


PLAIN = LINE + b"\r\nHost: h\r\nContent-Length: 2\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN,  # not all there
        LINE + b"\r\n\r\n",
        b"GET /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v1/completions?x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}",
        LINE + b"\r\nContent-Length: 2\r\n\r\n{}",
        LINE + b"\r\nHost: h\r\n\r\n",
        PLAIN + b"Host: h\r\n\r\n{}",
        PLAIN + b"content-length: 2\r\n\r\n{}",
        PLAIN + b"Transfer-Encoding: chunked\r\n\r\n{}",
        PLAIN + b"Expect: 100-continue\r\n\r\n{}",
        PLAIN + b"Upgrade: h2c\r\n\r\n{}",
        PLAIN + b"Connection: X-A\r\n\r\n{}",
        PLAIN + b"X-A: 1\r\n folded\r\n\r\n{}",
        PLAIN + b"X A: 1\r\n\r\n{}",
        PLAIN + b"X-A: 1\n\r\n\r\n{}",
        LINE + b"\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        LINE + b"\r\nHost: h\r\nContent-Length: 1001\r\n\r\n",
    ],
)
def test_what_is_unusual_is_not_plain(data):
    assert plain_head(data, {LINE}, 65536, 1000) is None


def test_a_head_over_the_limit_is_not_plain():
    data = PLAIN + b"X-A: " + b"a" * 100 + b"\r\n\r\n{}"
    assert plain_head(data, {LINE}, 64, 1000) is None
    assert plain_head(data, {LINE}, len(data), 1000) is not None


def test_a_plain_head_says_where_the_body_is():
    head = plain_head(PLAIN + b"Connection: close\r\n\r\n{}rest", {LINE}, 65536, 1000)
    assert head is not None
    assert (head.line, head.length, head.fields.keep_alive) == (LINE, 2, False)
    assert head.fields.sent == [(b"Host", b"h"), (b"Content-Length", b"0"), (b"Connection", b"close")]
    assert head.size == len(PLAIN + b"Connection: close\r\n\r\n")


def test_heads_that_differ_in_their_length_only_share_their_fields():
    one, other = (
        plain_head(LINE + b"\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % n, {LINE}, 65536, 1000)
        for n in (2, 99)
    )
    assert one is not None
    assert other is not None
    assert one.fields is other.fields
    assert (one.length, other.length) == (2, 99)
