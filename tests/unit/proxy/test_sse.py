"""The tap: first token, usage, text and errors, from the shapes that engines really send."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.sse import Tap, Usage

CHAT = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"\xe4\xbd\xa0"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":" b"},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b"data: [DONE]\n\n"
)


def read(stream: bytes, cuts: list[int] | None = None) -> Tap:
    tap = Tap(stream=True)
    edges = sorted({0, len(stream), *(cuts or [])})
    for now, (start, end) in enumerate(pairwise(edges)):
        tap.feed(stream[start:end], float(now))
    tap.finish()
    return tap


@given(st.lists(st.integers(0, len(CHAT)), max_size=20))
def test_a_stream_reads_the_same_however_it_is_cut(cuts):
    tap = read(CHAT, cuts)
    assert tap.usage == Usage(10, 4, 2)
    assert tap.text() == "你 b"
    assert tap.events == 3
    assert tap.first is not None
    assert not tap.error


def test_line_ends_of_any_kind_are_understood():
    for ending in (b"\r\n", b"\n"):
        assert read(CHAT.replace(b"\n", ending)).usage == Usage(10, 4, 2)
    assert read(CHAT.replace(b"data: ", b"data:")).usage == Usage(10, 4, 2)


def test_S04_comments_and_progress_are_no_first_token():
    tap = Tap(stream=True)
    assert not tap.feed(b": ping\n\n", 1.0)
    assert not tap.feed(b":\n\nevent: x\nid: 7\n\n", 2.0)
    assert not tap.feed(b'data: {"choices":[{"delta":{}}],"prompt_progress":{"total":9}}\n\n', 3.0)
    assert tap.feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', 4.0)
    assert tap.first == 4.0


@pytest.mark.parametrize(
    ("event", "usage"),
    [
        (
            {"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": None}},
            Usage(9, tells_cached=False),
        ),
        ({"choices": [], "usage": {"prompt_tokens": 9}}, Usage(9)),
        (
            {
                "type": "response.completed",
                "response": {
                    "usage": {
                        "input_tokens": 9,
                        "input_tokens_details": {"cached_tokens": 3},
                        "output_tokens": 2,
                    }
                },
            },
            Usage(9, 3, 2),
        ),
        (
            {
                "type": "message_delta",
                "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 2},
            },
            Usage(9, 4, 2),
        ),
        (
            {"text": "x", "meta_info": {"prompt_tokens": 9, "cached_tokens": 3, "completion_tokens": 2}},
            Usage(9, 3, 2),
        ),
        ({"choices": "odd", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}, Usage(9, None, 2)),
    ],
)
def test_usage_of_each_endpoint(event, usage):
    assert read(f"data: {json.dumps(event)}\n\n".encode()).usage == usage


def test_an_error_in_a_stream_is_noticed():
    assert read(b'data: {"error":{"message":"no","code":400}}\n\ndata: [DONE]\n\n').error


@given(st.binary(max_size=300))
def test_nothing_that_comes_raises(noise):
    read(noise)
    read(b"data: " + noise + b"\n\n")
    tap = Tap(stream=False)
    tap.feed(noise, 0.0)
    tap.finish()


def test_an_answer_in_one_piece():
    tap = Tap(stream=False)
    tap.feed(b'{"choices":[{"index":0,"message":{"content":"hi","tool_calls":[]}}],"usage":{"prompt', 1.0)
    tap.feed(b'_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}}', 2.0)
    tap.finish()
    assert tap.usage == Usage(7, 0, 1)
    assert tap.text() == "hi"
    assert tap.first is None


def test_text_is_unknown_where_more_than_content_was_generated():
    assert read(b'data: {"choices":[{"delta":{"content":"a","reasoning":"b"}}]}\n\n').text() is None
    assert read(b'data: {"choices":[{"delta":{"tool_calls":[{"id":"x"}]}}]}\n\n').text() is None


def test_memory_is_bounded_however_long_the_answer():
    tap = Tap(stream=True)
    event = b'data: {"choices":[{"delta":{"content":"' + b"x" * 1000 + b'"}}]}\n\n'
    for _ in range(2000):
        tap.feed(event, 0.0)
    assert sum(map(len, tap._buffer)) < 64 * 1024
    tap.finish()
    assert tap.text() is None
    assert tap.events == 2000
