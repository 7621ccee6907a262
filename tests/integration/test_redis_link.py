"""The link to one Redis: no reply for another, nobody waits while it is away, it comes back by itself."""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from redis import exceptions

from proxy.config import Settings
from proxy.redis_url import parse
from proxy.shared.client import DEADLINE, Link, LinkDown
from proxy.shared.script import Script
from proxy.shared.servers import CONNECTIONS
from tests.support.eventually import eventually, turns
from tests.support.redis import Server, down, free_port, linked, replicated, up
from tests.support.tcp_relay import Relay

CERTIFICATES = Path(__file__).parents[1] / "data" / "tls"
ECHO = Script("return {redis.call('GET', KEYS[1]), ARGV[1]}")


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[Server]:
    async with Server(tmp_path / "valkey") as it:
        yield it


@pytest.fixture
async def relay(server) -> AsyncIterator[Relay]:
    async with Relay(server.port) as it:
        yield it


@pytest.fixture
async def link(relay) -> AsyncIterator[Link]:
    async with linked(relay.url) as it:
        assert it.up
        yield it


async def test_what_a_link_does(link):
    assert await link.call("SET", "a", b"\x00\xff\r\n") == b"OK"
    assert await link.call("GET", "a") == b"\x00\xff\r\n"
    assert await link.call("GET", "none") is None
    replies = await link.pipeline([("INCR", "n"), ("LPUSH", "a", 1), ("INCR", b"n")])
    assert [replies[0], type(replies[1]), replies[2]] == [1, exceptions.ResponseError, 2]
    assert await link.pipeline([]) == []
    assert await link.pipeline([("MULTI",), ("INCR", "n"), ("EXEC",)]) == [b"OK", b"QUEUED", [3]]
    with pytest.raises(exceptions.ResponseError, match="WRONGTYPE"):
        await link.call("LPUSH", "a", 1)
    assert await link.blocking("XREAD", "BLOCK", 1, "STREAMS", "s", "$", seconds=0.001) is None
    assert (link.up, link.drops, link.reconnects, link.why) == (True, 0, 0, "")
    assert (link.commands, link.failures) == (11, 2)


async def test_a_script_that_redis_forgot_is_sent_again(link, server):
    await link.call("SET", "k", "v")
    assert await link.script(ECHO, ["k"], [5]) == [b"v", b"5"]
    await server.run("SCRIPT", "FLUSH")
    assert await link.script(ECHO, ["k"], ["x"]) == [b"v", b"x"]
    assert link.failures == 0


async def test_what_a_script_refuses_is_raised(link):
    with pytest.raises(exceptions.ResponseError, match="no such thing"):
        await link.script(Script("return redis.error_reply('no such thing')"))
    with pytest.raises(exceptions.DataError):
        await link.call("SET", "a", None)
    assert link.up
    assert await link.call("PING") == b"PONG"


QUESTIONS: list[Callable[[Link, str], Awaitable[object]]] = [
    lambda link, key: link.call("GET", key),
    lambda link, key: link.pipeline([("GET", key), ("SET", key, key), ("GET", key)]),
    lambda link, key: link.pipeline([("WATCH", key), ("MULTI",), ("GET", key), ("EXEC",)]),
    lambda link, key: link.script(ECHO, [key], [key]),
    lambda link, key: link.blocking("XREAD", "STREAMS", f"stream-{key}", "0", seconds=0),
]


async def answers_are_its_own(link: Link, relay: Relay) -> None:
    """Every connection answers what it is asked, all at once."""
    names = [f"bar{number}" for number in range(CONNECTIONS)]
    assert await asyncio.gather(*(link.call("GET", name) for name in names)) == [n.encode() for n in names]
    assert await link.script(ECHO, ["bar1"], ["1"]) == [b"bar1", b"1"]
    streams = await asyncio.gather(
        *(link.blocking("XREAD", "STREAMS", f"stream-{name}", "0", seconds=0) for name in names[:3])
    )
    assert [stream[0][0].decode() for stream in streams] == [f"stream-{name}" for name in names[:3]]
    assert relay.open <= 2 * CONNECTIONS + 2


