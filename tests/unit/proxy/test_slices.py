"""EndpointSlices as an API server may send them, and which replicas they stand for."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.discovery.slices import Slice, Unusable, replicas
from proxy.found import Kubernetes
from tests.support.kubernetes import ApiServer, pod

SETTINGS = Kubernetes(service="vllm")


def read(server: ApiServer) -> list[Slice]:
    """The slices as they come over the wire."""
    return [msgspec.json.decode(json.dumps(one), type=Slice) for one in server.slices.values()]


def urls(server: ApiServer, **settings: Any) -> dict[str, str]:
    found = replicas(read(server), Kubernetes(service="vllm", **settings))
    return {each.spec.name: each.spec.url for each in found}


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


def test_each_pod_is_a_replica_by_its_name_with_its_uid(server):
    server.put(pod("a", "10.0.0.1", uid="u1"), pod("b", "10.0.0.2", uid="u2"))
    found = replicas(read(server), SETTINGS)
    assert [each.identity for each in found] == [
        ("a", "http://10.0.0.1:8000", "u1"),
        ("b", "http://10.0.0.2:8000", "u2"),
    ]
    assert all(each.ready for each in found)


@pytest.mark.parametrize("addresses", [None, []])
def test_D02_a_pod_without_an_address_is_passed_over(server, addresses):
    server.put(pod("a", None) | {"addresses": addresses}, pod("b", "10.0.0.2"))
    assert urls(server) == {"b": "http://10.0.0.2:8000"}


def test_D02_a_pod_that_terminates_is_out_even_while_it_says_ready(server):
    server.put(pod("a", "10.0.0.1", terminating=True), pod("b", "10.0.0.2"))
    assert urls(server) == {"b": "http://10.0.0.2:8000"}


def test_D02_terminating_in_one_slice_is_terminating_in_all(server):
    server.put(pod("a", "10.0.0.1"), name="old")
    server.put(pod("a", "10.0.0.1", terminating=True), name="new")
    assert urls(server) == {}


def test_a_slice_that_is_being_deleted_says_nothing(server):
    server.put(pod("a", "10.0.0.1"), deletionTimestamp="2026-01-01T00:00:00Z")
    assert urls(server) == {}


def test_not_ready_is_there_without_traffic_and_no_condition_means_ready(server):
    server.put(pod("a", "10.0.0.1", ready=False), pod("b", "10.0.0.2") | {"conditions": {}})
    assert {each.spec.name: each.ready for each in replicas(read(server), SETTINGS)} == {
        "a": False,
        "b": True,
    }


def test_a_pod_with_two_kinds_of_address_is_one_replica(server):
    server.put(pod("a", "fd00::1"), name="six", kind="IPv6")
    server.put(pod("a", "10.0.0.1"), name="four")
    server.put(pod("b", "fd00::2"), name="another", kind="IPv6")
    server.put(pod("c", "c.example"), name="named", kind="FQDN")
    assert urls(server) == {"a": "http://10.0.0.1:8000", "b": "http://[fd00::2]:8000"}


def test_an_endpoint_without_a_pod_is_called_by_its_address(server):
    server.put(pod("a", "10.0.0.1") | {"targetRef": None})
    assert urls(server) == {"10.0.0.1:8000": "http://10.0.0.1:8000"}


def test_the_port_is_chosen_by_name_or_number(server):
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}, {"name": "any", "port": None}]
    server.put(pod("a", "10.0.0.1"), ports=ports)
    assert urls(server, port="metrics") == {"a": "http://10.0.0.1:9000"}
    assert urls(server, port="7") == {"a": "http://10.0.0.1:7"}
    with pytest.raises(Unusable, match=r"any, http, metrics: set WARMROUTE_KUBERNETES__PORT"):
        urls(server)
    with pytest.raises(Unusable):
        urls(server, port="other")


def test_what_all_have_in_common_is_configured(server):
    server.put(pod("a", "10.0.0.1"))
    common = {"engine": "vllm", "max_seqs": 8, "server_name": "vllm.example"}
    [found] = replicas(read(server), Kubernetes(service="vllm", scheme="https", replica=common))
    assert found.spec.url == "https://10.0.0.1:8000"
    assert (found.spec.engine, found.spec.max_seqs, found.spec.server_name) == ("vllm", 8, "vllm.example")


ADDRESSES = st.none() | st.integers(1, 9).map(lambda last: f"10.0.0.{last}")
CONDITION = st.none() | st.booleans()


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcd"), ADDRESSES, CONDITION, CONDITION), max_size=5), max_size=4
    )
)
def test_whatever_slices_say_each_pod_is_there_once_or_not_at_all(slices):
    server = ApiServer()
    for number, endpoints in enumerate(slices):
        pods = [pod(name, at, ready=ready, terminating=over) for name, at, ready, over in endpoints]
        server.put(*pods, name=f"slice-{number}")
    found = replicas(read(server), SETTINGS)
    names = [each.spec.name for each in found]
    told = [endpoint for endpoints in slices for endpoint in endpoints]
    leaving = {name for name, at, _, over in told if over and at}
    assert names == sorted({name for name, at, _, _ in told if at} - leaving)
    assert all((each.spec.name, each.spec.url[7:-5]) in {(n, at) for n, at, _, _ in told} for each in found)
