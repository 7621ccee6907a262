"""Sources of replicas: Kubernetes over HTTP from a server of its wire format, DNS from a resolver of ours."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proxy.discovery import dns
from proxy.discovery.dns import DnsSource
from proxy.discovery.kubernetes import KubernetesSource
from proxy.discovery.source import Source, follow
from proxy.found import Dns, Found, Kubernetes
from proxy.names import Names
from proxy.spec import ReplicaSpec
from tests.support.eventually import eventually
from tests.support.kubernetes import ApiServer, pod
from tests.support.names import Zone


class Told:
    """What a source has told."""

    def __init__(self) -> None:
        self.sets: list[list[Found]] = []

    def __call__(self, found: Any) -> None:
        self.sets.append(list(found))

    @property
    def names(self) -> list[str]:
        return [each.spec.name for each in self.sets[-1]] if self.sets else []

    async def are(self, *names: str) -> None:
        await eventually(lambda: self.sets and self.names == list(names), f"{names}, not {self.names}")


@asynccontextmanager
async def following(source: Source) -> AsyncIterator[Told]:
    told = Told()
    task = asyncio.create_task(follow(source, told))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as it:
        yield it


def kubernetes(server: ApiServer, directory: Path, **settings: Any) -> KubernetesSource:
    path = server.kubeconfig(directory)
    return KubernetesSource(Kubernetes(service=server.service, kubeconfig=path, **settings))


async def test_it_lists_and_goes_on_watching_from_there(server, tmp_path):
    server.put(pod("a", "10.0.0.1"))
    source = kubernetes(server, tmp_path)
    async with following(source) as told:
        await told.are("a")
        await server.watched()
        assert server.versions == ["101"]
        server.put(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
        await told.are("a", "b")
        server.put(pod("c", "10.0.0.3"), name="another")
        await told.are("a", "b", "c")
        server.delete()
        await told.are("c")
    assert server.lists == 1
    assert source.why is None


async def test_D02_what_a_watch_missed_is_seen_after_it_broke(server, tmp_path):
    server.put(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
    async with following(kubernetes(server, tmp_path)) as told:
        await told.are("a", "b")
        await server.watched()
        server.put(pod("b", "10.0.0.2"), tell=False)
        server.cut()
        await told.are("b")
        await server.watched(2)
        server.delete(tell=False)
        server.cut()
        await told.are()


async def test_D02_a_version_that_is_too_old_is_listed_anew(server, tmp_path):
    server.put(pod("a", "10.0.0.1"))
    server.gone = True
    async with following(kubernetes(server, tmp_path)) as told:
        await told.are("a")
        await server.watched()
        server.put(pod("b", "10.0.0.2"), tell=False)
        server.gone = False
        await told.are("b")
        assert server.lists > 1


async def test_D02_all_is_listed_again_although_the_watch_seems_well(server, tmp_path, monkeypatch):
    monkeypatch.setattr("proxy.discovery.kubernetes.SLACK_SECONDS", 0.1)
    server.put(pod("a", "10.0.0.1"))
    async with following(kubernetes(server, tmp_path, resync=0.1)) as told:
        await told.are("a")
        await server.watched()
        server.delete(tell=False)  # the stream stays open and says nothing of it
        await told.are()


async def test_an_api_server_that_refuses_or_is_away_takes_nobody_out(server, tmp_path, caplog):
    server.put(pod("a", "10.0.0.1"))
    source = kubernetes(server, tmp_path)
    async with following(source) as told:
        await told.are("a")
        await server.watched()
        server.refuse = 403
        server.cut()
        await eventually(lambda: source.why)
        assert "grant list and watch of endpointslices" in source.why
        assert told.names == ["a"]
        server.refuse = 503
        await eventually(lambda: "503: not for you" in source.why)
        server.refuse = None
        server.put(pod("b", "10.0.0.2"))
        await told.are("b")
        assert source.why is None
    assert sum("refuses" in record.message for record in caplog.records) == 1
    assert not [record for record in caplog.records if "the-token" in record.getMessage()]


async def test_a_service_with_several_ports_says_what_to_set(server, tmp_path):
    server.put(pod("a", "10.0.0.1"), ports=[{"name": "x", "port": 1}, {"name": "y", "port": 2}])
    source = kubernetes(server, tmp_path)
    async with following(source) as told:
        await eventually(lambda: "WARMROUTE_KUBERNETES__PORT" in (source.why or ""))
        assert not told.sets
        server.put(pod("a", "10.0.0.1"), ports=[{"name": "x", "port": 1}])
        await told.are("a")


async def test_no_kubeconfig_is_said_and_looked_for_again(server, tmp_path):
    path = tmp_path / "kubeconfig"
    source = KubernetesSource(Kubernetes(service="vllm", kubeconfig=path))
    async with following(source) as told:
        await eventually(lambda: "kube-config" in (source.why or ""), source.why)
        server.put(pod("a", "10.0.0.1"))
        server.kubeconfig(tmp_path)
        await told.are("a")


def spec(url: str, **more: Any) -> ReplicaSpec:
    return ReplicaSpec.model_validate({"url": url, **more})


async def test_D04_every_address_of_a_name_is_a_replica():
    zone = Zone({"vllm": ["127.0.0.3", "127.0.0.2", "::1"], "other": ["127.0.0.2"]})
    specs = [
        spec("http://vllm:8000", engine="vllm", capacity=7),
        spec("http://other:8000"),
        spec("http://127.0.0.9"),
    ]
    source = DnsSource(specs, Dns(interval=0.05), Names(zone.getaddrinfo))
    async with following(source) as told:
        await told.are("127.0.0.2:8000", "127.0.0.3:8000", "[::1]:8000", "127.0.0.9")
        [first, *_] = told.sets[-1]
        assert (first.spec.url, first.spec.engine, first.spec.capacity) == (
            "http://127.0.0.2:8000",
            "vllm",
            7,
        )
        zone.names["vllm"] = ["127.0.0.4"]
        zone.names["other"] = ["127.0.0.5"]
        await told.are("127.0.0.4:8000", "127.0.0.5:8000", "127.0.0.9")
        assert source.why is None


async def test_D04_a_name_that_cannot_be_looked_up_keeps_what_it_had():
    zone = Zone({"vllm": ["127.0.0.2"]})
    source = DnsSource([spec("http://vllm:8000")], Dns(interval=0.05), Names(zone.getaddrinfo))
    async with following(source) as told:
        await told.are("127.0.0.2:8000")
        del zone.names["vllm"]
        await eventually(lambda: "vllm cannot be looked up" in (source.why or ""))
        asked = len(told.sets)
        await eventually(lambda: len(told.sets) > asked)
        assert told.names == ["127.0.0.2:8000"]
        zone.names["vllm"] = ["127.0.0.3"]
        await told.are("127.0.0.3:8000")
        assert source.why is None


async def test_D04_a_failed_connection_looks_the_name_up_at_once():
    zone = Zone({"vllm": ["127.0.0.2"]})
    source = DnsSource([spec("http://vllm:8000")], Dns(interval=3600), Names(zone.getaddrinfo))
    async with following(source) as told:
        await told.are("127.0.0.2:8000")
        zone.names["vllm"] = ["127.0.0.3"]
        source.wake()
        await told.are("127.0.0.3:8000")


async def test_one_kind_of_address_can_be_chosen():
    zone = Zone({"vllm": ["127.0.0.2", "::1"]})
    source = DnsSource([spec("http://vllm:8000")], Dns(family="ipv6"), Names(zone.getaddrinfo))
    async with following(source) as told:
        await told.are("[::1]:8000")
    assert {family for _, family in zone.asked} == {socket.AF_INET6}


def test_what_is_configured_of_a_name_is_so_of_each_address():
    feed = {"kv_events": "tcp://vllm:5557", "kv_replay": "tcp://elsewhere:5558"}
    found = dns.at(spec("https://vllm:8443", name="mine", priority="low_first", **feed), "10.0.0.1")
    assert (found.url, found.name, found.server_name) == ("https://10.0.0.1:8443", "10.0.0.1:8443", "vllm")
    assert (found.kv_events, found.kv_replay) == ("tcp://10.0.0.1:5557", "tcp://elsewhere:5558")
    assert found.priority == "low_first"
    assert dns.at(spec("https://vllm", server_name="b"), "fd00::1").server_name == "b"
    assert dns.at(spec("http://vllm"), "fd00::1").url == "http://[fd00::1]"
