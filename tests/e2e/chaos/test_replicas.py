"""Replicas that are killed, stopped, slowed and cut off under load.

What must hold whatever happens: a request whose answer had not begun is answered; nothing is generated twice
on replicas that live; every count returns to zero; `/ready` tells the truth; and all replicas serve again.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from proxy.app import Proxy
from proxy.config import Settings
from tests.support.crowd import Asked, Crowd
from tests.support.eventually import eventually
from tests.support.fixtures import ask, idle, metric, total
from tests.support.replica_process import ReplicaProcess, generated_twice
from tests.support.tcp_relay import Relay

PROBES = {"interval": 0.1, "timeout": 0.5, "misses": 3}
CLIENTS = 12
ENOUGH = 60
"""Answers that show that things go on."""


@asynccontextmanager
async def proxy_for(*urls: str, **settings: Any) -> AsyncIterator[Proxy]:
    settings = {"port": 0, "tokenizer": "bytes", "redis_url": "none", "log_level": "error", **settings}
    async with Proxy(Settings(replicas=urls, probes=PROBES, **settings)) as proxy:
        await eventually(lambda: all_up(proxy, len(urls)), "every replica is up")
        yield proxy


async def all_up(proxy: Proxy, count: int) -> bool:
    return await total(proxy, "warmroute_replica_up") == count


async def ready(proxy: Proxy) -> int:
    return (await ask(proxy, "/ready")).status


async def down(proxy: Proxy, name: str) -> bool:
    return not await total(proxy, "warmroute_replica_up", replica=name)


async def serves(crowd: Crowd, replica: ReplicaProcess) -> None:
    """Wait until a replica generates again."""
    before = replica.count("end")
    await eventually(lambda: replica.count("end") >= before + 5, "it serves again", within=30)


async def at_rest(proxy: Proxy) -> None:
    """Nothing is left of what was."""
    await idle(proxy)
    assert not sum((await metric(proxy, "warmroute_replica_queued_tokens")).values())
    assert not sum((await metric(proxy, "warmroute_queue_length")).values())


async def test_a_replica_is_killed_and_comes_back(replicas):
    victim = replicas[0]
    async with proxy_for(*(each.url for each in replicas)) as proxy:
        async with Crowd(lambda: [proxy.port], CLIENTS) as crowd:
            for prefill in (0.0, 9.0):  # within milliseconds of being asked, and after a while
                await crowd.answers(ENOUGH)
                victim.slow(prefill)
                await crowd.answers(2 * ENOUGH)
                await victim.kill()
                victim.slow(0.0)
                assert await ready(proxy) == 200
                await crowd.answers(ENOUGH)
                await victim.start()
                await serves(crowd, victim)
        assert not crowd.lost()
        assert {each.replica for each in crowd.broken()} <= {victim.name}
        assert len(crowd.broken()) <= 2 * CLIENTS
        assert not generated_twice(replicas)
        await eventually(lambda: all_up(proxy, 3), "all are up")
        await at_rest(proxy)


async def test_all_replicas_are_killed_and_come_back(replicas):
    async with proxy_for(*(each.url for each in replicas)) as proxy:
        async with Crowd(lambda: [proxy.port], CLIENTS) as crowd:
            await crowd.answers(ENOUGH)
            for each in replicas:
                await each.kill()

            async def unready() -> bool:
                return await ready(proxy) == 503

            await eventually(unready, "/ready tells that nothing is usable")
            told = crowd.sent  # what was sent before may still be on its way

            def later() -> list[Asked]:
                return [each for each in crowd.asked if each.number >= told]

            await eventually(lambda: len(later()) > CLIENTS, "requests are turned away")
            for each in later():
                assert each.response is not None
                assert (each.response.status, each.response.error["code"]) == (503, "no_replica")
                assert int(each.response.one("retry-after") or 0) >= 1
            for each in replicas:
                await each.start()
                await serves(crowd, each)
            assert await ready(proxy) == 200
            await crowd.answers(ENOUGH)
        assert not generated_twice(replicas)
        attempts = sum(each.count("begin") for each in replicas)
        assert attempts <= len(crowd.asked)  # an outage is no storm
        await at_rest(proxy)


async def test_a_replica_is_stopped_and_goes_on(replicas):
    victim = replicas[0]
    async with proxy_for(*(each.url for each in replicas)) as proxy:
        async with Crowd(lambda: [proxy.port], CLIENTS) as crowd:
            await crowd.answers(ENOUGH)
            victim.stop()
            await eventually(lambda: down(proxy, victim.name), "it is noticed")
            assert await ready(proxy) == 200
            victim.resume()  # those that hang there go on: they were not sent to another
            await serves(crowd, victim)
        assert not crowd.lost()
        assert not crowd.broken()
        assert not generated_twice(replicas)
        await at_rest(proxy)


async def test_a_replica_is_slow_and_gets_less(replicas):
    victim, *others = replicas
    async with proxy_for(*(each.url for each in replicas)) as proxy:
        async with Crowd(lambda: [proxy.port], CLIENTS) as crowd:
            await crowd.answers(ENOUGH)
            victim.slow(1.0)  # probes wait for half of that

            async def suspect() -> bool:
                return bool(await total(proxy, "warmroute_replica_suspect", replica=victim.name))

            await eventually(suspect, "it is suspect")
            before = [each.count("begin") for each in replicas]
            await crowd.answers(2 * ENOUGH)
            mine, *theirs = (
                each.count("begin") - count for each, count in zip(replicas, before, strict=True)
            )
            assert mine < min(theirs) / 2
            assert await total(proxy, "warmroute_replica_cache_blocks", replica=victim.name)
            victim.slow(0.0)
            await eventually(lambda: all_up(proxy, 3), "all are up")
            await serves(crowd, victim)
        assert not crowd.lost()
        assert not crowd.broken()
        assert not generated_twice(replicas)
        assert len(others) == 2
        await at_rest(proxy)


async def test_a_replica_is_cut_off_and_found_again(replicas):
    victim, *others = replicas
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(Relay(victim.port))
        between = f"127.0.0.1:{relay.port}"
        timeouts = {"first_byte": 2.0, "idle": 2.0}
        urls = [f"http://{between}", *(each.url for each in others)]
        proxy = await stack.enter_async_context(proxy_for(*urls, timeouts=timeouts))
        async with Crowd(lambda: [proxy.port], CLIENTS) as crowd:
            await crowd.answers(ENOUGH)
            relay.swallowing = True
            await eventually(lambda: down(proxy, between), "it is noticed")
            before = victim.count("begin")
            await crowd.answers(ENOUGH)
            assert victim.count("begin") == before
            assert await ready(proxy) == 200
            relay.swallowing = False
            await serves(crowd, victim)
        # Whoever was there may be generating still: those are told, in time, and nobody else is.
        assert len(crowd.lost()) + len(crowd.broken()) <= CLIENTS
        assert {each.response.status for each in crowd.lost() if each.response} <= {502, 504}
        assert {each.replica for each in crowd.broken()} <= {between}
        assert not generated_twice(replicas)
        await at_rest(proxy)
