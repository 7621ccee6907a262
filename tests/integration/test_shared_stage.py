"""One canary for several proxies, over a real Valkey."""

from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from proxy.canary import Canary, Phase
from proxy.canary_terms import CanaryTerms
from proxy.redis_url import parse
from proxy.shared.client import Link
from proxy.shared.stage import SharedStage
from tests.support.sharing import own_valkey, valkey

__all__ = ["own_valkey", "valkey"]

TERMS = CanaryTerms(policy="round_robin", settle_seconds=0)


class Proxy:
    """The part of a proxy that tries something."""

    def __init__(self, link: Link, namespace: str) -> None:
        self.stage = SharedStage(link, namespace=namespace)
        self.canary = Canary(TERMS, 0.0)
        self.what = "round_robin"
        self.now = 0.0

    async def step(self) -> tuple[Phase, float]:
        self.now += 1
        await self.stage.step(self.canary, self.what, self.now)
        return self.canary.phase, self.canary.percent


@pytest.fixture
async def proxies(valkey):
    async with AsyncExitStack() as stack:
        namespace = f"test-{uuid4().hex[:12]}"

        async def start(count: int) -> list[Proxy]:
            started = []
            for _ in range(count):
                link = Link(parse(valkey.url))
                await link.start()
                stack.push_async_callback(link.close)
                started.append(Proxy(link, namespace))
            return started

        yield start


async def test_what_one_decides_the_others_take_over(proxies):
    a, b = await proxies(2)
    assert await a.step() == await b.step() == (Phase.BASELINE, 0)
    a.canary.promote(2.0)
    assert await a.step() == await b.step() == (Phase.RUNNING, 5)
    b.canary.promote(3.0)
    await b.step()
    assert await a.step() == (Phase.RUNNING, 25)
    a.canary.set_percent(40.0, 4.0)
    await a.step()
    assert await b.step() == (Phase.RUNNING, 40)
    b.canary.promote(5.0)
    assert b.canary.percent == 50, "and goes on from there"
    b.canary.roll_back(5.0, "ttft", "too slow")
    await b.step()
    assert await a.step() == (Phase.ROLLED_BACK, 0)
    assert (a.canary.reason, a.canary.why) == ("ttft", "too slow")
    assert a.canary.step(9.0)[-1].reason == "ttft", "it is told there too"
    await b.step()
    assert b.canary.step(9.0)[-1].phase is Phase.ROLLED_BACK
    assert await a.step() == await b.step() == (Phase.ROLLED_BACK, 0), "and nothing goes in circles"
    assert a.canary.step(10.0) == b.canary.step(10.0) == []


async def test_a_proxy_that_starts_goes_on_where_the_others_are(proxies):
    a, b, c = await proxies(3)
    a.canary.promote(1.0)
    a.canary.promote(1.0)
    await a.step()
    await a.step()
    assert await b.step() == (Phase.RUNNING, 25)
    a.canary.roll_back(2.0)
    await a.step()
    assert await c.step() == (Phase.ROLLED_BACK, 0), "what was rolled back is not tried again by it"
    a.canary.resume(3.0)
    await a.step()
    assert await c.step() == (Phase.RUNNING, 5)


async def test_a_rollback_is_heard_whoever_was_first(proxies):
    a, b = await proxies(2)
    for each in (a, b):
        each.canary.promote(1.0)
        await each.step()
    a.canary.promote(2.0)
    b.canary.roll_back(2.0, "errors", "they fail")
    await a.step()
    await b.step()
    await b.step()
    assert await a.step() == await b.step() == (Phase.ROLLED_BACK, 0)


async def test_others_that_try_something_else_are_left_alone(proxies):
    a, b = await proxies(2)
    b.what = "least_load"
    a.canary.promote(1.0)
    await a.step()
    assert await b.step() == (Phase.BASELINE, 0)
    await b.stage.step(None, "", 1.0)


async def test_without_redis_each_goes_on_by_itself(proxies):
    (a,) = await proxies(1)
    await a.step()
    await a.stage._link.close()
    a.canary.promote(1.0)
    assert await a.step() == (Phase.RUNNING, 5)
    assert a.stage.failures == 1
