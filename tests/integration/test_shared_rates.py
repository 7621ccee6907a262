"""One minute's worth for all proxies together, over a real Valkey."""

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace
from uuid import uuid4

import pytest
from redis.exceptions import RedisError

from proxy.errors import RateLimited
from proxy.keys_file import Caller
from proxy.rates import FIRST, Rates
from proxy.redis_url import parse
from proxy.shared import rates as shared
from proxy.shared.client import Link
from proxy.shared.rates import Leases
from tests.support.eventually import eventually
from tests.support.sharing import own_valkey, valkey

__all__ = ["own_valkey", "valkey"]

TEN = Caller("team-canary", requests_per_minute=10)
MANY = Caller("team-many", requests_per_minute=600)


class Proxy:
    """The part of a proxy that counts."""

    def __init__(self, link: Link, namespace: str, origin: str) -> None:
        self.link = link
        self.rates = Rates()
        self.leases = Leases(link, self.rates, namespace=namespace, secret=b"s", origin=origin)

    def let_in(self, caller: Caller, times: int) -> int:
        """How many of so many requests are let in now."""
        count = 0
        for _ in range(times):
            try:
                self.rates.request(caller, time.monotonic())
            except RateLimited:
                break
            count += 1
        return count


@pytest.fixture
async def proxies():
    """Starts proxies of one namespace at a server."""
    async with AsyncExitStack() as stack:
        namespace = f"test-{uuid4().hex[:12]}"

        async def start(server, count: int) -> list[Proxy]:
            started = []
            for number in range(count):
                link = Link(parse(server.url))
                await link.start()
                stack.push_async_callback(link.close)
                started.append(Proxy(link, namespace, f"p{number}"))
            return started

        yield SimpleNamespace(start=start, namespace=namespace)


def refilled(since: float, per_minute: float) -> float:
    return (time.monotonic() - since) * per_minute / 60


async def test_one_proxy_lets_in_a_minutes_worth_at_once(valkey, proxies):
    (one,) = await proxies.start(valkey, 1)
    since = time.monotonic()
    count = one.let_in(TEN, 1)
    await one.leases.round()
    count += one.let_in(TEN, 99)
    assert 10 <= count <= 10 + refilled(since, 10) + 1
    await one.leases.round()
    assert one.let_in(TEN, 99) <= refilled(since, 10) + 1


async def test_several_proxies_share_a_minutes_worth(valkey, proxies):
    three = await proxies.start(valkey, 3)
    for each in three:
        each.rates.leased = True
    since, count = time.monotonic(), 0
    for _ in range(12):
        for each in three:
            count += each.let_in(MANY, 40)
        for each in three:
            await each.leases.round()
    # What was overdrawn before the first round has been paid off by now.
    assert 600 * (1 - FIRST) <= count <= 600 + refilled(since, 600) + 3
    assert all(each.let_in(MANY, 600) < 600 for each in three)


async def test_before_the_first_round_each_proxy_lets_in_its_part_at_most(valkey, proxies):
    four = await proxies.start(valkey, 4)
    for each in four:
        each.rates.leased = True
    assert [each.let_in(MANY, 600) for each in four] == [60] * 4


async def test_what_one_proxy_does_not_spend_another_may(valkey, proxies):
    one, two = await proxies.start(valkey, 2)
    assert one.let_in(MANY, 1) == 1
    since = time.monotonic()
    await one.leases.round()  # it holds all that is left
    assert two.let_in(MANY, 1) == 1
    await two.leases.round()
    assert two.let_in(MANY, 999) <= refilled(since, 600) + 1
    await one.leases.round()  # gives back, and keeps a part
    await two.leases.round()
    assert two.let_in(MANY, 999) >= 100


async def test_a_proxy_that_closes_gives_its_lease_back(valkey, proxies):
    one, two = await proxies.start(valkey, 2)
    assert one.let_in(MANY, 100) == 100
    await one.leases.round()
    await one.leases.close()
    two.rates.leased = True
    count = two.let_in(MANY, 1)
    await two.leases.round()
    count += two.let_in(MANY, 999)
    assert 490 <= count <= 500 + 60