@pytest.mark.parametrize("cut", [0, 3, 40], ids=["nothing came", "its start came", "nearly all came"])
async def test_X01_a_cancelled_command_never_leaves_its_reply_to_the_next(cut, link, relay, server):
    for name in ("foo", *(f"bar{number}" for number in range(CONNECTIONS))):
        await server.run("SET", name, name)
        await server.run("XADD", f"stream-{name}", "*", "of", name)
    await link.script(ECHO, ["foo"], ["warm"])
    cancelled = 0
    while cancelled < 340:  # three cuts: a thousand
        relay.hold(after=cut)
        asked = [asyncio.ensure_future(ask(link, "foo")) for ask in 2 * QUESTIONS]
        await relay.holds(len(asked) if cut == 0 else 2)
        for each in asked:
            cancelled += each.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(each, asyncio.CancelledError) for each in answers) >= (10 if cut == 0 else 2)
        relay.release()
        await answers_are_its_own(link, relay)
    assert link.up
    assert link.failures == link.drops == link.reconnects == 0


async def test_X01_a_cancellation_at_any_moment(link, relay, server):
    for name in ("foo", *(f"bar{number}" for number in range(CONNECTIONS))):
        await server.run("SET", name, name)
        await server.run("XADD", f"stream-{name}", "*", "of", name)
    rng = random.Random(1)
    for _ in range(60):
        asked = [asyncio.ensure_future(ask(link, "foo")) for ask in rng.choices(QUESTIONS, k=30)]
        for each in asked:  # some wait for a connection, some open one, some are nearly done
            await turns(rng.randrange(4))
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await answers_are_its_own(link, relay)
    assert link.up


async def test_X01_an_impatient_caller_is_not_held_against_redis(link, relay, server):
    await server.run("SET", "foo", "foo")
    await server.run("SET", "bar", "bar")
    await link.call("PING")  # so that a connection is there
    relay.hold()
    for _ in range(5):
        with pytest.raises(exceptions.TimeoutError):
            await link.call("GET", "foo", timeout=link.budget)
    assert link.up
    relay.release()
    assert await link.call("GET", "bar") == b"bar"
    assert link.failures == 5


async def test_X02_a_refused_port_costs_nobody_time_and_is_found_again(tmp_path):
    port = free_port()
    async with linked(f"redis://127.0.0.1:{port}") as link:
        told = []
        link.on_up(lambda: told.append(link.up))
        assert not link.up
        assert "refused" in link.why.lower() or "111" in link.why
        for _ in range(1000):
            with pytest.raises(LinkDown, match="Redis is away"):
                await link.call("PING")
        assert (link.drops, link.commands) == (1000, 0)
        assert told == []
        async with Server(tmp_path, port=port):
            await asyncio.wait_for(link.wait_up(), 20)
            assert told == [True]
            assert await link.call("PING") == b"PONG"
            assert link.reconnects == 0


async def test_X02_a_stopped_redis_is_seen_and_found_again(link, server):
    blocked = asyncio.ensure_future(link.blocking("XREAD", "BLOCK", 0, "STREAMS", "s", "$", seconds=3600))
    await eventually(lambda: link.commands)
    server.pause()
    try:
        await down(link)  # by the pulse: nobody needs to ask
        with pytest.raises(LinkDown):
            await link.call("PING")
        with pytest.raises(exceptions.ConnectionError):
            await blocked
    finally:
        server.resume()
    await up(link)
    assert await link.call("PING") == b"PONG"
    assert link.reconnects == 1


async def test_X02_a_command_without_an_answer_takes_the_link_down(link, relay):
    relay.hold()
    with pytest.raises(exceptions.TimeoutError, match=f"within {DEADLINE:g} s"):
        await link.call("PING")
    relay.release()
    await up(link)
    assert await link.call("PING") == b"PONG"


