"""S07: usage is learned from streams whose client did not ask for it, and nobody can tell."""

import asyncio
import gzip
import json

import pytest

from proxy.app import Proxy
from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.fixtures import counts, total
from tests.support.http import request
from tests.support.upstream import Exchange, Upstream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
VISIBLE = [dialect.delta(""), dialect.delta("é"), dialect.delta("", finish_reason="stop")]


@pytest.fixture
async def proxy(upstream, proxy_factory) -> Proxy:
    """A proxy that has seen its replica report cached tokens (16 of 32, once)."""
    proxy = await proxy_factory(upstream)
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    await counts(proxy, "warmroute_cached_tokens_total", 16)
    return proxy


def engine(*visible: bytes, usage: bytes | None = None, end: bytes = dialect.DONE):
    """A behaviour that sends usage as an engine does: if the request asks for it."""
    usage = usage or dialect.usage_event(prompt=64, cached=48)

    async def behave(exchange: Exchange) -> None:
        asked = (json.loads(exchange.request.body).get("stream_options") or {}).get("include_usage")
        await exchange.stream(*visible, *([usage] if asked else []), end)

    return behave


def body_for(path: str, **fields) -> bytes:
    return dialect.routes(**fields)[path]


@BOTH
async def test_S07_a_the_usage_of_a_stream_that_did_not_ask_is_learned_and_hidden(upstream, proxy, path):
    upstream.behaviour = engine(*VISIBLE)
    sent = body_for(path, stream=True)
    response = await exchange(proxy.port, "POST", path, sent)
    assert response.complete
    assert response.body == b"".join(VISIBLE) + dialect.DONE
    await counts(proxy, "warmroute_cached_tokens_total", 16 + 48)
    got = bytes(upstream.last.body)
    assert json.loads(got) == {**json.loads(sent), "stream_options": {"include_usage": True}}
    added = len(got) - len(sent)  # spliced in: without some run of that length, the body is the client's
    assert any(got[:at] + got[at + added :] == sent for at in range(len(sent) + 1))


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        '{"include_usage":false}',
        "null",
        "{}",
        '{"continuous_usage_stats":true}',
        '{"x":"include_usage"}',
        "7",
    ],
)
async def test_S07_b_stream_options_of_the_clients_own_are_left_alone(upstream, proxy, path, options):
    async def behave(exchange: Exchange) -> None:
        await exchange.stream(*VISIBLE, dialect.DONE)

    upstream.behaviour = behave
    sent = body_for(path, stream=True)[:-1] + b', "stream_options":' + options.encode() + b"}"
    response = await exchange(proxy.port, "POST", path, sent)
    assert response.body == b"".join(VISIBLE) + dialect.DONE
    assert upstream.last.body == sent


@BOTH
async def test_S07_c_a_client_that_asks_sees_exactly_one_usage_event(upstream, proxy, path):
    usage = dialect.usage_event(prompt=64, cached=48)
    upstream.behaviour = engine(*VISIBLE, usage=usage)
    sent = body_for(path, stream=True, stream_options={"include_usage": True})
    response = await exchange(proxy.port, "POST", path, sent)
    assert response.body == b"".join(VISIBLE) + usage + dialect.DONE
    assert upstream.last.body == sent
    await counts(proxy, "warmroute_cached_tokens_total", 16 + 48)


@BOTH
@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
async def test_S07_d_a_request_that_does_not_stream_is_left_alone(upstream, proxy, path, stream):
    sent = body_for(path, **stream)
    await exchange(proxy.port, "POST", path, sent)
    assert upstream.last.body == sent


@pytest.mark.parametrize("stream", [True, False])
async def test_S07_e_usage_without_details_is_unknown_not_zero(upstream, proxy_factory, stream):
    proxy = await proxy_factory(upstream)

    async def behave(exchange: Exchange) -> None:
        if stream:
            await exchange.stream(*VISIBLE, dialect.usage_event(prompt=64, cached=None), dialect.DONE)
        else:
            usage = json.loads(dialect.usage_event(prompt=64, cached=None)[6:])["usage"]
            await exchange.json({"choices": [{"index": 0, "message": {"content": "x"}}], "usage": usage})

    upstream.behaviour = behave
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(**options))
    assert response.status == 200
    await counts(proxy, "warmroute_requests_total", 1)
    assert await total(proxy, "warmroute_cached_prompt_tokens_total") == 0
    assert await total(proxy, "warmroute_cached_tokens_total") == 0
    sent = dialect.chat(stream=True)
    for _ in range(30):  # an engine that does not report cached tokens is not asked to for ever
        await exchange(proxy.port, "POST", CHAT, sent)
    assert upstream.last.body == sent


