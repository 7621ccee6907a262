"""Reads EndpointSlices (discovery.k8s.io/v1): which pods of a service are replicas. Pure; no I/O.

A pod is taken out once it terminates, whatever else its conditions say. One that is not ready stays, without
traffic, and so does what is known of its cache: a busy engine may miss a probe. An endpoint without an
address, as a pod has before it is scheduled, is none.
"""

from collections.abc import Iterable

import msgspec

from proxy.found import Found, Kubernetes, template


class Conditions(msgspec.Struct):
    """Of an endpoint; a ready that is absent means yes."""

    ready: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct):
    """The pod behind an endpoint."""

    name: str = ""
    uid: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    """One address of a service."""

    addresses: list[str] | None = None
    conditions: Conditions | None = None
    target_ref: TargetRef | None = None


class Port(msgspec.Struct):
    """A port of all endpoints of a slice."""

    name: str | None = None
    port: int | None = None


class Metadata(msgspec.Struct, rename="camel"):
    """Of a slice, or of a list of them."""

    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class Slice(msgspec.Struct, rename="camel"):
    """Some of a service's endpoints, of one kind of address."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class SliceList(msgspec.Struct):
    """The answer to a list."""

    metadata: Metadata
    items: list[Slice] | None = None


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Status(msgspec.Struct):
    """What the API server says is wrong."""

    code: int = 0
    message: str = ""


class Unusable(ValueError):
    """A service whose endpoints cannot be replicas as it is configured; says what to set."""


def replicas(slices: Iterable[Slice], settings: Kubernetes) -> list[Found]:
    """The replicas behind a service, in the order of their names. Raises Unusable.

    A pod may be in several slices, while it moves from one to another and once for each kind of address: the
    first address counts, IPv4 before IPv6.
    """
    there: dict[str, Found] = {}
    leaving: set[str] = set()
    for one in sorted(slices, key=lambda each: (each.address_type, each.metadata.name)):
        if one.metadata.deletion_timestamp is not None or one.address_type not in ("IPv4", "IPv6"):
            continue
        endpoints = [each for each in one.endpoints or () if each.addresses]
        port = _port(one, settings) if endpoints else None
        for endpoint in endpoints:
            assert endpoint.addresses
            address = endpoint.addresses[0]
            host = f"[{address}]" if ":" in address else address
            netloc = host if port is None else f"{host}:{port}"
            pod, conditions = endpoint.target_ref or TargetRef(), endpoint.conditions or Conditions()
            key = pod.uid or netloc
            if conditions.terminating:
                leaving.add(key)
            spec = template(settings.replica, f"{settings.scheme}://{netloc}", pod.name or netloc)
            there.setdefault(key, Found(spec, pod.uid, ready=conditions.ready is not False))
    found = [each for key, each in there.items() if key not in leaving]
    return sorted(found, key=lambda each: each.spec.name)


def _port(one: Slice, settings: Kubernetes) -> int:
    wanted, ports = settings.port, [each for each in one.ports or () if each.port is not None]
    if wanted is not None and wanted.isdigit():
        return int(wanted)
    if wanted is not None:
        ports = [each for each in ports if each.name == wanted]
    if len(ports) == 1:
        assert ports[0].port is not None
        return ports[0].port
    names = ", ".join(sorted(each.name or str(each.port) for each in one.ports or ()))
    raise Unusable(
        f"the service {settings.service} has the ports {names or 'none'}: set WARMROUTE_KUBERNETES__PORT "
        "to the one that the replicas serve on"
    )