async def test_X02_a_black_hole_for_old_and_new_connections(link, relay):
    relay.swallowing = True
    await down(link)
    with pytest.raises(LinkDown):
        await link.call("PING")
    relay.swallowing = False
    await up(link)
    assert await link.call("PING") == b"PONG"


async def test_X02_a_redis_that_comes_back_empty_is_announced(link, server):
    told = []
    await link.call("SET", "a", "b")
    link.on_up(lambda: told.append("up"))
    forget = link.on_up(lambda: told.append("not any more"))
    forget()
    assert told == ["up", "not any more"]
    await server.kill()
    await down(link)
    assert await server.start()
    await up(link)
    assert await link.call("GET", "a") is None
    assert told == ["up", "not any more", "up"]


async def test_X02_one_that_waits_for_redis_and_fails_does_not_keep_it_from_the_rest(link, server, caplog):
    told = []

    def fails() -> None:
        told.append("failed")
        if len(told) > 1:
            raise RuntimeError("on purpose")

    link.on_up(fails)
    link.on_up(lambda: told.append("told"))
    await server.kill()
    await down(link)
    assert await server.start()
    await up(link)
    assert told == ["failed", "told", "failed", "told"]
    assert "on purpose" in caplog.text


async def test_X03_a_name_that_moves_is_followed_when_the_primary_is_demoted(tmp_path):
    async with replicated(tmp_path) as (first, second), Relay(first.port) as name, linked(name.url) as link:
        await link.call("SET", "a", "1")
        blocked = asyncio.ensure_future(link.blocking("XREAD", "BLOCK", 0, "STREAMS", "s", "$", seconds=3600))
        await eventually(lambda: link.commands == 2)
        await second.run("REPLICAOF", "NO", "ONE")
        await first.run("REPLICAOF", "127.0.0.1", second.port)  # its clients' sockets stay open
        with pytest.raises(exceptions.RedisError):
            await blocked
        lost = 0

        async def written() -> bool:
            nonlocal lost
            try:
                return await link.call("SET", "a", "2") == b"OK"
            except exceptions.RedisError:
                lost += 1
                return False

        assert not await written()
        await down(link)
        await eventually(lambda: "is a replica" in link.why)
        name.target = second.port
        await eventually(written, within=20)
        assert await second.run("GET", "a") == b"2"
        assert link.failures + link.drops == lost + 1  # and the read that was cut off
        assert lost
        assert link.reconnects == 1


@pytest.mark.parametrize("by", ["a command", "a script", "a pipeline"])
async def test_X03_a_refused_write_sends_the_link_to_look_again(by, link, server, monkeypatch):
    monkeypatch.setattr("proxy.shared.client.PULSE", 3600)  # nobody but the write can see it
    await eventually(lambda: link.up)
    closed = free_port()
    await server.run("REPLICAOF", "127.0.0.1", closed)
    await server.run("CONFIG", "SET", "replica-serve-stale-data", "yes")
    with suppress(exceptions.ReadOnlyError, exceptions.ResponseError, LinkDown):
        if by == "a command":
            await link.call("SET", "a", "1")
        elif by == "a script":
            await link.script(Script("return redis.call('SET', KEYS[1], 1)"), ["a"])
        else:
            await link.pipeline([("GET", "a"), ("SET", "a", "1")])
    await down(link)
    await server.run("REPLICAOF", "NO", "ONE")
    await up(link)
    assert await link.call("SET", "a", "1") == b"OK"