async def test_what_is_overdrawn_is_paid_off_by_all(valkey, proxies):
    one, two = await proxies.start(valkey, 2)
    words = Caller("words", tokens_per_minute=600)
    one.rates.prompt(words, 6000, time.monotonic())
    await one.leases.round()
    two.rates.leased = True
    two.rates.prompt(words, 1, time.monotonic())
    await two.leases.round()
    for each in (one, two):
        with pytest.raises(RateLimited) as caught:
            each.rates.prompt(words, 1, time.monotonic())
        assert caught.value.retry_after > 500


async def test_X01_nothing_of_a_caller_can_be_read_in_redis(valkey, proxies):
    (one,) = await proxies.start(valkey, 1)
    address = Caller("203.0.113.77", requests_per_minute=10)
    one.let_in(TEN, 1)
    one.let_in(address, 1)
    await one.leases.round()
    with valkey.client() as client:
        names = client.keys(f"*{proxies.namespace}*")
        assert len(names) == 2
        held = b" ".join([*names, *(b"%r" % client.hgetall(name) for name in names)])
        assert all(client.pttl(name) > 0 for name in names), "it runs out by itself"
    assert b"canary" not in held
    assert b"203.0.113.77" not in held


async def test_a_bucket_is_gone_when_it_would_be_full(valkey, proxies):
    (one,) = await proxies.start(valkey, 1)
    one.let_in(TEN, 5)
    await one.leases.round()
    with valkey.client() as client:
        (name,) = client.keys(f"*{proxies.namespace}*")
        assert 50_000 < client.pttl(name) <= 60_000 + 10_000


async def test_two_callers_and_two_kinds_are_kept_apart(valkey, proxies):
    (one,) = await proxies.start(valkey, 1)
    both = Caller("team-canary", requests_per_minute=10, tokens_per_minute=10)
    one.let_in(both, 10)
    one.rates.prompt(both, 3, time.monotonic())
    one.let_in(MANY, 1)
    await one.leases.round()
    left = {(offer.caller, offer.kind): offer.back for offer in one.rates.offers(time.monotonic())}
    assert left["team-canary", "requests"] < 1
    assert 7 <= left["team-canary", "tokens"] < 9
    assert left["team-many", "requests"] == pytest.approx(599, abs=1)


async def test_many_callers_are_settled_in_a_few_calls(valkey, proxies):
    (one,) = await proxies.start(valkey, 1)
    callers = [Caller(str(number), requests_per_minute=10) for number in range(2 * shared.AT_ONCE + 1)]
    assert all(one.let_in(each, 3) == 3 for each in callers)
    before = one.link.commands
    await one.leases.round()
    assert one.link.commands - before <= 2 * 3
    assert all(7 <= one.let_in(each, 99) <= 9 for each in callers)


async def test_without_redis_a_proxy_goes_on_alone_and_comes_back(own_valkey, proxies):
    (one,) = await proxies.start(own_valkey, 1)
    running = asyncio.create_task(one.leases.run())
    try:
        await eventually(lambda: one.rates.leased, "the first round")
        assert one.let_in(TEN, 4) == 4
        own_valkey.stop()
        await eventually(lambda: not one.rates.leased, "it is noticed")
        since = time.monotonic()
        assert one.let_in(TEN, 99) <= 6 + refilled(since, 10) + 2
        own_valkey.start()
        await eventually(lambda: one.rates.leased, "it is noticed")
        assert one.leases.failures >= 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_X02_a_stopped_redis_delays_no_request(own_valkey, proxies, monkeypatch):
    """Rounds wait for it; requests are counted without."""
    (one,) = await proxies.start(own_valkey, 1)
    one.let_in(MANY, 1)
    await one.leases.round()
    os.kill(own_valkey.pid, signal.SIGSTOP)
    try:
        round_ = asyncio.create_task(one.leases.round())
        await asyncio.sleep(0)
        assert one.let_in(MANY, 100) == 100
        with pytest.raises(RedisError):
            await round_
    finally:
        os.kill(own_valkey.pid, signal.SIGCONT)


async def test_a_script_of_this_size_is_known_to_the_server(valkey, proxies):
    """Even after another proxy has flushed the scripts."""
    (one,) = await proxies.start(valkey, 1)
    one.let_in(TEN, 1)
    with valkey.client() as client:
        client.script_flush()
    await one.leases.round()
    assert one.leases.rounds == 1
