"""S, streaming relay: bytes pass as they come (S02, S04), errors as they are (S06), framing once (S08)."""

import asyncio
import json
import logging

import pytest

from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import counts, metric, total
from tests.support.http import chunked, head, request
from tests.support.upstream import Exchange, usage

CHAT = "/v1/chat/completions"
CJK = dialect.delta("你🙂é")
TAIL = dialect.usage_event(prompt=64, cached=48)


def asking_for_usage() -> bytes:
    return dialect.chat(stream=True, stream_options={"include_usage": True})


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("framed", ["chunk", "raw"])
async def test_S02_each_byte_passes_before_the_next_is_written(upstream, proxy_factory, newline, framed):
    proxy = await proxy_factory(upstream)
    payload = (CJK + TAIL + dialect.DONE).replace(b"\n", newline)
    seen = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for at in range(len(payload)):
            wire = chunked(payload[at : at + 1], end=b"")
            cuts = [wire] if framed == "chunk" else [bytes([byte]) for byte in wire]
            await exchange.send(*cuts)
            await asyncio.wait_for(seen.wait(), 10)
            seen.clear()
        await exchange.end_stream()

    upstream.behaviour = behave
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, asking_for_usage()))
        for end in range(1, len(payload) + 1):
            assert (await client.until(payload[:end])).body == payload[:end]
            seen.set()
        response = await client.response()
    assert response.complete
    assert response.body == payload
    await counts(proxy, "warmroute_cached_tokens_total", 48)
    await counts(proxy, "warmroute_cached_prompt_tokens_total", 64)


async def test_S02_each_event_passes_whole_before_the_next_though_usage_is_hidden(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    await exchange(proxy.port, "POST", CHAT, dialect.chat())  # shows that the engine reports cached tokens
    events = [CJK, dialect.delta("b"), b": ping\n\n", dialect.delta("🙂"), dialect.DONE]
    seen = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for each in events:
            await exchange.event(*(each[at : at + 1] for at in range(len(each))))
            await asyncio.wait_for(seen.wait(), 10)
            seen.clear()
        await exchange.end_stream()

    upstream.behaviour = behave
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        for count in range(1, len(events) + 1):
            await client.until(b"".join(events[:count]))
            seen.set()
        assert (await client.response()).body == b"".join(events)


@pytest.mark.parametrize("known", [False, True], ids=["as-is", "usage-hidden"])
async def test_S04_comments_and_odd_lines_pass_unchanged(upstream, proxy_factory, known):
    proxy = await proxy_factory(upstream)
    if known:
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
    choice = b'{"choices":[{"index":0,"delta":{"content":"x"}}]}'
    sent = b"".join(
        [
            b": ping\n\n",
            b":\n\n",
            b":\r\n\r\n",
            b"data:" + choice + b"\n\n",
            b"event: delta\nid: 7\nretry: 10\ndata: " + choice + b"\n\n",
            b"data: " + choice + b"\r\n\r\n",
            b"data: " + choice + b"\r\r",
            b"data: not json\n\n",
            b"data\n\n",
            b"unknown: field\n\n",
            b"\n\n\n",
            b'data: {"choices":\ndata: [],\ndata: "x":1}\n\n',
            b"data: [DONE]\n\n",
            b": after the end",
        ]
    )
    upstream.behaviour = dialect.stream_of(sent)
    whole = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert whole.complete
    assert whole.body == sent
    upstream.behaviour = dialect.stream_of(*(sent[at : at + 1] for at in range(len(sent))))
    cut = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert cut.body == sent


async def test_S04_comments_keep_a_silent_stream_alive_and_are_no_first_token(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, timeouts={"idle": 1.0})
    sent = b": ping\n\n" * 8 + dialect.delta("x") + dialect.DONE

    async def behave(exchange: Exchange) -> None:
        await exchange.open_stream()
        for _ in range(8):
            await asyncio.sleep(0.2)  # the stimulus: 1.6 s without a token under an idle limit of 1 s
            await exchange.event(b": ping\n\n")
        await exchange.event(dialect.delta("x"), dialect.DONE)
        await exchange.end_stream()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert response.complete
    assert response.body == sent
    await counts(proxy, "warmroute_ttft_seconds_count", 1)
    assert await total(proxy, "warmroute_ttft_seconds_sum") >= 1.5


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "status",
    [
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "422 Unprocessable Entity",
        "429 Too Many Requests",
        "500 Oh no",
    ],
)
async def test_S06_an_upstream_error_passes_unchanged(upstream, proxy_factory, status, stream):
    proxy = await proxy_factory(upstream)
    sent = b'{ "object":"error", "message" : "n\\u00f6", "code":' + status[:3].encode() + b"}\n"

    async def behave(exchange: Exchange) -> None:
        fields = [("Content-Type", "application/problem+json"), ("Retry-After", "7")]
        await exchange.answer(sent, status, fields)

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream))
    assert response.status == int(status[:3])
    assert response.body == sent
    assert response.one("content-type") == b"application/problem+json"
    assert response.one("retry-after") == b"7"
    await counts(proxy, "warmroute_requests_total", 1, code=status[:3])
    assert list((await metric(proxy, "warmroute_replica_up")).values()) == [1]


