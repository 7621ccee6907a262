"""Where replicas are looked for, as a person sets it, and what was found there.

Pure. Invariant: a `Found` says all that tells one replica from another: its name, its address and, where the
platform knows it, which incarnation bears them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    PositiveFloat,
    StringConstraints,
    ValidationError,
    field_validator,
)

from proxy.spec import Frozen, ReplicaSpec, Text, parse_json

_Label = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
OWN = frozenset(("url", "name"))
"""What each discovered replica has of its own."""


@dataclass(slots=True, frozen=True)
class Found:
    """A replica that was found."""

    spec: ReplicaSpec
    uid: str = ""
    """Which incarnation bears the name, a pod's uid; empty where nobody says."""
    ready: bool = True
    """False: the platform gives it no traffic now, and neither does the proxy."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for the same replica, and never for another one that has got its name or its address."""
        return self.spec.name, self.spec.url, self.uid


class Dns(Frozen):
    """How names are looked up, in discovery and for replicas that are configured by name."""

    interval: PositiveFloat = 5.0
    """seconds between two lookups of a name; one that fails to connect is looked up at once"""
    family: Literal["any", "ipv4", "ipv6"] = "any"
    """which addresses are replicas with discovery=dns: any, ipv4, ipv6; a dual-stack service gives each pod
    two, so name one there"""


def _mapping(value: Any) -> Any:
    return parse_json(value) if isinstance(value, str) else value


class Kubernetes(Frozen):
    """Which pods are replicas, with discovery=kubernetes."""

    service: _Label | None = None
    """name of the service whose EndpointSlices are followed; its pods are the replicas, by their names"""
    namespace: _Label | None = None
    """namespace of that service; absent: that of this pod, or of the kubeconfig's context"""
    port: Text | None = None
    """name of the service's port, or a number; absent: its only port"""
    scheme: Literal["http", "https"] = "http"
    """what the pods speak"""
    replica: Annotated[dict[str, Any], BeforeValidator(_mapping)] = {}  # noqa: RUF012 - pydantic copies it
    """JSON object of what all of these replicas have in common, as in `replicas` but for url and name:
    {"engine": "vllm", "priority": "low_first"}; what is absent is asked of each"""
    resync: PositiveFloat = 30.0
    """seconds after which all is listed anew, however well the watch seems to work"""
    kubeconfig: Path | None = None
    """file that says how the API server is reached; absent: the pod's service account, or ~/.kube/config"""

    @field_validator("replica")
    @classmethod
    def _of_a_replica(cls, value: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(OWN & value.keys()):
            raise ValueError(f"should leave out {' and '.join(own)}: each pod has its own")
        try:
            template(value, "http://0.0.0.0:1", "any")
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ", ".join(map(str, fault["loc"]))
            raise ValueError(f"is no replica: {where}: {fault['msg']}") from None
        return value


def template(common: Mapping[str, Any], url: str, name: str) -> ReplicaSpec:
    """A replica of which this much is configured. Raises ValueError where it is not right."""
    return ReplicaSpec.model_validate({**common, "url": url, "name": name})
