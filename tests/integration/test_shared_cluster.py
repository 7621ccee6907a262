"""An index shared over a cluster of three masters: each model's pool lives on one, by its hash tag."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from bench.engine import EventOptions, serve
from proxy.app import Proxy
from proxy.config import Settings
from proxy.shared.layout import Names
from tests.support import dialect
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.redis import PATIENCE, Nodes, cluster
from tests.support.replicas import FAST

TOKENS = 10 * FAST.block_size + 1
JSON = [("Content-Type", "application/json")]
_numbers = count()


class Fleet(NamedTuple):
    """Two proxies in front of three models, each of two replicas."""

    nodes: Nodes
    models: list[str]
    """One for each master, in their order."""
    proxies: list[Proxy]


def one_for_each(nodes: Nodes) -> list[str]:
    """Names of models whose pools belong to the first, the second and the third master."""
    names = [f"model-{number}" for number in range(999)]
    tags = {name: Names("warmroute", name).meta for name in names}
    return [next(name for name in names if nodes.owner(tags[name]) is server) for server in nodes.servers]


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(cluster(tmp_path))
        models = one_for_each(nodes)
        replicas = []
        for model in models:
            running = serve(FAST, ports=(0, 0), model=model, events=EventOptions())
            replicas += [one.url for one in await stack.enter_async_context(running)]
        proxies = []
        for _ in range(2):
            settings = Settings(
                port=0,
                log_level="error",
                replicas=replicas,
                redis_url=nodes.url,
                secret="s" * 32,
                probes={"interval": 0.2},
            )
            proxies.append(await stack.enter_async_context(Proxy(settings)))
        yield Fleet(nodes, models, proxies)


async def ask(proxy: Proxy, model: str, prompt: list[int]) -> int:
    """A request, which must succeed; the cached tokens foretold for it."""
    body = dialect.body(model=model, prompt=prompt, max_tokens=1)
    answer = await exchange(proxy.port, "POST", "/v1/completions", body, JSON)
    assert answer.status == 200, bytes(answer.body)
    return int(answer.one("x-warmroute-predicted-cached-tokens") or b"-1")


async def shares(fleet: Fleet, model: str) -> None:
    """Wait until the second proxy knows what the first has placed."""
    one, other = fleet.proxies

    async def so() -> bool:
        prompt = Random(f"cluster/{next(_numbers)}").choices(range(100, 1000), k=TOKENS)
        await ask(one, model, prompt)
        return await ask(other, model, prompt) == TOKENS - 1

    await eventually(so, f"{model} is shared", within=PATIENCE)


async def test_each_pool_lives_on_one_master_whose_death_costs_no_request(fleet: Fleet):
    for model in fleet.models:
        await shares(fleet, model)
    for server, model in zip(fleet.nodes.servers, fleet.models, strict=True):
        keys = await server.run("KEYS", "*")
        tag = Names("warmroute", model).tag.encode()
        assert keys
        assert all(key.startswith(tag) for key in keys), keys
        assert await server.run("XLEN", Names("warmroute", model).log)

    await _a_master_dies(fleet)


async def _a_master_dies(fleet: Fleet) -> None:
    """That costs no request, and its pool comes back."""
    server = fleet.nodes.servers[1]
    await server.kill()
    for proxy in fleet.proxies:
        link = proxy._sharing.link
        assert link is not None
        await eventually(lambda link=link: not link.up, "that is noticed", within=PATIENCE)
    prompt = Random("cluster/away").choices(range(100, 1000), k=TOKENS)
    await asyncio.gather(*(ask(proxy, model, prompt) for proxy in fleet.proxies for model in fleet.models))
    assert await server.start()
    for model in fleet.models:
        await shares(fleet, model)
