"""R07 and R10: the longest match that can be used decides, and a prediction never counts the last token."""

from array import array
from random import Random

import pytest

from policies import registry
from proxy.description import Description
from proxy.errors import NoReplica
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.router import Router, RouteRequest
from tests.support import dialect
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import counts, idle, total
from tests.support.http import Response
from tests.support.upstream import Exchange, Upstream, usage

BLOCK = 16
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def fleet_of(*names: str) -> Fleet:
    fleet = Fleet(lambda: 0.0)
    for name in names:
        fleet.add(name, f"http://{name}", Description("vllm", {"m": None}))
        fleet.mark(name, up=True)
    return fleet


def asking(tokens: int) -> RouteRequest:
    keys = array("Q", range(1, tokens // BLOCK + 1))
    return RouteRequest("m", keys, tokens, float(BLOCK))


@pytest.mark.parametrize("policy", ["prefix_affinity", "prefix_cost"])
@pytest.mark.parametrize("seed", range(5))
def test_R07_the_longest_match_wins(policy, seed):
    fleet, index = fleet_of("A", "B", "C"), MemoryIndex()
    router = Router(fleet, index, registry.create(policy), Random(seed))
    request = asking(1040)
    index.predict("A", request.keys[: 128 // BLOCK])
    index.predict("B", request.keys[: 1024 // BLOCK])
    lease = router.route(request)
    assert (lease.replica.name, lease.matched, lease.available) == ("B", 1024, 1024)


@pytest.mark.parametrize("policy", ["prefix_affinity", "prefix_cost"])
def test_R07_a_replica_that_is_gone_is_ignored_and_forgotten(policy):
    fleet, index = fleet_of("A", "B"), MemoryIndex()
    router = Router(fleet, index, registry.create(policy), Random(1))
    request = asking(8192)
    index.predict("ghost", request.keys[: 4096 // BLOCK])
    index.predict("B", request.keys[: 4096 // BLOCK])
    lease = router.route(request)
    assert (lease.replica.name, lease.available) == ("B", 4096)
    assert index.blocks("ghost") == 0


def test_R07_a_match_on_a_replica_that_takes_nothing_is_not_available():
    fleet, index = fleet_of("A", "B"), MemoryIndex()
    router = Router(fleet, index, registry.create("prefix_cost"), Random(1))
    request = asking(1040)
    index.predict("A", request.keys)
    fleet.mark("A", up=False)
    lease = router.route(request)
    assert (lease.replica.name, lease.matched, lease.available) == ("B", 0, 0)
    assert index.blocks("A") > 0  # a pause loses nothing


def test_R07_an_empty_pool_is_an_error_with_a_time_to_come_back():
    router = Router(fleet_of(), MemoryIndex(), registry.create("prefix_cost"), Random(1))
    with pytest.raises(NoReplica) as raised:
        router.route(asking(100))
    assert raised.value.retry_after


def refused_for_now(response: Response) -> bool:
    assert response.error["code"] == "no_replica"
    assert int(response.one("retry-after") or 0) >= 1
    return response.status == 503


@pytest.mark.parametrize("stream", [True, False])
async def test_R07_no_replica_was_ever_there(upstream, proxy_factory, stream):
    await upstream.stop_listening()
    proxy = await proxy_factory(upstream, ready=False)
    assert refused_for_now(await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=stream)))


@pytest.mark.parametrize("path", [*dialect.routes(), "/v1/embeddings", "/tokenize"])
async def test_R07_all_replicas_are_out_of_rotation(upstreams, proxy_factory, path):
    pair = await upstreams(2)
    proxy = await proxy_factory(*pair, probes={"interval": 60})
    for name in proxy.fleet.replicas:
        proxy.fleet.mark(name, up=False)
    body = {
        **dialect.routes(),
        "/v1/embeddings": dialect.body(input="x"),
        "/tokenize": dialect.body(prompt="x"),
    }
    assert refused_for_now(await exchange(proxy.port, "POST", path, body[path]))
    assert not [each for replica in pair for each in replica.requests]


async def test_R07_all_replicas_die_and_one_comes_back(upstreams, proxy_factory):
    pair = await upstreams(2)
    proxy = await proxy_factory(*pair, probes={"interval": 0.1, "misses": 1})
    for each in pair:
        await each.die()

    async def status() -> int:
        return (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status

    async def unusable() -> bool:
        return await status() == 503

    async def usable() -> bool:
        return await status() == 200

    await eventually(unusable)
    assert refused_for_now(await exchange(proxy.port, "POST", CHAT, dialect.chat()))
    await pair[0].listen()
    await eventually(usable)
    await idle(proxy)


def predicted(response: Response) -> int:
    assert response.status == 200
    return int(response.one("x-warmroute-predicted-cached-tokens") or -1)


@pytest.mark.parametrize(
    ("tokens", "cached"), [(15, 0), (16, 0), (17, 16), (64, 48), (65, 64), (80, 64), (81, 80)]
)
async def test_R10_the_last_token_is_never_predicted(upstream, proxy_factory, tokens, cached):
    proxy = await proxy_factory(upstream)
    prompt = dialect.body(prompt=list(range(100, 100 + tokens)))
    first = await exchange(proxy.port, "POST", COMPLETIONS, prompt)
    assert predicted(first) == 0
    assert first.one("x-warmroute-prompt-tokens") == str(tokens).encode()
    await idle(proxy)
    assert predicted(await exchange(proxy.port, "POST", COMPLETIONS, prompt)) == cached
    await counts(proxy, "warmroute_prefix_tokens_total", 2 * tokens, stage="prompt")
    assert await total(proxy, "warmroute_prefix_tokens_total", stage="available") == cached
    assert await total(proxy, "warmroute_prefix_tokens_total", stage="routed") == cached


async def test_R10_hit_rates_are_tokens_over_the_tokens_of_the_same_requests(
    upstream: Upstream, proxy_factory
):
    proxy = await proxy_factory(upstream)
    replies = [usage(64, 48), usage(1000, None), usage(100, 0), usage(64, 64)]

    async def behave(exchange: Exchange) -> None:
        await exchange.json(
            {"choices": [{"index": 0, "text": "x"}], "usage": replies[len(upstream.requests) - 1]}
        )

    upstream.behaviour = behave
    for _ in replies:
        await exchange(proxy.port, "POST", COMPLETIONS, dialect.body(prompt=list(range(64))))
    await counts(proxy, "warmroute_requests_total", 4)
    assert await total(proxy, "warmroute_cached_tokens_total") == 48 + 0 + 64
    assert await total(proxy, "warmroute_cached_prompt_tokens_total") == 64 + 100 + 64
    assert await total(proxy, "warmroute_replica_cached_tokens_total") == 48 + 0 + 64
    assert await total(proxy, "warmroute_replica_cached_prompt_tokens_total") == 64 + 100 + 64