async def test_X06_a_full_redis_refuses_softly(tmp_path):
    options = ("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    async with Server(tmp_path, *options) as server, linked(server.url) as link:
        refused = 0
        for number in range(40):
            try:
                await link.call("SET", number, "x" * 100_000)
            except exceptions.OutOfMemoryError:
                refused += 1
        assert refused
        assert link.failures == refused
        assert link.up
        assert await link.call("GET", "0")


async def test_connections_that_redis_closed_are_not_used(link, server, relay):
    await asyncio.gather(*(link.call("PING") for _ in range(5)))
    before = relay.opened
    await server.run("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
    await eventually(lambda: relay.open == 0)
    await turns()
    assert await link.call("PING") == b"PONG"
    assert relay.opened > before


async def test_a_redis_that_loads_is_away_until_it_has(tmp_path):
    options = ("--key-load-delay", 10_000, "--loading-process-events-interval-bytes", 1024)
    async with Server(tmp_path) as server:
        await server.run("MSET", *(word for n in range(3000) for word in (f"key{n}", "x" * 100)))
        await server.run("SAVE")
        await server.kill()
        server.options = [str(option) for option in options]
        starting = asyncio.ensure_future(server.start())
        async with linked(server.url) as link:
            await eventually(lambda: link.up or "loading" in link.why.lower())
            assert not link.up
            await server.run("CONFIG", "SET", "key-load-delay", 0)  # it would take half a minute
            assert await starting
            await up(link)
            assert await link.call("GET", "key1") == b"x" * 100


async def test_credentials(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with Server(tmp_path, "--requirepass", "hunter2") as server:
        where = f"127.0.0.1:{server.port}"
        for wrong in ("", ":hunter3@", "someone:hunter3@"):
            async with linked(f"redis://{wrong}{where}") as link:
                assert not link.up
                assert "correct user and password in redis_url" in link.why or "NOAUTH" in link.why
                assert "hunter" not in link.why
        for right in (":hunter2@", "default:hunter2@"):
            async with linked(f"redis://{right}{where}/3") as link:
                assert link.up, link.why
                await link.call("SET", "a", "1")
                assert b"db3:keys=1" in await server.run("INFO", "keyspace")
    assert "hunter" not in caplog.text


async def test_tls_with_certificates_on_both_sides(server):
    there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CERTIFICATES / "ca.pem")
    there.load_cert_chain(CERTIFICATES / "server.pem")
    there.verify_mode = ssl.CERT_REQUIRED
    ours = f"ssl_ca_certs={CERTIFICATES / 'ca.pem'}&ssl_certfile={CERTIFICATES / 'client.pem'}"
    async with Relay(server.port, tls=there) as relay:
        where = f"127.0.0.1:{relay.port}"
        async with linked(f"rediss://{where}?{ours}") as link:
            assert link.up, link.why
            assert await link.call("PING") == b"PONG"
        async with linked(f"rediss://{where}?{ours.partition('&')[0]}") as link:
            assert not link.up  # it asks for our certificate
        async with linked(f"rediss://{where}") as link:
            assert "ssl_ca_certs=FILE" in link.why
        for url in (
            f"redis://{where}",
            f"rediss://127.0.0.1:{server.port}",
        ):  # one speaks TLS, the other does not
            async with linked(url) as link:
                assert not link.up


async def test_a_unix_socket(tmp_path):
    async with (
        Server(tmp_path, "--unixsocket", tmp_path / "s") as server,
        linked(f"unix://{tmp_path / 's'}?db=2") as link,
    ):
        await link.call("SET", "a", "1")
        assert b"db2:keys=1" in await server.run("INFO", "keyspace")


async def test_a_closed_link_is_down_and_holds_nothing(relay):
    async with linked(relay.url) as link:
        blocked = asyncio.ensure_future(link.blocking("BLPOP", "l", 0, seconds=3600))
        await eventually(lambda: link.commands)
    with pytest.raises(exceptions.ConnectionError):
        await blocked
    with pytest.raises(LinkDown, match="closed"):
        await link.call("PING")
    await eventually(lambda: relay.open == 0)


def test_none_is_no_link():
    with pytest.raises(ValueError, match="none"):
        Link(parse("none"))


def test_the_settings_are_what_a_link_takes():
    settings = Settings(redis_url="redis://one", redis_timeout_ms=5, secret="s")
    assert Link(parse(settings.redis_url), budget=settings.redis_timeout_ms / 1000).budget == 0.005
