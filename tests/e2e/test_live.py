"""/admin/live: what is told once a second to all who watch, and what that may cost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy import live
from proxy.app import Proxy
from tests.support import dialect
from tests.support.admin import TOKEN
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, counts, metric, serving, total
from tests.support.http import request
from tests.support.upstream import Upstream

PATH = "/admin/live"
CHAT = "/v1/chat/completions"


class Watcher:
    """One who watches."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._read = 0

    async def frame(self) -> dict[str, Any]:
        """The next frame."""
        body = (await self.client.until(b"\n\n")).body
        while len(body) <= self._read:
            await self.client.arrival()
            body = (await self.client.until(b"\n\n")).body
        fresh, self._read = body[self._read :], len(body)
        return json.loads(fresh.split(b"\n\n")[0].removeprefix(b"data: "))


@asynccontextmanager
async def watching(proxy: Proxy, **options: Any) -> AsyncIterator[Watcher]:
    async with await Client.connect(proxy.port, **options) as client:
        await client.send(request("GET", PATH, host="127.0.0.1"))
        yield Watcher(client)


async def test_the_figures_are_those_of_metrics(upstream: Upstream, proxy_factory: Any) -> None:
    proxy = await proxy_factory(upstream)
    tokens = dialect.delta("a"), dialect.delta("b"), dialect.usage_event(prompt=32, cached=16), dialect.DONE
    upstream.behaviour = dialect.stream_of(*tokens)
    for _ in range(3):
        body = dialect.chat(stream=True)
        assert (await exchange(proxy.port, "POST", CHAT, body)).status == 200
    await counts(proxy, "warmroute_requests_total", 3)
    async with watching(proxy) as watcher:
        frame = await watcher.frame()
    (row,) = frame["tokens"]
    for stage in ("prompt", "available", "routed"):
        assert row[stage] == await total(proxy, "warmroute_prefix_tokens_total", stage=stage)
    assert row["reported"] == await total(proxy, "warmroute_cached_tokens_total") == 48
    assert row["reported_prompt"] == await total(proxy, "warmroute_cached_prompt_tokens_total") == 96
    assert sum(each["count"] for each in frame["requests"]) == 3
    assert {each["code"] for each in frame["requests"]} == {"200"}
    assert sum(each["count"] for each in frame["decisions"]) == await total(
        proxy, "warmroute_decisions_total"
    )
    (series,) = frame["ttft"]["series"]
    cumulative = [sum(series["counts"][: at + 1]) for at in range(len(series["counts"]))]
    for bound, count in zip([*frame["ttft"]["bounds"], float("inf")], cumulative, strict=True):
        le = "+Inf" if bound == float("inf") else str(bound)
        assert await total(proxy, "warmroute_ttft_seconds_bucket", le=le) == count
    (replica,) = frame["replicas"]
    for field, name in (
        ("index_blocks", "warmroute_replica_cache_blocks"),
        ("in_flight", "warmroute_replica_inflight"),
        ("queued_tokens", "warmroute_replica_queued_tokens"),
        ("up", "warmroute_replica_up"),
    ):
        assert replica[field] == await total(proxy, name)
    lengths = await metric(proxy, "warmroute_queue_length")
    assert frame["queue"]["waiting"] == {labels[0][1]: value for labels, value in lengths.items()}


async def test_frames_follow_each_other_and_are_shared(
    upstream: Upstream, proxy_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.05)
    proxy = await proxy_factory(upstream)
    async with watching(proxy) as one, watching(proxy) as other:
        mine, others = [], set()
        while not others & set(mine):
            mine.append((await one.frame())["at"])
            others.add((await other.frame())["at"])
        assert mine == sorted(mine)
        assert proxy._live.watchers == 2


async def test_nothing_is_made_while_nobody_watches(
    upstream: Upstream, proxy_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.01)
    proxy = await proxy_factory(upstream)
    made = 0
    make = proxy._live.make

    def counted() -> dict[str, Any]:
        nonlocal made
        made += 1
        return make()

    proxy._live.make = counted
    async with watching(proxy) as watcher:
        await watcher.frame()
    await eventually(lambda: proxy._live.watchers == 0)
    assert proxy._live._ticking is None
    before = made
    await ask(proxy, "/ready")
    await asyncio.sleep(0.05)
    assert made == before > 0


