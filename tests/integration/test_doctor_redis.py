"""`warmroute doctor` on Redis: what is wrong with it, and with what this proxy would share through it."""

import time

import pytest

from proxy.config import Settings
from proxy.doctor import redis
from proxy.doctor.findings import Findings, Level
from proxy.model_pool import ModelPool
from proxy.shared.layout import Names
from proxy.shared.pool import settings as common
from tests.support.keying import keyer
from tests.support.redis import Server, cluster, free_port

SECRET = "one for all"


def pool() -> ModelPool:
    made = ModelPool("m")
    made.keyer = keyer()
    return made


async def found(url: str, **changes):
    settings = Settings(redis_url=url, secret=SECRET, **changes)
    told = await redis.examine(settings, {"m": pool()})
    return {each.check: each for each in told.all}


async def test_a_redis_that_is_fit(tmp_path):
    async with Server(tmp_path / "r") as server:
        told = await found(server.url)
        assert await server.run("KEYS", "*") == []  # it joins nothing
    assert {each.level for each in told.values()} == {Level.FINE}
    assert told.keys() == {"version", "eviction policy", "memory", "latency", "namespace"}
    assert "is new" in told["namespace"].what


async def test_an_embedded_one_is_started_to_see_that_it_can_be():
    told = await found("embedded")
    assert "embedded" in told["version"].what
    assert told["eviction policy"].level is Level.FINE
    assert "namespace" not in told


async def test_one_that_evicts_and_is_nearly_full_loses_hits(tmp_path):
    async with Server(
        tmp_path / "r", "--maxmemory-policy", "allkeys-lru", "--maxmemory", "1200000"
    ) as server:
        told = await found(server.url)
    assert told["eviction policy"].level is told["memory"].level is Level.LOSS
    assert told["eviction policy"].fix == "CONFIG SET maxmemory-policy noeviction"
    assert told["memory"].fix == "CONFIG SET maxmemory 2mb"


@pytest.mark.parametrize(
    ("what", "value"), [("secret", "another"), ("block size", "32"), ("tokenizer", "other"), ("layout", "0")]
)
async def test_a_namespace_that_was_begun_otherwise_is_said_to_differ_in_what(tmp_path, what, value):
    async with Server(tmp_path / "r") as server:
        ours = common(SECRET.encode(), 16, keyer().fingerprint.hex())
        held = [part for pair in {**ours, what: value}.items() for part in pair]
        await server.run("HSET", Names("warmroute", "m").meta, *held)
        told = await found(server.url)
        other = await found(server.url, namespace="other")
        assert await server.run("TYPE", Names("warmroute", "m").meta) == b"hash"
    assert told["namespace"].level is Level.LOSS
    assert f"another {what} for m" in told["namespace"].what
    assert "WARMROUTE_NAMESPACE" in told["namespace"].fix
    assert other["namespace"].level is Level.FINE


async def test_one_that_agrees(tmp_path):
    async with Server(tmp_path / "r") as server:
        ours = common(SECRET.encode(), 16, keyer().fingerprint.hex())
        await server.run("HSET", Names("warmroute", "m").meta, *[p for pair in ours.items() for p in pair])
        assert "agrees" in (await found(server.url))["namespace"].what


async def test_one_that_is_not_there():
    told = await found(f"redis://:hunter2@127.0.0.1:{free_port()}")
    assert told["redis"].level is Level.LOSS
    assert "WARMROUTE_REDIS_URL" in told["redis"].fix
    assert "hunter2" not in str(told)


async def test_one_that_wants_a_password(tmp_path):
    async with Server(tmp_path / "r", "--requirepass", "hunter2") as server:
        told = await found(server.url)
    assert told["redis"].level is Level.LOSS


async def test_one_that_allows_too_little_says_so(tmp_path):
    async with Server(tmp_path / "r") as server:
        await server.run("ACL", "SETUSER", "few", "on", ">pw", "~*", "+@all", "-info")
        told = await found(f"redis://few:pw@127.0.0.1:{server.port}")
    assert "ACL" in told["redis"].fix
    assert "pw" not in told["redis"].what.replace("NOPERM", "")


async def test_none_is_noted():
    assert (await found("none"))["redis"].level is Level.NOTE


async def test_a_cluster_is_asked(tmp_path):
    async with cluster(tmp_path) as nodes:
        told = await found(nodes.url)
    assert told["namespace"].level is told["version"].level is Level.FINE


class Old:
    """A Redis of another version: what cannot be run here."""

    def __init__(self, info: str, ahead: int = 0, seconds: float = 0.0) -> None:
        self.info, self.ahead, self.seconds = info, ahead, seconds

    async def call(self, command: str) -> object:
        if command == "PING":
            time.sleep(self.seconds)  # noqa: ASYNC251 - a server that is slow
        now = int(time.time()) + self.ahead
        return {"INFO": self.info.encode(), "PING": b"PONG", "TIME": [str(now).encode(), b"0"]}[command]


@pytest.mark.parametrize(
    ("info", "level"),
    [
        ("redis_version:5.0.14\r\n", Level.LOSS),
        ("redis_version:6.2.7\r\n", Level.WARNING),
        ("redis_version:7.2.4\r\n", Level.FINE),
        ("redis_version:8.0.0\r\n", Level.FINE),
        ("redis_version:7.2.4\r\nvalkey_version:8.1.0\r\n", Level.FINE),
    ],
)
async def test_versions(info, level):
    told = Findings("redis")
    await redis._fitness(told, Old(info), embedded=False)
    assert told.all[0].level is level


async def test_one_that_is_slow_or_late_is_warned_of():
    told = Findings("redis")
    await redis._times(told, Old("", ahead=60, seconds=0.006))
    assert {each.check: each.level for each in told.all} == {
        "latency": Level.WARNING,
        "clock": Level.WARNING,
    }
