"""Fixtures: upstreams, and proxies in front of them, stopped at the end of their test.

Every test that uses them also checks that whatever the proxy sent upstream was strictly well framed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.app import Proxy
from proxy.config import Settings
from proxy.names import GetAddrInfo
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.http import Response
from tests.support.upstream import Upstream

ProxyFactory = Callable[..., Awaitable[Proxy]]
UpstreamFactory = Callable[..., Awaitable[list[Upstream]]]


@asynccontextmanager
async def serving(
    *upstreams: Upstream, ready: bool = True, getaddrinfo: GetAddrInfo | None = None, **settings: Any
) -> AsyncIterator[Proxy]:
    """A proxy in front of these upstreams, in this event loop, ready once entered.

    `getaddrinfo` looks names up in place of the system's. Nested settings (`timeouts`, `limits`, `probes`)
    are given as mappings and keep the defaults of the rest.
    """
    settings = {
        "port": 0,
        "replicas": [upstream.url for upstream in upstreams],
        "tokenizer": "bytes",
        "redis_url": "none",
        "shutdown_grace": 0.2,
        "log_level": "warning",
        **settings,
        "probes": {"interval": 0.2, **settings.get("probes", {})},
    }
    async with Proxy(Settings(**settings), getaddrinfo=getaddrinfo) as proxy:
        if ready:

            async def all_up() -> bool:
                up = await metric(proxy, "warmroute_replica_up")
                return sum(up.values()) == len(upstreams) and (await ask(proxy, "/ready")).status == 200

            await eventually(all_up, "every replica is up")
        yield proxy


async def ask(proxy: Proxy, path: str) -> Response:
    """One GET on a connection of its own."""
    return await exchange(proxy.port, "GET", path)


async def metric(proxy: Proxy, name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of this name that carry `labels`, by their sorted labels."""
    text = bytes((await ask(proxy, "/metrics")).body).decode()
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


async def total(proxy: Proxy, name: str, **labels: str) -> float:
    """The sum over the samples of this name that carry `labels`."""
    return sum((await metric(proxy, name, **labels)).values())


async def counts(proxy: Proxy, name: str, value: float, **labels: str) -> None:
    """Wait until `total` is `value`: what ends a request books it, which the client cannot see happen."""

    async def reached() -> bool:
        return await total(proxy, name, **labels) == value

    await eventually(reached, f"{name}{labels} is {value}")


async def in_flight(proxy: Proxy) -> list[float]:
    """What each replica has in flight, by its name; never below zero."""
    loads = await metric(proxy, "warmroute_replica_inflight")
    assert loads
    assert all(load >= 0 for load in loads.values()), loads
    return [load for _, load in sorted(loads.items())]


async def idle(proxy: Proxy) -> None:
    """Wait until no replica has anything in flight."""

    async def none() -> bool:
        return not any(await in_flight(proxy))

    await eventually(none, "nothing is in flight")


@pytest.fixture
async def upstreams() -> AsyncIterator[UpstreamFactory]:
    """Starts as many replicas as it is asked for."""
    started: list[Upstream] = []
    async with AsyncExitStack() as stack:

        async def start(count: int, **kind: Any) -> list[Upstream]:
            fresh = [await stack.enter_async_context(Upstream(**kind)) for _ in range(count)]
            started.extend(fresh)
            return fresh

        yield start
    for one in started:
        assert not one.violations
        assert not one.faults, one.faults


@pytest.fixture
async def upstream(upstreams: UpstreamFactory) -> Upstream:
    """One replica."""
    return (await upstreams(1))[0]


@pytest.fixture
async def proxy_factory() -> AsyncIterator[ProxyFactory]:
    """Starts proxies in front of the upstreams it is given: see `serving`."""
    async with AsyncExitStack() as stack:

        async def start(*upstreams: Upstream, **settings: Any) -> Proxy:
            return await stack.enter_async_context(serving(*upstreams, **settings))

        yield start
