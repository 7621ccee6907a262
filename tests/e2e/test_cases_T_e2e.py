"""T, end to end: long prompts (T10), and what is no request at all (T11)."""

import asyncio
import json

import pytest

from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, idle, in_flight, metric, total
from tests.support.http import request
from tests.support.upstream import Exchange, Upstream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def test_T10_the_proxy_answers_while_long_prompts_come_in(upstream, proxy_factory):
    # Without limits, under which long prompts that a replica has no time for yet wait in the proxy.
    proxy = await proxy_factory(upstream, tokenizer_budget_ms=1, limits={"concurrency": "none"})
    release = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        if b'"stream": true' in exchange.request.body:
            await exchange.open_stream()
            while not release.is_set():
                await exchange.event(dialect.delta("x"))
                await asyncio.sleep(0.01)
            await exchange.event(dialect.DONE)
            await exchange.end_stream()
        else:
            await release.wait()
            await Upstream.reply(exchange)

    upstream.behaviour = behave
    streams = [await Client.connect(proxy.port) for _ in range(5)]
    for each in streams:
        await each.send(request("POST", CHAT, dialect.chat(stream=True)))
        await each.until(dialect.delta("x"))
    long = [await Client.connect(proxy.port) for _ in range(8)]
    for at, each in enumerate(long):
        await each.send(request("POST", COMPLETIONS, dialect.body(prompt=f"{at} long " * 64_000)))
        assert (await ask(proxy, "/health")).status == 200
    await eventually(lambda: len(upstream.requests) == 13, "every prompt is sent, keyed or not")
    assert await in_flight(proxy) == [13]
    release.set()
    for each in streams:
        response = await each.response()
        assert response.complete
        assert response.body.replace(dialect.delta("x"), b"") == dialect.DONE
    for each in long:
        assert (await each.response()).status == 200
    await idle(proxy)


async def test_T10_a_tokenizer_that_cannot_be_had_is_asked_for_once(upstreams, proxy_factory, monkeypatch):
    """The hub is a server here that answers 503; what is asked of it must not grow with the requests."""
    hub, replica = await upstreams(2)

    async def refuse(exchange: Exchange) -> None:
        await exchange.answer(b"", "503 Down")

    hub.behaviour = refuse
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    proxy = await proxy_factory(replica, tokenizer="auto")

    async def degraded() -> bool:
        modes = await metric(proxy, "warmroute_tokenizer_mode", model="m", mode="bytes")
        return bool(sum(modes.values()))

    await eventually(degraded, within=60)
    asked = len(hub.requests)
    for _ in range(20):
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    assert len(hub.requests) == asked
    ready = await ask(proxy, "/ready")
    assert ready.status == 200
    assert b"bytes" in ready.body


NOT_OBJECTS = {
    "open-brace": b"{",
    "nothing": b"",
    "array": b"[]",
    "null": b"null",
    "string": b'"hi"',
    "ff": b"\xff",
    "space": b" \n",
    "deep-array": b"[" * 100_000,
    "deep-object": b'{"a":' * 100_000,
    "number": b"9" * 5000,
    "trailing": b"{} x",
    "two": b"{}{}",
    "single-quotes": b"{'model':'m'}",
    "truncated": dialect.chat()[:-3],
    "nul": b"\0" * 10,
    "control": b'{"model":"m","messages":[{"role":"user","content":"a\nb"}]}',
}
ROUTED = [CHAT, COMPLETIONS, "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/generate"]


@pytest.mark.parametrize("raw", NOT_OBJECTS.values(), ids=NOT_OBJECTS)
async def test_T11_what_is_no_json_object_is_a_400(upstream, proxy_factory, raw):
    proxy = await proxy_factory(upstream)
    for path in ROUTED:
        response = await exchange(proxy.port, "POST", path, raw)
        assert response.status == 400, path
        assert response.error["type"] == "invalid_request_error"
    assert not upstream.requests
    assert await in_flight(proxy) == [0]
    assert await total(proxy, "warmroute_replica_failures_total") == 0
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200