async def test_S06_an_error_event_in_a_200_passes_as_it_is(capsys, caplog, upstream, proxy_factory):
    caplog.set_level(logging.INFO, "warmroute")
    proxy = await proxy_factory(upstream, log_format="json")
    events = [dialect.event({"error": {"message": "out of memory", "code": 500}}), dialect.DONE]
    upstream.behaviour = dialect.stream_of(*events)
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert (response.status, response.complete) == (200, True)
    assert response.body == b"".join(events)
    await counts(proxy, "warmroute_requests_total", 1)
    assert list((await metric(proxy, "warmroute_replica_up")).values()) == [1]
    assert await total(proxy, "warmroute_replica_failures_total") == 0
    log = ""

    def logged() -> bool:
        nonlocal log
        log += capsys.readouterr().err
        return log.endswith("\n")

    await eventually(logged)
    [line] = [json.loads(line) for line in log.splitlines() if CHAT in line]
    assert (line["status"], line["outcome"]) == (200, "failed")


async def test_S08_an_alias_that_lengthens_the_body_is_framed_once(upstreams, proxy_factory):
    model = "organisation/the-model-of-a-long-name"
    [upstream] = await upstreams(1, model=model)
    proxy = await proxy_factory(upstream, aliases={"short": model})
    sent = b'{"seed":1e2, "model" : "short","prompt":"a \\"model\\": \\"short\\"", "x":{"model":"short"}}\n'
    response = await exchange(proxy.port, "POST", "/v1/completions", sent)
    assert response.status == 200
    assert upstream.last.body == sent.replace(b'"model" : "short"', b'"model" : "' + model.encode() + b'"', 1)
    assert upstream.last.one("content-length") == str(len(upstream.last.body)).encode()


@pytest.mark.parametrize("ending", ["reset", "close", "garbage"])
async def test_S08_an_error_of_the_proxys_own_has_its_own_length(upstream, proxy_factory, ending):
    proxy = await proxy_factory(upstream)
    fields = [("Content-Type", "text/plain"), ("Content-Length", 17)]

    async def behave(exchange: Exchange) -> None:
        start = head("HTTP/1.1 200 OK", fields)
        await exchange.send(start + b"Bad" if ending == "garbage" else start[:-2])
        if ending == "garbage":
            exchange.finish()
        elif ending == "reset":
            exchange.reset()
        else:
            exchange.finish()

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    if ending == "garbage":  # the head was whole, so the client's answer is cut where the replica's was
        assert not response.complete
        assert b"Bad".startswith(response.body)
    else:
        assert (response.status, response.complete) == (502, True)
        assert response.error["code"] == "upstream_failed"
        assert response.one("content-length") == str(len(response.body)).encode()


@pytest.mark.parametrize("hides", [False, True])
async def test_S08_an_event_stream_with_a_length_is_framed_once(upstream, proxy_factory, hides):
    proxy = await proxy_factory(upstream)
    if hides:
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
    visible, hidden = dialect.delta("x"), dialect.usage_event()

    async def behave(exchange: Exchange) -> None:
        events = [visible, *([hidden] if b"include_usage" in exchange.request.body else []), dialect.DONE]
        await exchange.answer(b"".join(events), headers=[("Content-Type", "text/event-stream")])

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert response.complete
    assert len(response.all("content-length") + response.all("transfer-encoding")) == 1
    assert response.body == visible + dialect.DONE


async def test_S08_a_json_answer_is_framed_once(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    answer = json.dumps({"choices": [], "usage": usage()}).encode()

    async def behave(exchange: Exchange) -> None:
        await exchange.head(headers=[("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")])
        await exchange.send(chunked(answer[:7], answer[7:]))

    upstream.behaviour = behave
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert response.body == answer
    assert len(response.all("content-length") + response.all("transfer-encoding")) == 1