@BOTH
async def test_S07_usage_stays_hidden_wherever_it_is_cut(upstream, proxy, path):
    usage = dialect.usage_event(prompt=64, cached=48)
    tail = usage + dialect.DONE
    expected = VISIBLE[2] + dialect.DONE
    for at in range(1, len(tail)):
        upstream.behaviour = dialect.stream_of(VISIBLE[2], tail[:at], tail[at:])
        response = await exchange(proxy.port, "POST", path, body_for(path, stream=True))
        assert response.complete
        assert response.body == expected, f"cut after {tail[:at]!r}"
    await counts(proxy, "warmroute_cached_tokens_total", 16 + 48 * (len(tail) - 1))


async def test_S07_a_slow_replica_does_not_show_what_it_holds_back(upstream, proxy):
    finish, usage = VISIBLE[2], dialect.usage_event()
    at = finish.index(b'"finish_reason"') + 5

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(*VISIBLE[:2], finish[:at], finish[at:], usage[:30])
        await asyncio.sleep(0.2)  # the stimulus: the rest of the event is late
        await exchange.event(usage[30:], dialect.DONE)
        await exchange.end_stream()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert response.body == b"".join(VISIBLE) + dialect.DONE


async def test_S07_a_token_is_not_held_back_for_long(upstream, proxy):
    token = VISIBLE[1]
    seen = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(token[:10])
        await asyncio.wait_for(seen.wait(), 10)
        await exchange.event(token[10:], dialect.DONE)
        await exchange.end_stream()

    upstream.behaviour = behave
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        await client.until(token[:10])
        seen.set()
        assert (await client.response()).body == token + dialect.DONE


FORMS = {
    "one-read": b"".join([*VISIBLE, dialect.usage_event(), dialect.DONE]),
    "crlf": b"".join([*VISIBLE, dialect.usage_event(), dialect.DONE]).replace(b"\n", b"\r\n"),
    "no-space": b"".join([*VISIBLE, dialect.usage_event().replace(b"data: ", b"data:"), dialect.DONE]),
    "spaced": b"".join(
        [*VISIBLE, b'data:  { "choices" : [ ] , "usage" : {"prompt_tokens":9} }\n\n', dialect.DONE]
    ),
    "after-done": b"".join([*VISIBLE, dialect.DONE, dialect.usage_event()]),
    "no-done": b"".join([*VISIBLE, dialect.usage_event()]),
    "no-text": VISIBLE[2] + dialect.usage_event() + dialect.DONE,
}


@pytest.mark.parametrize("cut", ["whole", "bytes"])
@pytest.mark.parametrize("form", FORMS)
async def test_S07_usage_is_hidden_in_every_form_that_engines_send_it(upstream, proxy, form, cut):
    sent = FORMS[form]
    upstream.behaviour = dialect.stream_of(*([sent] if cut == "whole" else [bytes([byte]) for byte in sent]))
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert response.complete
    assert b"usage" not in response.body
    newline = b"\r\n" if form == "crlf" else b"\n"
    separator = newline * 2
    kept = [part for part in sent.split(separator) if b"usage" not in part]
    assert response.body == separator.join(kept)


SEEN = {
    "usage-on-the-finish-event": dialect.delta("x", usage={"prompt_tokens": 9, "completion_tokens": 1}),
    "continuous-usage": dialect.delta("x", usage={"prompt_tokens": 9, "completion_tokens": 0}) * 3,
    "null-usage": dialect.delta("x", usage=None),
    "empty-choices-without-usage": dialect.event({"choices": [], "prompt_filter_results": [{"index": 0}]}),
    "no-choices": dialect.event({"usage": {"prompt_tokens": 9}}),
    "null-choices": dialect.event({"choices": None, "usage": {"prompt_tokens": 9}}),
    "error": dialect.event({"error": {"message": '"choices":[] "usage":{}'}}),
    "text-like-usage": dialect.delta('{"choices":[],"usage":{}}'),
    "nested-choices": dialect.event({"x": {"choices": [], "usage": {"a": 1}}, "choices": [{"index": 0}]}),
    "comment-like-usage": b': {"choices":[],"usage":{"prompt_tokens":9}}\n\n',
    "deep": dialect.event({"choices": [], "usage": {}})[:-3]
    + b',"x":'
    + b"[" * 5000
    + b"]" * 5000
    + b"}\n\n",
    "broken-json": b'data: {"choices":[],"usage":{"prompt_tokens":\n\n',
    "unended-line": b'data: {"choices":[{"index":0,"text":"y"}]}',
    "unended-comment": b": bye",
}