REST = b'"messages":[{"role":"user","content":"x"}]}'
DEEP = b"[" * 100_000 + b"]" * 100_000
ODD = {
    "bom": b"\xef\xbb\xbf" + dialect.chat(),
    "utf-16": dialect.chat().decode().encode("utf-16"),
    "empty-object": b"{}",
    "long-number": b'{"model":"m","seed":' + b"9" * 5000 + b"," + REST,
    "huge-exponent": b'{"model":"m","temperature":1e999,' + REST,
    "nan": b'{"model":"m","temperature":NaN,' + REST,
    "infinity": b'{"model":"m","temperature":-Infinity,' + REST,
    "model-null": b'{"model":null,' + REST,
    "model-list": b'{"model":["m"],' + REST,
    "model-number": b'{"model":7,' + REST,
    "model-object": b'{"model":{"id":"m"},' + REST,
    "no-model": b"{" + REST,
    "stream-string": b'{"model":"m","stream":"true",' + REST,
    "stream-number": b'{"model":"m","stream":1,' + REST,
    "max-tokens-string": b'{"model":"m","max_tokens":"x",' + REST,
    "max-tokens-null": b'{"model":"m","max_tokens":null,' + REST,
    "n-list": b'{"model":"m","n":[1],' + REST,
    "deep-unread": b'{"model":"m","x":' + DEEP + b"," + REST,
    "deep-in-tools": b'{"model":"m","tools":' + DEEP + b"," + REST,
    "deep-in-content": b'{"model":"m","messages":[{"role":"user","content":' + DEEP + b"}]}",
    "deep-in-prompt": b'{"model":"m","prompt":' + DEEP + b"}",
    "bad-utf-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "bad-utf-8-key": b'{"model":"m","\xff":1,' + REST,
    "same-model-twice": b'{"model":"m","model":"m",' + REST,
    "salt-number": b'{"model":"m","cache_salt":7,' + REST,
    "tools-string": b'{"model":"m","tools":"x",' + REST,
    "template-number": b'{"model":"m","chat_template":7,' + REST,
    "template-broken": b'{"model":"m","chat_template":"{% for","chat_template_kwargs":[],' + REST,
    "template-endless": b'{"model":"m","chat_template":"{% for i in range(999999999) %}x{% endfor %}",'
    + REST,
}


@pytest.mark.parametrize("raw", ODD.values(), ids=ODD)
async def test_T11_odd_objects_are_passed_as_they_are_or_refused(upstream, proxy_factory, raw):
    proxy = await proxy_factory(upstream)
    for path in ROUTED:
        before = len(upstream.requests)
        response = await exchange(proxy.port, "POST", path, raw, within=30)
        if response.status == 200:
            assert [bytes(each.body) for each in upstream.requests[before:]] == [raw]
        else:
            assert response.status in {400, 404}, path
            assert response.error["type"] == "invalid_request_error"
            assert len(upstream.requests) == before
    await idle(proxy)
    assert await total(proxy, "warmroute_replica_failures_total") == 0
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200


async def test_T11_of_two_models_the_one_that_the_engine_reads_decides(upstreams, proxy_factory):
    """Engines keep the last of two equal keys."""
    first, second = await upstreams(1, model="first"), await upstreams(1, model="second")
    proxy = await proxy_factory(*first, *second)
    for path in (CHAT, COMPLETIONS, "/v1/audio/speech"):
        sent = b'{"model":"first","messages":[{"role":"user","content":"x"}],"prompt":"x","model":"second"}'
        response = await exchange(proxy.port, "POST", path, sent, [("Content-Type", "application/json")])
        if response.status == 200:
            assert second[0].last.body == sent
        else:
            assert response.status == 400
            assert response.error
    assert not first[0].requests


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/", "/v1", "/", "/V1/chat/completions", "/favicon.ico"]
)
async def test_T11_an_unknown_path_is_a_404(upstream, proxy_factory, path):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", path, dialect.chat())
    assert response.status == 404
    assert response.error["code"] == "not_found"
    assert not upstream.requests


CONTROLS = [
    "/reset_prefix_cache",
    "/flush_cache",
    "/sleep",
    "/v1/load_lora_adapter",
    "/v1/load_lora_adapter?x",
    "/v1/load_lora_adapter#x",
    "/v1/load_lora_adapter#?x",
    "/v1/x#/../load_lora_adapter",
    "/v1/load_lora_adapter/",
    "/v1//load_lora_adapter",
    "/v1/load%5Flora_adapter",
    "/v1/./unload_lora_adapter",
    "/v1/../reset_prefix_cache",
    "/v1/%2e%2e/sleep",
    "/v1/x/../../sleep",
    "/v1/..%2fsleep",
    "//sleep",
]


@pytest.mark.parametrize("path", CONTROLS)
async def test_T11_what_controls_an_engine_is_not_for_clients(upstream, proxy_factory, path):
    proxy = await proxy_factory(upstream)
    for method in ("POST", "GET", "PUT"):
        response = await exchange(proxy.port, method, path, b"{}")
        assert response.status in {400, 404, 405}
        assert response.error
    assert not upstream.requests


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ROUTED)
async def test_T11_the_wrong_method_is_a_405(upstream, proxy_factory, path, method):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, method, path, dialect.chat())
    assert response.status == 405
    assert response.error["code"] == "method_not_allowed"
    assert not upstream.requests
    assert json.loads(response.body)


@pytest.mark.parametrize(
    "shown", ["Bearer \xff", "Bearer \xe9", "Bearer", "Basic token", "Bearer tokens", "Bearer  "]
)
async def test_T11_a_wrong_admin_token_is_a_401(upstream, proxy_factory, shown):
    proxy = await proxy_factory(upstream, admin_token="token")
    for path in ("/admin/replicas", f"/admin/replicas/{proxy.fleet.replicas.copy().popitem()[0]}/sleep"):
        response = await exchange(proxy.port, "POST", path, b"", [("Authorization", shown)])
        assert response.status == 401
        assert response.error["code"] == "invalid_admin_token"
    assert not upstream.requests
