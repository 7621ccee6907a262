"""X02 and X06 as a client sees them: whatever becomes of Redis, requests go on, and sharing comes back.

Two proxies with a common index, in front of simulated replicas that publish events or do not. How the link
and the pool behave, layer by layer, is tested in `tests/integration`. That requests wait for nothing is
shown, not timed: they are answered while nothing that was ever asked of Redis is.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from bench.engine import EventOptions, RunningReplica, serve
from proxy.app import Proxy
from proxy.config import Settings
from proxy.exchange import Exchanges
from proxy.shared.client import Link
from tests.support import dialect
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import in_flight
from tests.support.http import Response
from tests.support.lossy_relay import LossyRelay
from tests.support.redis import PATIENCE, Server
from tests.support.replicas import FAST
from tests.support.tcp_relay import Relay

BLOCKS = 10
TOKENS = BLOCKS * FAST.block_size + 1
ROOMY = replace(FAST, cache_tokens=1 << 20)
"""Never full: on a slow machine what is shared is asked for many times, with a fresh prompt each."""
JSON = (("Content-Type", "application/json"),)
LOSSES = 12
MODES = pytest.mark.parametrize("events", [False, True], ids=["learned", "events"])


class Fleet(NamedTuple):
    """Two proxies, and a way to start more of them, in front of two replicas."""

    a: Proxy
    b: Proxy
    replicas: list[RunningReplica]
    join: Callable[[], Awaitable[Proxy]]


@asynccontextmanager
async def fleet(redis_url: str, *, events: bool) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        options = EventOptions() if events else None
        running = await stack.enter_async_context(serve(ROOMY, ports=(0, 0), model="m", events=options))
        named = [{"url": one.url, "name": f"r{number}"} for number, one in enumerate(running)]
        settings: dict[str, Any] = {"redis_url": redis_url, "secret": "s" * 32, "replicas": named}

        async def join() -> Proxy:
            made = Proxy(Settings(port=0, log_level="error", probes={"interval": 0.2}, **settings))
            return await stack.enter_async_context(made)

        yield Fleet(await join(), await join(), running, join)


async def ask(proxy: Proxy, prompt: list[int]) -> Response:
    """A completion; its replica and the prediction are in its head. Every request must succeed."""
    body = dialect.body(prompt=prompt, max_tokens=1)
    response = await exchange(proxy.port, "POST", "/v1/completions", body, JSON)
    assert response.status == 200, bytes(response.body)
    return response


def predicted(response: Response) -> int:
    return int(response.one("x-warmroute-predicted-cached-tokens") or b"-1")


_numbers = count()


def fresh() -> list[int]:
    """A prompt of whole blocks and one token, which nothing else begins like."""
    return Random(f"X/{next(_numbers)}").choices(range(100, 1000), k=TOKENS)


async def told(one: Proxy, other: Proxy) -> int:
    """What the other proxy foretells of a prompt that only the first one has seen."""
    prompt = fresh()
    first = await ask(one, prompt)
    assert predicted(first) == 0
    answer = await ask(other, prompt)
    if predicted(answer):
        assert answer.one("x-warmroute-replica") == first.one("x-warmroute-replica")
    return predicted(answer)


async def shared(*proxies: Proxy) -> None:
    """Wait until each proxy knows what the next one has placed."""
    for one, other in zip(proxies, (*proxies[1:], proxies[0]), strict=True):

        async def all_of_it(one: Proxy = one, other: Proxy = other) -> bool:
            return await told(one, other) == TOKENS - 1

        await eventually(all_of_it, "what one proxy placed is foretold by another", within=PATIENCE)


async def goes_on(*proxies: Proxy) -> None:
    """Requests succeed, many at once, and each proxy still finds its own prompts again."""
    prompts = [fresh() for _ in range(10)]
    await asyncio.gather(*(ask(proxy, prompt) for proxy in proxies for prompt in prompts))
    for proxy in proxies:
        prompt = fresh()
        first = await ask(proxy, prompt)
        again = await ask(proxy, prompt)
        assert (predicted(first), predicted(again)) == (0, TOKENS - 1)
        assert first.one("x-warmroute-replica") == again.one("x-warmroute-replica")


async def gone(*proxies: Proxy) -> None:
    """Wait until the proxies have noticed that Redis is away."""
    for proxy in proxies:
        link = proxy._sharing.link
        assert link is not None
        await eventually(lambda link=link: not link.up, "Redis is known to be away", within=PATIENCE)


@MODES
async def test_X02_a_redis_that_was_never_there_and_comes(tmp_path: Path, events: bool):
    async with Server(tmp_path) as server:
        await server.kill()  # now its port is closed
        async with fleet(server.url, events=events) as (a, b, *_):
            await goes_on(a, b)
            if not events:
                assert await told(a, b) == 0
            await server.start()
            await shared(a, b)


@MODES
async def test_X02_a_redis_that_is_stopped_and_goes_on(tmp_path: Path, events: bool):
    async with Server(tmp_path) as server, fleet(server.url, events=events) as (a, b, *_):
        await shared(a, b)
        server.pause()
        try:
            await goes_on(a, b)  # not noticed yet
            await gone(a, b)
            await goes_on(a, b)
            if not events:
                assert await told(a, b) == 0
        finally:
            server.resume()
        await shared(a, b)


@MODES
async def test_X02_a_black_hole(tmp_path: Path, events: bool):
    async with (
        Server(tmp_path) as server,
        Relay(server.port) as relay,
        fleet(relay.url, events=events) as (a, b, *_),
    ):
        await shared(a, b)
        relay.swallowing = True
        await goes_on(a, b)
        await gone(a, b)
        await goes_on(a, b)
        relay.swallowing = False
        await shared(a, b)


@MODES
async def test_X02_a_line_that_loses_5_percent_of_its_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: bool
):
    """What is lost comes late and holds up what follows: the index is shared all the same.

    No request has a part in that: none ever runs a command.
    """
    answering: set[asyncio.Task[Any] | None] = set()
    asking: set[asyncio.Task[Any] | None] = set()
    answer, run = Exchanges.answer, Link._run

    async def noted_answer(self: Exchanges, *details: Any) -> Any:
        answering.add(asyncio.current_task())
        return await answer(self, *details)

    async def noted_run(self: Link, *details: Any, **more: Any) -> Any:
        asking.add(asyncio.current_task())
        return await run(self, *details, **more)

    monkeypatch.setattr(Exchanges, "answer", noted_answer)
    monkeypatch.setattr(Link, "_run", noted_run)
    async with (
        Server(tmp_path) as server,
        LossyRelay(server.port, seed=5) as relay,
        fleet(relay.url, events=events) as (a, b, *_),
    ):
        await shared(a, b)
        relay.loss = 0.05
        while relay.lost < LOSSES:
            await goes_on(a, b)
            await shared(a, b)
        assert answering
        assert asking
        assert not answering & asking
        relay.loss = 0.0
        await shared(a, b)
        for proxy in (a, b):
            link = proxy._sharing.link
            await eventually(lambda link=link: link.up, "Redis is there", within=PATIENCE)


@MODES
async def test_X02_a_redis_that_comes_back_empty_is_filled_again(tmp_path: Path, events: bool):
    async with Server(tmp_path) as server, fleet(server.url, events=events) as (a, b, replicas, join):
        await shared(a, b)
        before = [fresh() for _ in range(4)]
        homes = [(await ask(a, prompt)).one("x-warmroute-replica") for prompt in before]
        await server.kill()
        await gone(a, b)
        await goes_on(a, b)
        await server.start()
        await shared(a, b)
        if events:  # what was known before the outage is in Redis again, for a proxy that was not there

            async def written() -> bool:
                sizes = [await server.run("SCARD", key) for key in await sets(server)]
                return sum(sizes) == sum(one.replica.model.cache.cached for one in replicas)

            await eventually(written, "Redis holds what the replicas hold", within=PATIENCE)
            late = await join()

            def read() -> bool:
                return all(
                    late.index.confirmed_blocks(f"r{number}") == one.replica.model.cache.cached
                    for number, one in enumerate(replicas)
                )

            await eventually(read, "the late proxy knows what the replicas hold", within=PATIENCE)
            for prompt, home in zip(before, homes, strict=True):
                answer = await ask(late, prompt)
                assert (predicted(answer), answer.one("x-warmroute-replica")) == (TOKENS - 1, home)


@MODES
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_X02_no_request_waits_for_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: bool, path: str
):
    """Redis never answers again, and the link never gives up: a request that waited for either would hang."""
    waiting = asyncio.Event()

    async def never(_self: Link, *_: Any, **__: Any) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    async with Server(tmp_path) as server, fleet(server.url, events=events) as (a, b, *_):
        await shared(a, b)
        monkeypatch.setattr(Link, "_run", never)
        for stream in (False, True):
            fields = {"max_tokens": 4, "stream": stream}
            body = {"/v1/completions": dialect.body(prompt=fresh(), **fields)}
            body["/v1/chat/completions"] = dialect.chat(**fields)
            for proxy in (a, b):
                for _ in range(5):
                    assert (await exchange(proxy.port, "POST", path, body[path], JSON)).status == 200
        await goes_on(a, b)
        await eventually(waiting.is_set, "something else has asked Redis meanwhile")
        assert (await exchange(a.port, "GET", "/ready")).status == 200
        assert (await exchange(a.port, "GET", "/metrics")).status == 200
        monkeypatch.undo()


@MODES
@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru", "volatile-lru"])
async def test_X06_a_redis_without_room(tmp_path: Path, events: bool, policy: str):
    async with Server(tmp_path) as server, fleet(server.url, events=events) as (a, b, replicas, _):
        await server.run("SET", "somebody else's", "x" * 1000)
        await shared(a, b)
        await server.run("CONFIG", "SET", "maxmemory-policy", policy)
        await server.run("CONFIG", "SET", "maxmemory", "1")
        await goes_on(a, b)
        await goes_on(a, b)
        await server.run("CONFIG", "SET", "maxmemory", "0")
        await shared(a, b)
        if events:

            async def agrees() -> bool:
                held = {one.url: one.replica.model.cache.cached for one in replicas}
                return all(
                    proxy.index.blocks(f"r{number}") == held[one.url]
                    for proxy in (a, b)
                    for number, one in enumerate(replicas)
                )

            await eventually(agrees, "both proxies know what the replicas hold", within=PATIENCE)
        if policy == "noeviction":
            assert await server.run("EXISTS", "somebody else's") == 1


@MODES
async def test_X06_what_was_in_flight_when_redis_lost_everything_is_released_once(
    tmp_path: Path, events: bool
):
    async with Server(tmp_path) as server, fleet(server.url, events=events) as (a, b, *_):
        await shared(a, b)
        body = dialect.body(prompt=fresh(), max_tokens=200, ignore_eos=True)
        sent = [exchange(a.port, "POST", "/v1/completions", body, JSON) for _ in range(4)]
        running = [asyncio.ensure_future(each) for each in sent]

        async def all_run() -> bool:
            return sum(await in_flight(a)) == len(running)

        await eventually(all_run)
        await server.run("FLUSHALL")
        for response in await asyncio.gather(*running):
            assert response.status == 200

        async def none() -> bool:
            return not any([*await in_flight(a), *await in_flight(b)])

        await eventually(none, "nothing is in flight")
        await shared(a, b)
        await eventually(none, "nothing is in flight")


async def sets(server: Server) -> list[bytes]:
    """The keys under which Redis holds replicas' blocks."""
    found: list[bytes] = await server.run("KEYS", "*}:r:*")
    return found


def test_the_prompts_of_these_tests_begin_differently():
    assert array("I", fresh()) != array("I", fresh())