async def test_watchers_are_bounded(
    upstream: Upstream, proxy_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST", 2)
    proxy = await proxy_factory(upstream)
    async with watching(proxy) as one:
        async with watching(proxy) as other:
            await one.frame()
            await other.frame()
            async with await Client.connect(proxy.port) as client:
                await client.send(request("GET", PATH, host="127.0.0.1"))
                refused = await client.response()
            assert refused.status == 429
            assert refused.one("retry-after") == b"10"
        await eventually(lambda: proxy._live.watchers == 1)
        async with watching(proxy) as third:
            await third.frame()


async def test_who_does_not_read_misses_frames_and_holds_no_more_than_one(
    upstream: Upstream, proxy_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.001)
    proxy = await proxy_factory(upstream)
    size, made = 200_000, 0

    def large() -> dict[str, Any]:
        nonlocal made
        made += 1
        return {"at": made, "filling": "x" * size}

    proxy._live.make = large
    async with watching(proxy, receive_buffer=4096) as watcher:
        watcher.client.transport.pause_reading()
        await eventually(lambda: made > 100)
        (connection,) = proxy._clients._open.values()
        assert connection.transport.get_write_buffer_size() < 2 * size


async def test_who_does_not_read_for_long_counts_as_gone(
    upstream: Upstream, proxy_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.001)
    monkeypatch.setattr(live, "SLOW_SECONDS", 0.05)
    proxy = await proxy_factory(upstream)
    proxy._live.make = lambda: {"filling": "x" * 2_000_000}
    async with watching(proxy, receive_buffer=4096) as watcher:
        watcher.client.transport.pause_reading()
        await eventually(lambda: proxy._live.watchers == 1)
        await eventually(lambda: proxy._live.watchers == 0)


async def test_who_watches_does_not_keep_the_proxy_from_ending(upstream: Upstream) -> None:
    async with serving(upstream) as proxy, watching(proxy) as watcher:
        await watcher.frame()
        async with asyncio.timeout(5):
            await proxy.close(grace=60)
        last = await watcher.client.response()
        assert last.complete


@pytest.mark.parametrize("path", [PATH, "/admin/replicas"])
async def test_the_token_is_asked_for(upstream: Upstream, proxy_factory: Any, path: str) -> None:
    proxy = await proxy_factory(upstream, admin_token=TOKEN)
    for shown in (None, "wrong", TOKEN[:-1], TOKEN + "x", ""):
        headers = [] if shown is None else [("Authorization", f"Bearer {shown}")]
        response = await exchange(proxy.port, "GET", path, None, headers)
        assert (response.status, response.error["code"]) == (401, "invalid_admin_token")
        assert TOKEN not in response.error["message"]


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        (None, [], 200),
        ("localhost", [], 200),
        (None, [("Sec-Fetch-Site", "same-origin")], 200),
        (None, [("Sec-Fetch-Site", "none")], 200),
        (None, [("Origin", "http://{host}"), ("Sec-Fetch-Site", "same-origin")], 200),
        (None, [("Origin", "http://evil.example")], 401),
        (None, [("Origin", "null")], 401),
        (None, [("Origin", "http://127.0.0.1:1")], 401),
        (None, [("Sec-Fetch-Site", "cross-site")], 401),
        (None, [("Sec-Fetch-Site", "same-site")], 401),
        ("evil.example", [], 401),
        ("evil.example", [("Origin", "http://evil.example")], 401),
    ],
)
async def test_without_a_token_no_page_but_its_own_is_let_in(
    upstream: Upstream, proxy_factory: Any, host: str | None, headers: list[tuple[str, str]], status: int
) -> None:
    proxy = await proxy_factory(upstream)
    own = f"127.0.0.1:{proxy.port}"
    async with await Client.connect(proxy.port) as client:
        sent = [(name, value.format(host=own)) for name, value in headers]
        await client.send(request("GET", "/admin/replicas", headers=sent, host=host or own))
        assert (await client.response()).status == status


async def test_who_listens_to_all_and_has_no_token_shows_nothing(
    upstream: Upstream, proxy_factory: Any
) -> None:
    proxy = await proxy_factory(upstream, host="0.0.0.0")
    for path in (PATH, "/admin/replicas", "/ui", "/ui/app.js"):
        response = await ask(proxy, path)
        assert response.status == 401
        assert "WARMROUTE_ADMIN_TOKEN" in response.error["message"]
