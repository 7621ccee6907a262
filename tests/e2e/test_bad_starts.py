"""What is wrong when a proxy starts: it starts and says so, or refuses, in one sentence that names the fix.

Beside these: settings that are wrong (tests/unit/proxy/test_sources.py), the certificate to listen with
(test_tls.py), Redis while it runs (test_cases_X.py).
"""

import ssl
from pathlib import Path
from typing import Any

import pytest

from proxy.shared import layout, pool
from tests.support import dialect
from tests.support.certificates import Authority
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, serving
from tests.support.processes import proxy_process
from tests.support.redis import PATIENCE, Server, free_port
from tests.support.tcp_relay import Relay
from tests.support.upstream import Upstream

COMPLETIONS = "/v1/completions"
BODY = dialect.body(prompt="Once upon a time", max_tokens=1)
SECRET = "s" * 32


async def answers(proxy: Any) -> bool:
    return (await exchange(proxy.port, "POST", COMPLETIONS, BODY)).status == 200


async def test_a_missing_redis_is_told_and_nothing_waits_for_it(upstream, proxy_factory, caplog):
    missing = f"redis://127.0.0.1:{free_port()}"
    proxy = await proxy_factory(upstream, redis_url=missing, secret=SECRET)
    assert await answers(proxy)
    (said,) = [record.getMessage() for record in caplog.records if "Redis" in record.getMessage()]
    assert "requests go on without it" in said
    assert "start it, or correct redis_url" in said
    assert "start it, or correct redis_url" in (await ask(proxy, "/ready")).json()["redis"]["why"]


async def test_a_redis_whose_certificate_nobody_known_signed_is_told(
    upstream, proxy_factory, caplog, tmp_path
):
    pair = Authority(tmp_path).sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    async with Server(tmp_path / "valkey") as server, Relay(server.port, tls=context) as relay:
        url = f"rediss://127.0.0.1:{relay.port}"
        proxy = await proxy_factory(upstream, redis_url=url, secret=SECRET)
        assert await answers(proxy)
        assert "name who signed it, redis_url=rediss://...?ssl_ca_certs=FILE" in caplog.text


async def test_a_replica_that_is_away_at_the_start_is_told_and_used_when_it_comes(proxy_factory, caplog):
    port = free_port()
    late = Upstream()
    late.port = port
    proxy = await proxy_factory(late, ready=False)
    refused = await exchange(proxy.port, "POST", COMPLETIONS, BODY)
    assert refused.status == 503
    assert refused.one("retry-after")
    assert "start it, or correct its URL in WARMROUTE_REPLICAS" in caplog.text
    async with late:

        async def used() -> bool:
            return await answers(proxy)

        await eventually(used, "the replica is used")


@pytest.mark.parametrize("name", ["tls.cert", "tls.upstream-ca"])
async def test_a_file_that_is_no_certificate_is_refused(name):
    async with proxy_process(["http://127.0.0.1:9"], f"--{name}", __file__) as process:
        assert await process.exit(within=PATIENCE) == 2
    (said,) = process.log.splitlines()
    assert said.startswith("warmroute: ")
    assert "it is not PEM" in said
    assert "name a PEM file" in said


async def test_a_replica_whose_certificate_nobody_known_signed_is_told(
    upstreams, proxy_factory, caplog, tmp_path
):
    pair = Authority(tmp_path).sign()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    (replica,) = await upstreams(1, tls=context)
    proxy = await proxy_factory(replica, ready=False)
    assert (await ask(proxy, "/ready")).status == 503
    assert "name who signs its certificate in WARMROUTE_TLS__UPSTREAM_CA" in caplog.text


async def test_a_proxy_that_differs_from_its_namespace_does_not_start(upstream, tmp_path):
    differing = {
        "secret": ("--secret", "t" * 32),
        "block size": ("--secret", SECRET, "--block-size", "32"),
    }
    async with (
        Server(tmp_path) as server,
        proxy_process([upstream.url], "--secret", SECRET, redis_url=server.url) as first,
    ):
        await first.ready()
        for what, settings in differing.items():
            async with proxy_process([upstream.url], *settings, redis_url=server.url) as other:
                assert await other.exit(within=PATIENCE) == 1
            (said,) = [line for line in other.log.splitlines() if "not starting" in line]
            assert f"is used with another {what}" in said
            assert "give every proxy the same, or this one another WARMROUTE_NAMESPACE" in said
            assert SECRET not in other.log


async def test_another_layout_under_this_ones_name_is_refused(upstream, tmp_path):
    async with Server(tmp_path) as server:
        await server.run("HSET", layout.Names("warmroute", "m").meta, "layout", "0")
        async with proxy_process([upstream.url], "--secret", SECRET, redis_url=server.url) as process:
            assert await process.exit(within=PATIENCE) == 1
        assert "is used with another layout (0; this proxy has 1)" in process.log
        assert "WARMROUTE_NAMESPACE" in process.log


async def test_two_layouts_live_side_by_side_in_one_redis(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As during a rollout: the old proxies share with each other, and so do the new."""

    async def foretold(proxy: Any, prompt: list[int]) -> int:
        answer = await exchange(proxy.port, "POST", COMPLETIONS, dialect.body(prompt=prompt, max_tokens=1))
        assert answer.status == 200
        return int(answer.one("x-warmroute-predicted-cached-tokens") or -1)

    numbers = iter(range(1000, 10**6))

    async def shares(one: Any, other: Any) -> bool:
        prompt = [next(numbers), *range(64)]
        await foretold(one, prompt)
        return await foretold(other, prompt) == 64

    async with Server(tmp_path) as server:
        common = {"redis_url": server.url, "secret": SECRET, "block_size": 16, "tokenizer": "bytes"}
        async with serving(upstream, **common) as old, serving(upstream, **common) as older:
            monkeypatch.setattr(layout, "VERSION", "next")
            monkeypatch.setattr(pool, "VERSION", "next")
            async with serving(upstream, **common) as new, serving(upstream, **common) as newer:
                for one, other in ((old, older), (new, newer)):
                    await eventually(lambda one=one, other=other: shares(one, other), "they share")
                assert not await shares(old, new)
                assert not await shares(new, old)
        metas = sorted(await server.run("KEYS", "*meta"))
        assert metas == [b"{warmroute:v1:m}:meta", b"{warmroute:vnext:m}:meta"]
