"""/admin/replicas: the fleet changed by an operator while it serves."""

import asyncio
import json
from typing import Any

import pytest

from proxy import roster
from proxy.app import Proxy
from tests.support import dialect
from tests.support.admin import TOKEN, admin, are_up, replicas
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, counts, in_flight, metric, total
from tests.support.http import request
from tests.support.upstream import Exchange, Upstream

CHAT = "/v1/chat/completions"


class Held:
    """A behaviour that begins a stream and ends it when told."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(dialect.delta("x"))
        await self.release.wait()
        await exchange.event(dialect.delta("y"), dialect.usage_event(), dialect.DONE)
        await exchange.end_stream()


@pytest.fixture
async def pair(upstreams) -> list[Upstream]:
    return await upstreams(2)


async def start(proxy_factory: Any, *there: Upstream, **settings: Any) -> Proxy:
    named = [{"url": each.url, "name": name} for name, each in zip("abc", there, strict=False)]
    return await proxy_factory(*there, replicas=named, admin_token=TOKEN, **settings)


async def chat(proxy: Proxy) -> None:
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200


async def test_a_replica_is_added_and_takes_traffic(pair, proxy_factory):
    a, b = pair
    proxy = await start(proxy_factory, a)
    response = await admin(proxy, "POST", "", {"url": b.url, "name": "b", "engine": "vllm"})
    assert response.status == 201
    assert response.json()["source"] == "admin"
    await are_up(proxy, "a", "b")
    assert (await admin(proxy, "POST", "/a/drain")).status == 200
    await chat(proxy)
    assert len(b.requests) == 1
    assert await total(proxy, "warmroute_replica_up", replica="b") == 1


async def test_a_fleet_may_begin_empty(pair, proxy_factory):
    proxy = await proxy_factory(ready=False, admin_token=TOKEN)
    assert (await ask(proxy, "/ready")).status == 503
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 503
    response = await admin(proxy, "POST", "", pair[0].url)
    assert response.status == 201
    await are_up(proxy, response.json()["name"])
    await chat(proxy)


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "as JSON"),
        (b"{", 400, "as JSON"),
        (b"[]", 400, "body"),
        (b'{"name": "x"}', 400, "url"),
        (b'{"url": "ftp://x"}', 400, "http://"),
        (b'{"url": "http://x:1", "capacty": 3}', 400, "capacty"),
        (b'{"url": "http://x:1/path"}', 400, "path"),
        (b'{"url": "http://user:hunter2@x:1"}', 400, "credentials"),
        (b'{"url": "http://x:1", "name": "a/b"}', 400, "name"),
        (b'{"url": "http://x:1", "name": "a"}', 409, "remove it first"),
    ],
)
async def test_what_cannot_be_added_is_said(upstream, proxy_factory, body, status, word):
    proxy = await start(proxy_factory, upstream)
    credentials = [("Authorization", f"Bearer {TOKEN}")]
    response = await exchange(proxy.port, "POST", "/admin/replicas", body, credentials)
    assert response.status == status
    assert word in response.error["message"]
    assert "hunter2" not in response.error["message"]
    assert (await replicas(proxy)).keys() == {"a"}


async def test_an_address_is_in_the_fleet_once(upstream, proxy_factory):
    proxy = await start(proxy_factory, upstream)
    assert (await admin(proxy, "POST", "", {"url": upstream.url, "name": "other"})).status == 409


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nobody", 404),
        ("DELETE", "/nobody", 404),
        ("DELETE", "?name=nobody", 404),
        ("DELETE", "", 400),
        ("PUT", "", 405),
        ("PUT", "/a", 405),
        ("POST", "/nobody/drain", 404),
        ("GET", "/a/drain", 405),
    ],
)
async def test_what_is_not_there_or_not_understood(upstream, proxy_factory, method, path, status):
    proxy = await start(proxy_factory, upstream)
    assert (await admin(proxy, method, path)).status == status
    assert (await replicas(proxy)).keys() == {"a"}


async def test_without_the_token_nothing_changes(upstream, proxy_factory):
    proxy = await start(proxy_factory, upstream)
    for method, path in (("DELETE", "/a"), ("POST", "/a/drain"), ("POST", "")):
        response = await exchange(proxy.port, method, f"/admin/replicas{path}", b"{}")
        assert response.status == 401
    assert (await replicas(proxy))["a"]["state"] == "up"


async def test_draining_finishes_what_is_there_and_takes_nothing_new(pair, proxy_factory):
    a, b = pair
    proxy = await start(proxy_factory, a, b)
    held = a.behaviour = Held()
    await admin(proxy, "POST", "/b/drain")
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        await client.until(method="POST")
        await admin(proxy, "DELETE", "/b/drain")
        assert (await admin(proxy, "POST", "/a/drain")).json()["state"] == "draining"
        for _ in range(5):
            await chat(proxy)
        assert (len(a.requests), len(b.requests)) == (1, 5)
        assert (await replicas(proxy))["a"]["in_flight"] == 1
        ready = (await ask(proxy, "/ready")).json()
        assert ready["replicas"]["a"]["held"] == ["draining"]
        assert ready["models"]["m"]["replicas"] == 1
        held.release.set()
        response = await client.response("POST")
        assert response.complete
    known = (await replicas(proxy))["a"]
    assert known["in_flight"] == 0
    assert known["index_blocks"] == proxy.index.blocks("a")
    assert (await admin(proxy, "DELETE", "/a/drain")).json()["state"] == "up"


async def test_a_drained_replica_keeps_its_index_entries(upstream, proxy_factory):
    proxy = await start(proxy_factory, upstream)
    body = json.dumps({"model": "m", "prompt": "a long beginning " * 50}).encode()
    assert (await exchange(proxy.port, "POST", "/v1/completions", body)).status == 200
    held = proxy.index.blocks("a")
    assert held
    await admin(proxy, "POST", "/a/drain")
    response = await exchange(proxy.port, "POST", "/v1/completions", body)
    assert (response.status, response.error["code"]) == (503, "no_replica")
    assert response.one("retry-after")
    assert (await ask(proxy, "/ready")).status == 503
    assert proxy.index.blocks("a") == held
    await admin(proxy, "DELETE", "/a/drain")
    response = await exchange(proxy.port, "POST", "/v1/completions", body)
    assert int(response.one("x-warmroute-predicted-cached-tokens")) > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_L01_removing_leaves_requests_alone_and_counts_nothing(pair, proxy_factory, stream):
    a, b = pair
    proxy = await start(proxy_factory, a, b)
    await admin(proxy, "POST", "/b/drain")
    release = asyncio.Event()

    async def slowly(exchange: Exchange) -> None:
        await release.wait()
        await (exchange.stream(dialect.delta("y"), dialect.DONE) if stream else Upstream.reply(exchange))

    a.behaviour = slowly
    async with await Client.connect(proxy.port) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=stream)))
        await a.arrived()
        await admin(proxy, "DELETE", "/b/drain")
        assert (await admin(proxy, "DELETE", "/a")).status == 204
        assert (await replicas(proxy))["a"] == {
            "name": "a", "url": a.url, "state": "leaving", "in_flight": 1,
        }  # fmt: skip
        assert await in_flight(proxy) == [0]
        await chat(proxy)
        assert len(b.requests) == 1
        release.set()
        response = await client.response("POST")
        assert response.complete
        assert response.status == 200
    assert proxy.in_flight == 0
    assert (await replicas(proxy)).keys() == {"b"}
    assert proxy.index.blocks("a") == 0
    await a.connections[a.last.connection].until_gone()


async def test_every_map_forgets(pair, proxy_factory, monkeypatch):
    a, b = pair
    proxy = await start(proxy_factory, a, b, probes={"interval": 0.05})
    a.model = b.model = "m"
    await admin(proxy, "POST", "/b/drain")
    await chat(proxy)
    a.behaviour = lambda exchange: exchange.answer(b"no", "500 Broken")
    await exchange(proxy.port, "POST", CHAT, dialect.chat())
    await counts(proxy, "warmroute_decisions_total", 2, replica="a")
    await admin(proxy, "DELETE", "/b/drain")
    await admin(proxy, "DELETE", "/a")
    assert await total(proxy, "warmroute_decisions_total", replica="a") == 2  # a scrape may still come
    monkeypatch.setattr(roster, "LATE_SECONDS", 0.0)

    async def nowhere() -> bool:
        page = bytes((await ask(proxy, "/metrics")).body).decode()
        return 'replica="a"' not in page

    await eventually(nowhere)
    upkeep = proxy._upkeep
    assert len(upkeep.upstreams) == 1
    assert not upkeep.roster.leaving
    for kept in (upkeep.probes, upkeep.ingest, upkeep.roster, upkeep._drift, proxy.fleet):
        for name, value in vars(kept).items():
            if isinstance(value, dict | set) and not name.startswith("__"):
                assert "a" not in value, f"{type(kept).__name__}.{name}"


async def test_a_probe_under_way_tells_nothing_of_whoever_comes_next(pair, proxy_factory):
    a, b = pair
    proxy = await start(proxy_factory, a, b, probes={"interval": 0.05, "timeout": 10})
    release, asked = asyncio.Event(), asyncio.Event()

    async def late(exchange: Exchange) -> None:
        asked.set()
        await release.wait()
        await exchange.answer(b"")

    a.paths["/health"] = late
    await asked.wait()
    look = asyncio.create_task(proxy._upkeep.probes.look("a"))  # as an event feed may ask for
    await admin(proxy, "DELETE", "/a")
    a.paths["/health"] = lambda exchange: exchange.answer(b"busy", "503 Busy")
    assert (await admin(proxy, "POST", "", {"url": a.url, "name": "a"})).status == 201
    release.set()
    assert await look is False
    assert not proxy.fleet.replicas["a"].up
    assert not proxy.fleet.replicas["a"].description.models


async def test_a_model_whose_last_replica_left_is_unavailable_not_unknown(pair, proxy_factory, monkeypatch):
    a, b = pair
    b.model = "n"
    proxy = await start(proxy_factory, a, b)
    await admin(proxy, "DELETE", "/a")
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert (response.status, response.error["code"]) == (503, "no_replica")
    ready = await ask(proxy, "/ready")
    assert ready.status == 200
    assert ready.json()["models"]["m"]["replicas"] == 0
    listed = (await ask(proxy, "/v1/models")).json()["data"]
    assert [card["id"] for card in listed] == ["n"]
    monkeypatch.setattr("proxy.pools.LINGER_SECONDS", 0.0)

    async def unknown() -> bool:
        return (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 404

    await eventually(unknown)
    assert "m" not in (await ask(proxy, "/ready")).json()["models"]
    assert not await metric(proxy, "warmroute_tokenizer_mode", model="m")


async def test_priorities_are_written_for_a_replica_that_comes_later(pair, proxy_factory):
    a, b = pair
    proxy = await start(proxy_factory, a)
    fields = [("X-Vllm-Priority", "0"), ("X-Warmroute-Priority", "batch")]
    await exchange(proxy.port, "POST", CHAT, dialect.chat(), fields)
    assert "priority" not in a.last.json()
    assert a.last.all("x-vllm-priority")
    await admin(proxy, "POST", "", {"url": b.url, "name": "b", "priority": "low_first"})
    await are_up(proxy, "a", "b")
    await admin(proxy, "POST", "/a/drain")
    await exchange(proxy.port, "POST", CHAT, dialect.chat(), fields)
    assert b.last.json()["priority"] == 2
    assert not b.last.all("x-vllm-priority")
    await admin(proxy, "DELETE", "/b")
    await admin(proxy, "DELETE", "/a/drain")
    await exchange(proxy.port, "POST", CHAT, dialect.chat(), fields)
    assert "priority" not in a.last.json()
    assert a.last.all("x-vllm-priority")
