"""D01 and Q09 at running proxies: probes that come late, breakers, and what their trials end in."""

import asyncio

import pytest

from proxy import breaker as breakers
from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.fixtures import idle, total
from tests.support.http import request
from tests.support.upstream import Exchange, Upstream

CHAT = "/v1/chat/completions"
QUIET = {"interval": 60, "misses": 100}
"""Probes that say nothing within a test."""


@pytest.fixture
async def pair(upstreams) -> list[Upstream]:
    return await upstreams(2)


def name_of(upstream: Upstream) -> str:
    return upstream.url.removeprefix("http://")


async def state(proxy, upstream: Upstream) -> int:
    return int(await total(proxy, "warmroute_replica_breaker_state", replica=name_of(upstream)))


async def fail(exchange: Exchange) -> None:
    await exchange.answer(b"{}", "500 Broken")


async def trip(proxy, pair: list[Upstream]) -> None:
    """Open the first one's breaker; the proxy sends every other request to it."""
    pair[0].behaviour = fail
    for _ in range(2 * breakers.FAILURES):
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert await state(proxy, pair[0]) == breakers.State.OPEN
    pair[0].requests.clear()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and leases that a test can wait for."""
    monkeypatch.setattr(breakers, "SHORTEST", 0.2)
    monkeypatch.setattr(breakers, "TRIAL_SECONDS", 0.3)


async def until_tried(proxy, upstream: Upstream, count: int) -> None:
    """Send requests until this replica has had `count` of them."""

    async def tried() -> bool:
        async with asyncio.timeout(5):
            await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
        return len(upstream.requests) >= count

    await eventually(tried, f"{count} trials")


@pytest.mark.usefixtures("hasty")
async def test_Q09_a_replica_that_fails_is_left_alone_and_tried_again(pair, proxy_factory):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)
    await trip(proxy, pair)
    for _ in range(10):
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status in {200, 500}
    assert len(pair[0].requests) <= 1
    assert await state(proxy, pair[1]) == breakers.State.CLOSED
    pair[0].behaviour = Upstream.reply

    async def closed() -> bool:
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
        return await state(proxy, pair[0]) == breakers.State.CLOSED

    await eventually(closed, "a trial went well")
    await idle(proxy)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("ending", ["client leaves", "400", "503"])
async def test_Q09_a_trial_that_says_nothing_is_followed_by_another(pair, proxy_factory, ending):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)
    await trip(proxy, pair)
    sick = pair[0]
    if ending == "client leaves":
        sick.behaviour = dialect.hang
        clients: list[Client] = []

        async def on_trial() -> bool:
            clients.append(await Client.connect(proxy.port))
            await clients[-1].send(request("POST", CHAT, dialect.chat()))
            return bool(sick.requests) or not await asyncio.sleep(0.02)

        await eventually(lambda: on_trial() if not sick.requests else True, "a trial")
        for client in clients:
            client.reset()
        await idle(proxy)
    else:

        async def refuse(exchange: Exchange) -> None:
            await exchange.answer(b"{}", f"{ending} No")

        sick.behaviour = refuse
        await until_tried(proxy, sick, 1)
    sick.behaviour = Upstream.reply

    async def closed() -> bool:
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
        return await state(proxy, sick) == breakers.State.CLOSED

    await eventually(closed, "the next trial went well")
    await idle(proxy)


@pytest.mark.usefixtures("hasty")
async def test_Q09_a_trial_that_hangs_is_followed_by_another_and_one_at_a_time(pair, proxy_factory):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)
    await trip(proxy, pair)
    sick = pair[0]
    sick.behaviour = dialect.hang
    clock, clients = asyncio.get_running_loop().time, []
    began = clock()
    while len(clients) < 50 or not sick.requests:
        clients.append(await Client.connect(proxy.port))
        await clients[-1].send(request("POST", CHAT, dialect.chat()))
    await eventually(
        lambda: sum(bool(each.received) for each in clients) + len(sick.requests) >= len(clients)
    )
    assert 1 <= len(sick.requests) <= 1 + (clock() - began) / breakers.TRIAL_SECONDS
    sick.behaviour = Upstream.reply

    async def closed() -> bool:
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
        return await state(proxy, sick) == breakers.State.CLOSED

    await eventually(closed, "a later trial went well")
    for client in clients:
        client.reset()
    await idle(proxy)


async def test_Q09_one_client_whose_requests_all_fail_does_not_shut_out_the_others(pair, proxy_factory):
    """A request that every engine answers with 500 opens every breaker: then none of them says anything."""
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)

    async def behave(exchange: Exchange) -> None:
        await (fail if "poison" in exchange.request.json()["messages"][-1]["content"] else Upstream.reply)(
            exchange
        )

    for each in pair:
        each.behaviour = behave
    poison = dialect.body(messages=[{"role": "user", "content": "poison"}])
    for _ in range(4 * breakers.FAILURES):
        assert (await exchange(proxy.port, "POST", CHAT, poison)).status == 500
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    await idle(proxy)


@pytest.mark.parametrize("status", [400, 404, 422, 429, 503])
async def test_Q09_what_is_not_its_fault_never_opens_a_breaker(pair, proxy_factory, status):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)

    async def behave(exchange: Exchange) -> None:
        await exchange.answer(b"{}", f"{status} No")

    for each in pair:
        each.behaviour = behave
    for _ in range(4 * breakers.FAILURES):
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert [await state(proxy, each) for each in pair] == [0, 0]


async def test_S10_clients_that_leave_never_open_a_breaker(pair, proxy_factory):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)
    for each in pair:
        each.behaviour = dialect.hang
    for count in range(4 * breakers.FAILURES):
        client = await Client.connect(proxy.port)
        await client.send(request("POST", CHAT, dialect.chat()))
        await eventually(lambda count=count: sum(len(each.requests) for each in pair) > count, "it is there")
        client.reset()
    await idle(proxy)
    assert [await state(proxy, each) for each in pair] == [0, 0]


async def test_a_stream_that_dies_is_a_failure(pair, proxy_factory):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET)

    async def die(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(dialect.delta("x"))
        exchange.reset()

    pair[0].behaviour = die
    for _ in range(2 * breakers.FAILURES):
        await exchange(proxy.port, "POST", CHAT, dialect.chat(stream=True))
    assert await state(proxy, pair[0]) == breakers.State.OPEN
    await idle(proxy)


async def down_and_suspect(proxy, upstream: Upstream) -> tuple[bool, bool]:
    name = name_of(upstream)
    up = await total(proxy, "warmroute_replica_up", replica=name)
    return not up, bool(await total(proxy, "warmroute_replica_suspect", replica=name))


class Health:
    """A /health that answers, or is late for as long as the test says."""

    def __init__(self, upstream: Upstream) -> None:
        self.late = 0
        """Probes that have been kept waiting."""
        self.slow = False
        upstream.paths["/health"] = self

    async def __call__(self, exchange: Exchange) -> None:
        if self.slow:
            self.late += 1
            await exchange.hang()
        else:
            await exchange.answer(b"")


async def test_D01_a_late_probe_makes_a_suspect_and_some_more_a_dead_replica(pair, proxy_factory):
    probes = {"interval": 0.02, "timeout": 0.1, "misses": 3}
    proxy = await proxy_factory(*pair, policy="prefix_cost", probes=probes)
    health, sick = Health(pair[0]), pair[0]

    async def is_(down: bool, suspect: bool) -> bool:
        return await down_and_suspect(proxy, sick) == (down, suspect)

    health.slow = True
    await eventually(lambda: health.late == 1, "one probe waits")
    health.slow = False  # one of many
    await eventually(lambda: is_(False, True), "suspect, and up")
    await eventually(lambda: is_(False, False), "all is well again")
    health.slow = True  # and several in a row
    await eventually(lambda: is_(True, True), "down")
    assert health.late >= 4
    health.slow = False
    await eventually(lambda: is_(False, False), "up again")


async def test_D01_what_a_suspect_holds_is_kept_and_it_is_used_again(pair, proxy_factory):
    probes = {"interval": 0.02, "timeout": 0.1, "misses": 3}
    proxy = await proxy_factory(*pair, policy="prefix_cost", probes=probes)
    prompt = dialect.body(messages=[{"role": "user", "content": "once upon a time " * 200}])
    first = (await exchange(proxy.port, "POST", CHAT, prompt)).one("x-warmroute-replica")
    holder = next(each for each in pair if name_of(each).encode() == first)
    held = await total(proxy, "warmroute_replica_cache_blocks", replica=name_of(holder))
    assert held
    health = Health(holder)
    for down in (False, True):
        health.slow = True

        async def is_so(down: bool = down) -> bool:
            return await down_and_suspect(proxy, holder) == (down, True)

        await eventually(is_so, "suspect")
        assert await total(proxy, "warmroute_replica_cache_blocks", replica=name_of(holder)) == held
    health.slow = False

    async def well() -> bool:
        return await down_and_suspect(proxy, holder) == (False, False)

    await eventually(well, "up again")
    again = await exchange(proxy.port, "POST", CHAT, prompt)
    assert (again.one("x-warmroute-replica"), again.one("x-warmroute-decision")) == (first, b"hit")


async def test_D01_a_suspect_gets_less_new_work(pair, proxy_factory):
    probes = {"interval": 0.02, "timeout": 0.1, "misses": 1000}
    proxy = await proxy_factory(*pair, policy="round_robin", probes=probes)
    sick, well = pair
    Health(sick).slow = True

    async def suspect() -> bool:
        return (await down_and_suspect(proxy, sick))[1]

    await eventually(suspect, "suspect")
    sick.behaviour = well.behaviour = dialect.hang
    clients = []
    for count in range(10):
        clients.append(await Client.connect(proxy.port))
        await clients[-1].send(request("POST", CHAT, dialect.chat()))
        await eventually(lambda count=count: len(sick.requests) + len(well.requests) > count, "it is there")
    assert (len(sick.requests), len(well.requests)) == (1, 9)
    for client in clients:
        client.reset()
    await idle(proxy)


async def test_D01_a_replica_that_answers_requests_is_not_dead(upstream, proxy_factory):
    probes = {"interval": 0.02, "timeout": 0.2, "misses": 2}
    proxy = await proxy_factory(upstream, probes=probes)
    health = Health(upstream)
    health.slow = True
    while health.late < 6:
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    assert await down_and_suspect(proxy, upstream) == (False, True)

    async def down() -> bool:
        return (await down_and_suspect(proxy, upstream))[0]

    await eventually(down, "once it answers nothing any more, it is")
    assert not await total(proxy, "warmroute_replica_failures_total")


async def test_D01_one_that_says_it_is_ill_is_believed(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, probes={"interval": 0.02, "misses": 2})

    async def ill(exchange: Exchange) -> None:
        await exchange.answer(b"", "503 Engine Dead")

    upstream.paths["/health"] = ill

    async def down() -> bool:
        await exchange(proxy.port, "POST", CHAT, dialect.chat())
        return (await down_and_suspect(proxy, upstream))[0]

    await eventually(down, "down, although it answers requests")


async def test_what_holds_a_replica_back_is_shown(pair, proxy_factory):
    proxy = await proxy_factory(*pair, policy="round_robin", probes=QUIET, admin_token="t")
    sick, name = pair[0], name_of(pair[0])
    await trip(proxy, pair)

    async def of(path: str) -> dict:
        shown = await exchange(proxy.port, "GET", path, headers=[("Authorization", "Bearer t")])
        known = shown.json()["replicas"]
        return (
            known[name] if isinstance(known, dict) else next(each for each in known if each["name"] == name)
        )

    shown = await of("/admin/replicas")
    assert (shown["breaker"], shown["suspect"], shown["soft_limit"]) == ("open", False, None)
    assert (await of("/ready"))["breaker"] == "open"
    assert "suspect" not in await of("/ready")
    assert sick.url == shown["url"]
