"""Hiding the usage chunk: nothing else is lost, changed or held."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.usage_stream import MAX_HELD, UsageFilter

ROLE = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"a\\"choices\\":[]"}}]}\n\n'
LAST = (
    b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3}}\n\n'
)
USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3}}\n\n'
SPACED = b'data: {"id": "1", "choices": [ ], "usage": {"prompt_tokens": 3}}\r\n\r\n'
EMPTY = b'data: {"id":"1","choices":[],"prompt_filter_results":[]}\n\n'
NAMED = b"event: message\nid: 7\n" + USAGE
NULL = b'data: {"id":"1","choices":[],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"
EVENTS = (ROLE, LAST, EMPTY, NULL, COMMENT, b"event: x\ndata: {}\n\n", b"\n\n", b"data:\r\r", DONE)


def run(stream: bytes, cuts: list[int]) -> bytes:
    usage_filter, out = UsageFilter(), b""
    edges = sorted({0, len(stream), *cuts})
    for start, end in pairwise(edges):
        out += usage_filter.feed(stream[start:end])
    return out + usage_filter.release()


@given(st.lists(st.sampled_from((*EVENTS, USAGE, SPACED, NAMED)), max_size=8), st.data())
def test_S07_only_usage_chunks_are_hidden_however_the_stream_is_cut(events, data):
    stream = b"".join(events)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    assert run(stream, cuts) == b"".join(event for event in events if event not in (USAGE, SPACED, NAMED))


def test_S07_cut_at_every_byte():
    stream = ROLE + LAST + USAGE + DONE
    for cut in range(len(stream) + 1):
        assert run(stream, [cut]) == ROLE + LAST + DONE
    assert run(stream, list(range(len(stream)))) == ROLE + LAST + DONE


@given(st.binary(max_size=200), st.data())
def test_what_is_no_stream_of_events_passes(noise, data):
    cuts = data.draw(st.lists(st.integers(0, len(noise)), max_size=6))
    assert run(noise, cuts) == noise


def test_S02_a_byte_passes_as_soon_as_the_event_cannot_be_the_usage_chunk():
    usage_filter = UsageFilter()
    sent = b""
    for at in range(len(ROLE)):
        sent += usage_filter.feed(ROLE[at : at + 1])
        if at > ROLE.index(b"[{") + 1:
            assert sent == ROLE[: at + 1]
            assert not usage_filter.holding


def test_a_held_start_can_be_released_until_a_finish_reason_was_seen():
    usage_filter = UsageFilter()
    assert usage_filter.feed(b'data: {"id":"1",') == b""
    assert usage_filter.holding
    assert usage_filter.release() == b'data: {"id":"1",'
    assert usage_filter.feed(b'"choices":[{"delta":{}}]}\n\n' + USAGE) == b'"choices":[{"delta":{}}]}\n\n'
    usage_filter.feed(LAST)
    usage_filter.feed(USAGE[:9])
    assert not usage_filter.holding


def test_what_never_ends_is_not_held_for_ever():
    usage_filter = UsageFilter()
    usage_filter.feed(LAST)
    endless = b'data: {"id":"' + b"x" * (MAX_HELD + 1)
    assert usage_filter.feed(endless) == endless
