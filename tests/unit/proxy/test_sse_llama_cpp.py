"""What llama.cpp's server sends, as captured from build 10434, cut to what matters here."""

import pytest

from proxy.sse import Tap, Usage

TIMINGS = b'"timings":{"cache_n":19,"prompt_n":1,"prompt_ms":339.473,"predicted_n":3,"predicted_ms":72.205}'
CHUNK = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{%b}}]%b}\n\n'
DONE = b"data: [DONE]\n\n"


def read(stream: bytes, *, is_stream: bool = True) -> Tap:
    tap = Tap(stream=is_stream)
    for now, line in enumerate(stream.splitlines(keepends=True)):
        tap.feed(line, float(now))
    tap.finish()
    return tap


def test_a_stream_that_was_not_asked_for_usage_tells_cached_tokens_all_the_same():
    tap = read(
        CHUNK % (b'"role":"assistant","content":null', b"")
        + CHUNK % (b'"content":"REN"', b"")
        + CHUNK % (b"", b"," + TIMINGS)
        + DONE
    )
    assert tap.usage == Usage(20, 19, 3)
    assert tap.text() == "REN"


def test_what_usage_says_counts_where_it_was_asked_for():
    usage = b'"usage":{"completion_tokens":3,"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":18}}'
    tap = read(CHUNK % (b'"content":"a"', b"") + CHUNK % (b"", b"," + usage + b"," + TIMINGS) + DONE)
    assert tap.usage == Usage(20, 18, 3)


def test_progress_is_no_token_and_its_timings_are_not_the_last():
    progress = (
        b',"timings":{"cache_n":0,"prompt_n":0,"predicted_n":0},"prompt_progress":{"total":20,"cache":0}'
    )
    tap = Tap(stream=True)
    assert not tap.feed(CHUNK % (b'"role":"assistant","content":null', progress), 1.0)
    assert tap.feed(CHUNK % (b'"content":"a"', b""), 2.0)
    tap.feed(CHUNK % (b"", b"," + TIMINGS) + DONE, 3.0)
    tap.finish()
    assert tap.usage == Usage(20, 19, 3)
    assert tap.first == 2.0


@pytest.mark.parametrize("bad", [b'{"cache_n":"x","prompt_n":1}', b'{"cache_n":1}', b"7", b"null"])
def test_timings_that_are_none_are_unknown(bad):
    tap = read(b'{"choices":[{"index":0,"text":"x"}],"timings":%b}' % bad, is_stream=False)
    assert tap.usage == Usage()


def test_an_answer_in_one_piece_tells_in_both_ways():
    whole = (
        b'{"choices":[{"text":"ab","index":0,"finish_reason":"length"}],"usage":{"completion_tokens":3,'
        b'"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":19}},' + TIMINGS + b"}"
    )
    assert read(whole, is_stream=False).usage == Usage(20, 19, 3)
