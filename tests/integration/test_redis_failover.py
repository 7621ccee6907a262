"""The link to several servers: a new primary is found through Sentinel, and keys by a cluster's slots."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import exceptions

from proxy.shared.client import Link, LinkDown
from proxy.shared.script import Script
from tests.support.eventually import eventually
from tests.support.redis import (
    PATIENCE,
    Nodes,
    Server,
    cluster,
    down,
    free_port,
    linked,
    replicated,
    sentinel,
    up,
)

SERVICE = "primary"
WHO = Script("return {KEYS[1], redis.call('INCR', KEYS[1])}")


class Watched:
    """A primary, its replica, a Sentinel, and a link that knows only the Sentinel and one that is away."""

    def __init__(self, primary: Server, replica: Server, watcher: Server, link: Link) -> None:
        self.primary, self.replica, self.watcher, self.link = primary, replica, watcher, link


@pytest.fixture
async def watched(tmp_path) -> AsyncIterator[Watched]:
    async with (
        replicated(tmp_path) as (primary, replica),
        sentinel(tmp_path / "sentinel", primary, SERVICE) as watcher,
        linked(f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{watcher.port}/{SERVICE}") as link,
    ):
        assert link.up, link.why
        yield Watched(primary, replica, watcher, link)


async def test_X03_sentinel_names_a_new_primary_and_the_old_one_keeps_its_sockets(watched):
    link = watched.link
    assert await link.call("SET", "a", "1") == b"OK"
    blocked = asyncio.ensure_future(link.blocking("XREAD", "BLOCK", 0, "STREAMS", "s", "$", seconds=3600))
    await eventually(lambda: link.commands == 2)
    told = []
    link.on_up(lambda: told.append("up"))

    async def decided() -> bool:
        try:
            return await watched.watcher.run("SENTINEL", "FAILOVER", SERVICE) == b"OK"
        except exceptions.ResponseError as error:
            if "NOGOODSLAVE" not in str(error):  # that it says until it has heard from the replica itself
                raise
            return False

    await eventually(decided, within=PATIENCE)
    lost = 0

    async def reaches_the_new_one() -> bool:
        nonlocal lost
        try:
            await link.call("SET", "a", "2")
        except exceptions.RedisError:
            lost += 1
            return False
        return await watched.replica.run("GET", "a") == b"2"

    await eventually(reaches_the_new_one, within=PATIENCE)
    with pytest.raises(exceptions.RedisError):
        await blocked
    assert link.failures + link.drops >= lost
    assert len(told) >= 2


async def test_X03_the_primary_dies_and_sentinel_promotes_its_replica(watched):
    link = watched.link
    await link.call("SET", "a", "1")
    await eventually(lambda: watched.replica.run("GET", "a"))
    await watched.primary.kill()
    await down(link)
    await up(link)
    assert await link.call("GET", "a") == b"1"
    assert (await watched.replica.run("ROLE"))[0] == b"master"


async def test_X03_the_primary_is_stopped_and_not_followed_back(watched):
    link = watched.link
    watched.primary.pause()
    try:
        await down(link)
        await up(link)
        await link.call("SET", "a", "new")
        assert await watched.replica.run("GET", "a") == b"new"
    finally:
        watched.primary.resume()
    assert await watched.primary.run("PING") == b"PONG"
    assert await link.call("GET", "a") == b"new"


async def test_sentinels_that_know_nothing_are_told_apart_from_sentinels_that_are_away(watched):
    where = f"127.0.0.1:{watched.watcher.port}"
    async with linked(f"redis+sentinel://{where}/other") as link:
        assert link.why == f"no Sentinel at {where} knows the service 'other'"
    where = f"127.0.0.1:{free_port()}"
    async with linked(f"redis+sentinel://{where}/{SERVICE}") as link:
        assert link.why.startswith(f"no Sentinel at {where} answers: ")


@pytest.fixture
async def nodes(tmp_path) -> AsyncIterator[Nodes]:
    async with cluster(tmp_path) as it:
        yield it


async def test_each_hash_tag_goes_to_its_node(nodes):
    async with linked(nodes.url) as link:
        assert link.up, link.why
        for index, server in enumerate(nodes.servers):
            tag = nodes.tag(index)
            assert await link.call("SET", f"{{{tag}}}:a", tag) == b"OK"
            assert await server.run("GET", f"{{{tag}}}:a") == tag.encode()
            keys = [f"{{{tag}}}:n", f"{{{tag}}}:m"]
            assert await link.pipeline([("INCR", keys[0]), ("MGET", *keys)]) == [1, [b"1", None]]
            assert await link.script(WHO, keys) == [keys[0].encode(), 2]
            stream = f"{{{tag}}}:s"
            reading = link.blocking("XREAD", "BLOCK", 5000, "STREAMS", stream, "0", seconds=5)
            entry = asyncio.ensure_future(reading)
            await link.call("XADD", stream, "*", "a", tag)
            assert (await entry)[0][1][0][1] == [b"a", tag.encode()]
        assert await link.call("PING") == b"PONG"
        assert link.failures == 0


async def test_a_slot_that_moves_is_followed(nodes):
    tag = nodes.tag(0)
    key = f"{{{tag}}}:a"
    source, target = nodes.servers[:2]
    slot = await source.run("CLUSTER", "KEYSLOT", key)
    names = [(await server.run("CLUSTER", "MYID")).decode() for server in nodes.servers]
    async with linked(nodes.url) as link:
        await link.call("SET", key, "1")
        await target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        await source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        await source.run("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        assert await link.call("GET", key) == b"1"  # ASK
        assert await link.pipeline([("INCR", key), ("INCR", key)]) == [2, 3]
        assert await link.script(WHO, [key]) == [key.encode(), 4]
        for server in reversed(nodes.servers[:2]):
            await server.run("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        assert await link.call("GET", key) == b"4"  # MOVED, or already known
        assert await link.pipeline([("INCR", key), ("INCR", key)]) == [5, 6]
        assert link.failures == 0
        await eventually(lambda: link._topology.node([("GET", key)])[1] == target.port)
        assert await link.call("GET", key) == b"6"
        assert link.up


async def test_X03_a_node_dies_and_comes_back(nodes):
    tag = nodes.tag(1)
    async with linked(nodes.url) as link:
        await link.call("SET", f"{{{tag}}}:a", "1")
        await nodes.servers[1].kill()
        await down(link)
        with pytest.raises(LinkDown):
            await link.call("GET", f"{{{tag}}}:a")
        assert await nodes.servers[1].start()
        await up(link)
        assert await link.call("SET", f"{{{tag}}}:a", "2") == b"OK"


async def test_a_cluster_is_found_by_any_of_its_nodes(nodes):
    seeds = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{nodes.servers[2].port}"
    async with linked(seeds) as link:
        await up(link)
        assert await link.call("SET", f"{{{nodes.tag(0)}}}:a", "1") == b"OK"


async def test_what_is_no_cluster_is_told(tmp_path):
    async with Server(tmp_path) as server, linked(server.url.replace("redis:", "redis+cluster:")) as link:
        assert not link.up
        assert "cluster support disabled" in link.why
