"""D02, D03, D04: replicas that come, go, and change places while requests run."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from proxy.app import Proxy
from tests.support import dialect
from tests.support.admin import TOKEN, admin, are_up, replicas
from tests.support.certificates import Authority
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, metric, serving
from tests.support.http import request
from tests.support.kubernetes import ApiServer, pod
from tests.support.names import Zone
from tests.support.upstream import METRICS, TEXT, Exchange, Upstream

CHAT = "/v1/chat/completions"
PROMPT = "the same long words at the beginning of every request " * 20


def chat(model: str = "m", **fields: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": PROMPT}], **fields}).encode()


async def predicted(proxy: Proxy, model: str = "m") -> int:
    """Tokens that the proxy believes to be cached where it sends this prompt."""
    response = await exchange(proxy.port, "POST", CHAT, chat(model))
    assert response.status == 200, response.body
    return int(response.one("x-warmroute-predicted-cached-tokens") or -1)


@asynccontextmanager
async def pods(*numbers: int, port: int = 0) -> AsyncIterator[dict[str, Upstream]]:
    """Replicas on the addresses 127.0.0.n, all on one port."""
    async with AsyncExitStack() as stack:
        running: dict[str, Upstream] = {}
        for number in numbers:
            one = await stack.enter_async_context(Upstream(address=f"127.0.0.{number}", port=port))
            port = one.port
            running[one.address] = one
        yield running


def started_at(second: float) -> bytes:
    return (METRICS + f"process_start_time_seconds {second}\n").encode()


def is_process(one: Upstream, started: float | None) -> None:
    """What it says of its start; None: nothing, as some engines."""
    page = METRICS.encode() if started is None else started_at(started)
    one.paths["/metrics"] = lambda exchange: exchange.answer(page, "200 OK", [TEXT])


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as it:
        yield it


@asynccontextmanager
async def in_kubernetes(server: ApiServer, tmp_path: Any, **settings: Any) -> AsyncIterator[Proxy]:
    kubernetes = {"service": server.service, "kubeconfig": server.kubeconfig(tmp_path)}
    async with serving(
        ready=False, admin_token=TOKEN, discovery="kubernetes", kubernetes=kubernetes, **settings
    ) as proxy:
        yield proxy


async def test_D02_terminating_pods_are_out_at_once_and_finish_what_they_have(server, tmp_path):
    async with pods(2, 3) as there:
        a, b = there["127.0.0.2"], there["127.0.0.3"]

        async def slowly(exchange: Exchange) -> None:
            await exchange.open_stream()
            await exchange.event(dialect.delta("x"))
            await release.wait()
            await exchange.event(dialect.delta("y"), dialect.DONE)
            await exchange.end_stream()

        release = asyncio.Event()
        server.put(pod("a", a.address), port=a.port)
        async with in_kubernetes(server, tmp_path) as proxy:
            await are_up(proxy, "a")
            await server.watched()
            a.behaviour = slowly
            async with await Client.connect(proxy.port) as client:
                await client.send(request("POST", CHAT, dialect.chat(stream=True)))
                await client.until(method="POST")
                server.put(pod("a", a.address, terminating=True), pod("b", b.address), port=a.port)

                async def out() -> bool:
                    known = await replicas(proxy)
                    return known.keys() == {"a", "b"} and known["a"]["state"] == "leaving"

                await eventually(out, "a is leaving")
                await eventually(lambda: proxy.fleet.replicas["b"].up)
                assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 200
                assert len(b.requests) == 1
                release.set()
                response = await client.response("POST")
                assert response.complete
                assert b'"y"' in response.body
            assert (await replicas(proxy)).keys() == {"b"}


async def test_D02_nobody_is_left_and_ready_says_so(server, tmp_path):
    async with pods(2) as there:
        [a] = there.values()
        server.put(pod("a", a.address), port=a.port)
        async with in_kubernetes(server, tmp_path) as proxy:
            await are_up(proxy, "a")
            await server.watched()
            assert (await ask(proxy, "/ready")).status == 200
            server.put(pod("a", None), port=a.port)  # its address is gone before it is

            async def unready() -> bool:
                return (await ask(proxy, "/ready")).status == 503

            await eventually(unready)
            ready = (await ask(proxy, "/ready")).json()
            assert ready["discovery"] == {"source": "kubernetes", "up": True}
            assert ready["models"]["m"]["replicas"] == 0
            response = await exchange(proxy.port, "POST", CHAT, chat())
            assert response.status == 503
            assert response.error["code"] == "no_replica"
            assert response.one("retry-after")
            server.put(pod("a", a.address), port=a.port)
            await are_up(proxy, "a")


async def test_D02_a_pod_that_is_not_ready_rests_and_keeps_what_it_holds(server, tmp_path):
    async with pods(2) as there:
        [a] = there.values()
        server.put(pod("a", a.address), port=a.port)
        async with in_kubernetes(server, tmp_path) as proxy:
            await are_up(proxy, "a")
            await server.watched()
            await predicted(proxy)
            held = proxy.index.blocks("a")
            assert held
            server.put(pod("a", a.address, ready=False), port=a.port)
            await eventually(lambda: proxy.fleet.replicas["a"].held)
            assert (await replicas(proxy))["a"]["state"] == "not ready"
            assert (await ask(proxy, "/ready")).status == 503
            assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 503
            server.put(pod("a", a.address), port=a.port)
            await are_up(proxy, "a")
            assert proxy.index.blocks("a") == held
            assert await predicted(proxy) > 0


@pytest.mark.parametrize("same_name", [True, False])
async def test_D03_a_new_pod_at_the_old_address_inherits_nothing(server, tmp_path, same_name):
    async with pods(2) as there:
        [a] = there.values()
        server.put(pod("a", a.address, uid="one"), port=a.port)
        async with in_kubernetes(server, tmp_path, timeouts={"keepalive": 3600}) as proxy:
            await are_up(proxy, "a")
            await server.watched()
            await predicted(proxy)
            assert await predicted(proxy) > 0
            kept = a.connections[a.requests[1].connection]
            assert not kept.gone.is_set()
            before = proxy.fleet.replicas["a"]
            name = "a" if same_name else "b"
            server.put(pod(name, a.address, uid="two"), port=a.port)
            await eventually(lambda: proxy.fleet.replicas.get(name) not in (None, before))
            await are_up(proxy, name)
            assert (await replicas(proxy))[name]["uid"] == "two"
            assert await predicted(proxy) == 0
            await kept.until_gone()
            assert a.requests[2].connection != a.requests[1].connection


async def test_D03_another_model_at_the_address_is_another_replica(upstreams, proxy_factory):
    [a] = await upstreams(1)
    proxy = await proxy_factory(a, admin_token=TOKEN)
    [name] = proxy.fleet.replicas
    await predicted(proxy)
    assert await predicted(proxy) > 0
    for model in ("n", "m"):
        assert (await admin(proxy, "DELETE", f"/{name}")).status == 204
        a.model = model
        assert (await admin(proxy, "POST", "", {"url": a.url, "name": name})).status == 201
        await are_up(proxy, name)
        assert await predicted(proxy, model) == 0


@pytest.mark.parametrize("tells_start", [True, False])
async def test_D04_a_replica_by_name_follows_its_address(tells_start):
    async with pods(2, 3) as there:
        a, b = there["127.0.0.2"], there["127.0.0.3"]
        is_process(a, 1.0 if tells_start else None)
        is_process(b, 2.0 if tells_start else None)
        zone = Zone({"backend.test": [a.address]})
        settings = {
            "replicas": [{"url": f"http://backend.test:{a.port}", "name": "backend"}],
            "dns": {"interval": 0.1},
            "timeouts": {"keepalive": 3600},
            "getaddrinfo": zone.getaddrinfo,
        }
        async with serving(ready=False, admin_token=TOKEN, **settings) as proxy:
            await are_up(proxy, "backend")
            await predicted(proxy)
            assert await predicted(proxy) > 0
            assert len(a.requests) == 2
            zone.names["backend.test"] = [b.address]  # the old listener stays up, and so do kept connections
            [upstream] = proxy._upkeep.upstreams.values()
            await eventually(lambda: upstream.addresses == (b.address,))

            async def described_anew() -> bool:
                return any(each.path == "/v1/models" for each in b.internal)

            await eventually(described_anew, "the new process is asked what it is")
            assert await predicted(proxy) == 0
            assert (len(a.requests), len(b.requests)) == (2, 1)
            assert b.requests[0].one("host") == f"backend.test:{a.port}".encode()
            assert await predicted(proxy) > 0  # of what it has seen itself


async def test_D04_a_connection_that_was_busy_when_the_name_moved_is_not_used_again():
    async with pods(2, 3) as there:
        a, b = there["127.0.0.2"], there["127.0.0.3"]
        release = asyncio.Event()

        async def slowly(exchange: Exchange) -> None:
            await release.wait()
            await Upstream.reply(exchange)

        a.behaviour = slowly
        zone = Zone({"backend.test": [a.address]})
        settings = {
            "replicas": [f"http://backend.test:{a.port}"],
            "dns": {"interval": 0.1},
            "timeouts": {"keepalive": 3600},
            "getaddrinfo": zone.getaddrinfo,
        }
        async with serving(ready=False, admin_token=TOKEN, **settings) as proxy:
            await eventually(lambda: all(each.up for each in proxy.fleet.replicas.values()))
            async with await Client.connect(proxy.port) as client:
                await client.send(request("POST", CHAT, chat()))
                await a.arrived()
                zone.names["backend.test"] = [b.address]
                [upstream] = proxy._upkeep.upstreams.values()
                await eventually(lambda: upstream.addresses == (b.address,))
                release.set()
                assert (await client.response("POST")).status == 200
            assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 200
            assert (len(a.requests), len(b.requests)) == (1, 1)


async def test_D04_a_refused_connection_looks_the_name_up_before_it_fails():
    async with pods(2, 3) as there:
        a, b = there["127.0.0.2"], there["127.0.0.3"]
        zone = Zone({"backend.test": [a.address]})
        settings = {
            "replicas": [f"http://backend.test:{a.port}"],
            "dns": {"interval": 3600},
            "probes": {"interval": 3600},
            "getaddrinfo": zone.getaddrinfo,
        }
        async with serving(ready=False, admin_token=TOKEN, **settings) as proxy:
            await eventually(lambda: all(each.up for each in proxy.fleet.replicas.values()))
            a.keep_alive = False
            assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 200
            zone.names["backend.test"] = [b.address]
            await a.die()
            response = await exchange(proxy.port, "POST", CHAT, chat())
            assert response.status == 200
            assert len(b.requests) == 1


async def test_D04_a_headless_name_is_as_many_replicas_as_it_has_addresses():
    async with pods(2, 3, 4) as there:
        a, b, c = there.values()
        zone = Zone({"vllm.test": [a.address, b.address]})
        settings = {
            "replicas": [f"http://vllm.test:{a.port}"],
            "discovery": "dns",
            "dns": {"interval": 0.1},
            "getaddrinfo": zone.getaddrinfo,
        }
        async with serving(ready=False, admin_token=TOKEN, **settings) as proxy:
            name = {one.address: f"{one.address}:{one.port}" for one in (a, b, c)}
            await are_up(proxy, name[a.address], name[b.address])
            zone.names["vllm.test"] = [b.address, c.address]
            await are_up(proxy, name[b.address], name[c.address])
            for _ in range(4):
                assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 200
            assert not a.requests
            zone.names.clear()

            async def told() -> bool:
                return not (await ask(proxy, "/ready")).json()["discovery"]["up"]

            await eventually(told)
            ready = await ask(proxy, "/ready")
            assert ready.status == 200
            assert "vllm.test" in ready.json()["discovery"]["why"]
            assert await metric(proxy, "warmroute_discovery_up") == {(("source", "dns"),): 0.0}
            await are_up(proxy, name[b.address], name[c.address])


async def test_a_start_without_dns_waits_for_nobody_and_says_why():
    zone = Zone({})
    settings = {"replicas": ["http://vllm.test:1"], "discovery": "dns", "getaddrinfo": zone.getaddrinfo}
    async with serving(ready=False, admin_token=TOKEN, **settings) as proxy:
        ready = await ask(proxy, "/ready")
        assert ready.status == 503
        assert "vllm.test cannot be looked up" in ready.json()["discovery"]["why"]


async def test_D04_behind_a_name_with_https_the_certificate_is_the_names(tmp_path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("DNS:vllm.test"))
    async with Upstream(address="127.0.0.2", tls=context) as a:
        zone = Zone({"vllm.test": [a.address]})
        settings = {
            "replicas": [f"https://vllm.test:{a.port}"],
            "discovery": "dns",
            "tls": {"upstream_ca": authority.ca},
            "getaddrinfo": zone.getaddrinfo,
        }
        async with serving(ready=False, admin_token=TOKEN, **settings) as proxy:
            name = f"{a.address}:{a.port}"
            await are_up(proxy, name)
            assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 200
            assert (await admin(proxy, "POST", f"/{name}/reset_prefix_cache")).status == 200
            assert len(a.requests) == 2
            await admin(proxy, "DELETE", f"/{name}")
            await admin(
                proxy, "POST", "", {"url": a.url, "name": "unnamed"}
            )  # the certificate is not its own
            await proxy._upkeep.probes.look("unnamed")
            assert not proxy.fleet.replicas["unnamed"].up
