"""Proxies that share an index: one of them, or their Redis, is killed, stopped and cut off under load.

Redis is on nobody's way: whatever becomes of it, no request fails, and `/ready` says that it is gone. A proxy
that dies takes only its own requests with it: the replicas stop working for it, and what the other proxies
believed it had there is forgotten.
"""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from proxy.app import Proxy
from proxy.config import Settings
from tests.support.client import exchange
from tests.support.crowd import Crowd
from tests.support.eventually import eventually
from tests.support.fixtures import ask, idle, total
from tests.support.processes import proxy_process
from tests.support.redis import Server
from tests.support.replica_process import generated_twice
from tests.support.tcp_relay import Relay

CLIENTS = 8
ENOUGH = 40
SECRET = "a secret of the tests"
PATIENCE = 30.0


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "redis") as server:
        yield server


async def told(proxy: Proxy, *, up: bool) -> bool:
    response = await ask(proxy, "/ready")
    known = await total(proxy, "warmroute_redis_up")
    return response.status == 200 and response.json()["redis"]["up"] is up and known == up


async def test_redis_is_killed_stopped_and_cut_off(replicas, redis):
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(Relay(redis.port))
        settings = Settings(
            port=0,
            replicas=[each.url for each in replicas],
            tokenizer="bytes",
            redis_url=relay.url,
            secret=SECRET,
            log_level="error",
            probes={"interval": 1.0},
        )
        proxies = [await stack.enter_async_context(Proxy(settings)) for _ in range(2)]

        async def all_told(*, up: bool) -> None:
            for proxy in proxies:
                await eventually(lambda p=proxy: told(p, up=up), f"Redis is up: {up}", within=PATIENCE)

        await all_told(up=True)
        async with Crowd(lambda: [proxy.port for proxy in proxies], CLIENTS) as crowd:

            async def survives(harm: Callable[[], object], repair: Callable[[], object]) -> None:
                await crowd.answers(ENOUGH)
                if (harmed := harm()) is not None:
                    await harmed
                await crowd.answers(ENOUGH)
                await all_told(up=False)
                await crowd.answers(ENOUGH)
                if (repaired := repair()) is not None:
                    await repaired
                await all_told(up=True)

            await survives(redis.kill, redis.start)
            await survives(redis.pause, redis.resume)
            await survives(
                lambda: setattr(relay, "swallowing", True), lambda: setattr(relay, "swallowing", False)
            )
            await crowd.answers(ENOUGH)
        assert not crowd.lost()
        assert not crowd.broken()
        assert not generated_twice(replicas)
        for proxy in proxies:
            await idle(proxy)
        assert {each.proxy for each in crowd.asked} == {proxy.port for proxy in proxies}


async def test_a_proxy_is_stopped_and_killed(replicas, redis):
    urls = [each.url for each in replicas]
    arguments = ["--secret", SECRET, "--log-level", "warning", "--admin-token", "t"]
    async with AsyncExitStack() as stack:
        victim, survivor = [
            await stack.enter_async_context(proxy_process(urls, *arguments, redis_url=redis.url))
            for _ in range(2)
        ]
        for each in (victim, survivor):
            await each.ready()
        asked = [victim.port, survivor.port]
        """What a balancer has."""
        async with Crowd(lambda: asked, CLIENTS) as crowd:
            await crowd.answers(ENOUGH)
            victim.signal(signal.SIGSTOP)
            asked.remove(victim.port)
            answered = Counter(each.proxy for each in crowd.asked)

            def goes_on() -> bool:
                now = Counter(each.proxy for each in crowd.asked)
                return now[survivor.port] >= answered[survivor.port] + ENOUGH

            await eventually(goes_on, "the other one answers", within=PATIENCE)
            victim.signal(signal.SIGCONT)  # whoever waits there is answered
            asked.append(victim.port)
            await crowd.answers(ENOUGH)
            assert not crowd.lost()
            assert not crowd.broken()
            victim.signal(signal.SIGKILL)
            asked.remove(victim.port)
            await crowd.answers(ENOUGH)
        failed = [*crowd.lost(), *crowd.broken()]
        assert {each.proxy for each in failed} <= {victim.port}
        assert len(failed) <= CLIENTS
        assert not generated_twice(replicas)
        assert (await exchange(survivor.port, "GET", "/ready")).status == 200

        def at_rest() -> bool:
            return all(each.count("begin") == each.count("end") + each.count("left") for each in replicas)

        await eventually(at_rest, "the replicas work for nobody who is gone")

        async def forgotten() -> bool:
            token = [("Authorization", "Bearer t")]
            fleet = (await exchange(survivor.port, "GET", "/admin/replicas", headers=token)).json()[
                "replicas"
            ]
            assert all(each["in_flight"] >= 0 for each in fleet)
            return not any(each["in_flight"] for each in fleet)

        await eventually(forgotten, "what the dead one had in flight counts no more", within=PATIENCE)
