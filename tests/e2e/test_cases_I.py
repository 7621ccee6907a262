"""I03: an alias is its model, an adapter is not, and an unknown name leaves no trace."""

import json

import pytest

from proxy.app import Proxy
from tests.support import dialect
from tests.support.client import exchange
from tests.support.fixtures import ask, idle
from tests.support.upstream import Exchange, Upstream

COMPLETIONS = "/v1/completions"


@pytest.fixture
async def proxy(upstream: Upstream, proxy_factory) -> Proxy:
    """A proxy whose one replica serves `m` and its adapter `m-lora`; `nick` is an alias of `m`."""

    async def models(exchange: Exchange) -> None:
        base = {"id": "m", "object": "model", "owned_by": "vllm", "root": "m", "parent": None}
        adapter = {**base, "id": "m-lora", "root": "/adapters/x", "parent": "m"}
        await exchange.json({"object": "list", "data": [base, adapter]})

    upstream.paths["/v1/models"] = models
    return await proxy_factory(upstream, aliases={"nick": "m", "soft": "m-lora"})


async def predicted(proxy: Proxy, model: str) -> int:
    """Tokens of one and the same prompt that are believed cached, asked as `model`."""
    body = json.dumps({"model": model, "prompt": list(range(100, 165))}).encode()
    response = await exchange(proxy.port, "POST", COMPLETIONS, body)
    assert response.status == 200
    await idle(proxy)
    return int(response.one("x-warmroute-predicted-cached-tokens") or -1)


async def test_I03_an_alias_shares_with_its_model_and_an_adapter_does_not(upstream, proxy):
    assert await predicted(proxy, "m") == 0
    assert await predicted(proxy, "nick") == 64
    assert upstream.last.json()["model"] == "m"
    assert await predicted(proxy, "m-lora") == 0
    assert await predicted(proxy, "soft") == 64
    assert upstream.last.json()["model"] == "m-lora"
    assert await predicted(proxy, "m") == 64
    assert b"nick" not in (await ask(proxy, "/metrics")).body


async def test_I03_the_model_list_names_what_can_be_asked_for(proxy):
    listed = (await ask(proxy, "/v1/models")).json()
    assert listed["object"] == "list"
    assert {"m", "m-lora"} <= {card["id"] for card in listed["data"]}


def series(page: bytearray) -> set[bytes]:
    """The names and labels of a page of metrics."""
    return {line.rpartition(b" ")[0] for line in bytes(page).splitlines() if not line.startswith(b"#")}


async def test_I03_unknown_models_leave_no_trace(upstream, proxy):
    unknown = [f"unknown-{at}" for at in range(1000)]
    odd = [
        "a\nb",
        "x" * 10_000,
        "..",
        "../m",
        "m\u0000",
        "m ",
        "M",
        "",
        "m\r\nX-Evil: 1",
        "é",
        "m/m",
    ]

    async def refused(model: str) -> None:
        body = json.dumps({"model": model, "prompt": "x"}).encode()
        response = await exchange(proxy.port, "POST", COMPLETIONS, body)
        assert response.status == 404, (model, response)
        assert response.error["code"] == "model_not_found"
        assert response.error["param"] == "model"
        assert len(response.body) < 1000
        assert "x-evil" not in response.names()

    await refused(unknown[0])
    before = series((await ask(proxy, "/metrics")).body)
    for model in [*unknown, *odd]:
        await refused(model)
    assert series((await ask(proxy, "/metrics")).body) == before
    assert not upstream.requests
    assert await idle(proxy) is None


@pytest.mark.parametrize("path", [*dialect.routes(), "/v1/embeddings", "/v1/rerank", "/tokenize"])
async def test_I03_an_unknown_model_is_unknown_on_every_route(upstream, proxy, path):
    fields = {"prompt": "x", "input": "x", "query": "x", "documents": ["x"], "messages": dialect.MESSAGES[1:]}
    body = json.dumps({**fields, "model": "unknown", "max_tokens": 1}).encode()
    response = await exchange(proxy.port, "POST", path, body, [("Content-Type", "application/json")])
    assert response.status == 404
    assert response.error["code"] == "model_not_found"
    assert not upstream.requests


async def test_I03_what_passes_through_goes_to_a_replica_that_serves_the_model(upstreams, proxy_factory):
    [first], [second] = await upstreams(1, model="first"), await upstreams(1, model="second")
    proxy = await proxy_factory(first, second)
    part = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsecond\r\n'
    voice = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n\x00\xff\r\n'
    kind = "multipart/form-data; boundary=b"
    for body, content_type in [
        (b'{"model":"second","input":"x"}', "application/json"),
        (b'{"model":"second","input":"x"}', "application/json; charset=utf-8"),
        (part + voice + b"--b--\r\n", kind),
        (voice + part + b"--b--\r\n", kind),
    ]:
        for _ in range(3):
            fields = [("Content-Type", content_type)]
            response = await exchange(proxy.port, "POST", "/v1/audio/transcriptions", body, fields)
            assert response.status == 200
            assert second.last.body == body
    assert not first.requests