@pytest.mark.parametrize("cut", ["whole", "bytes"])
@pytest.mark.parametrize("form", SEEN)
async def test_S07_whatever_is_not_the_extra_event_passes(upstream, proxy, form, cut):
    sent = VISIBLE[0] + SEEN[form]
    upstream.behaviour = dialect.stream_of(*([sent] if cut == "whole" else [bytes([byte]) for byte in sent]))
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert response.complete
    assert response.body == sent


async def test_S07_an_encoded_stream_passes_untouched(upstream, proxy):
    packed = gzip.compress(b"".join([*VISIBLE, dialect.usage_event(), dialect.DONE]))

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream(("Content-Encoding", "gzip"))
        await exchange.event(packed[:20], packed[20:])
        await exchange.end_stream()

    upstream.behaviour = behave
    fields = [("Accept-Encoding", "gzip")]
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True), fields)
    assert response.body == packed


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model":"m","stream":true,"stream":true,"messages":[{"role":"user","content":"a"}]}',
        b'{"model":"m","stream":false,"stream":true,"messages":[{"role":"user","content":"a"}]}',
        b'{"stream":true,"messages":[{"role":"user","content":"a"}],"model":"m","model":"m"}',
        b'{"model":"m","stream":true,"str\\u0065am_options":{},"messages":[{"role":"user","content":"a"}]}',
    ],
)
async def test_S07_a_body_with_duplicate_or_escaped_keys_is_left_alone(upstream, proxy, sent):
    upstream.behaviour = dialect.stream_of(*VISIBLE, dialect.DONE)
    response = await exchange(proxy.port, "POST", CHAT, sent)
    if response.status == 400:  # refused is as good
        assert response.error
        assert len(upstream.requests) == 1
        return
    assert upstream.last.body == sent
    assert response.body == b"".join(VISIBLE) + dialect.DONE


@pytest.mark.parametrize(
    "sent",
    [
        b' \n{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}] } \r\n\t',
        b'{"messages":[{"role":"user","content":"}"}],"model":"m","metadata":{"stream_options":{}},"stream":true}',
        b'{"messages":[{"role":"user","content":"\\"stream_options\\""}],"model":"m","stream":true}',
    ],
)
async def test_S07_what_is_spliced_in_leaves_the_body_valid(upstream, proxy, sent):
    upstream.behaviour = engine(*VISIBLE)
    response = await exchange(proxy.port, "POST", CHAT, sent)
    assert response.body == b"".join(VISIBLE) + dialect.DONE
    got = json.loads(upstream.last.body)
    assert {**got, "stream_options": None} == {**json.loads(sent), "stream_options": None}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/audio/speech"])
async def test_S07_other_routes_are_left_alone(upstream, proxy, path):
    sent = body_for(path, stream=True)
    upstream.behaviour = dialect.stream_of(*VISIBLE, dialect.usage_event(), dialect.DONE)
    response = await exchange(proxy.port, "POST", path, sent)
    assert upstream.last.body == sent
    assert response.body == b"".join([*VISIBLE, dialect.usage_event(), dialect.DONE])


async def test_S07_never_leaves_bodies_alone(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, stream_usage="never")
    await exchange(proxy.port, "POST", CHAT, dialect.chat())
    upstream.behaviour = dialect.stream_of(*VISIBLE, dialect.usage_event(), dialect.DONE)
    response = await exchange(proxy.port, "POST", CHAT, sent := dialect.chat(stream=True))
    assert upstream.last.body == sent
    assert response.body == b"".join([*VISIBLE, dialect.usage_event(), dialect.DONE])


async def test_S07_a_replica_that_closes_to_end_its_stream_hides_usage_as_well(upstream, proxy):
    async def behave(exchange: Exchange) -> None:
        await exchange.head(headers=[("Content-Type", "text/event-stream"), ("Connection", "close")])
        await exchange.send(*VISIBLE, dialect.usage_event()[:20], dialect.usage_event()[20:], dialect.DONE)
        exchange.finish()

    upstream.behaviour = behave
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=True), version="1.0"))
        response = await client.response()
    assert response.complete
    assert response.body == b"".join([*VISIBLE, dialect.DONE])


async def test_S07_a_stream_cut_in_a_held_back_event_is_cut_for_the_client(upstream: Upstream, proxy):
    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(*VISIBLE, dialect.usage_event()[:40])
        exchange.reset()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert not response.complete
    assert bytes(response.body).startswith(b"".join(VISIBLE))
