"""Replicas behind names: every address that a name stands for is a replica of its own.

A name that cannot be looked up keeps the addresses it had: a name without one and a resolver that has an
outage look the same from here, and probes tell which of the replicas are there.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from proxy.discovery.source import Tell
from proxy.found import Dns, Found, template
from proxy.logs import logger
from proxy.names import Names, is_name
from proxy.spec import ReplicaSpec

GAP_SECONDS = 0.25
"""At least so long between two lookups, however many connections fail."""
FAMILIES: Final[Mapping[str, int]] = {
    "any": socket.AF_UNSPEC,
    "ipv4": socket.AF_INET,
    "ipv6": socket.AF_INET6,
}


class DnsSource:
    """A `Source`."""

    kind = "dns"

    def __init__(self, specs: Sequence[ReplicaSpec], settings: Dns, names: Names) -> None:
        """`specs`: one for each name; what is configured there is so of each replica behind it."""
        self.why: str | None = "it has not been looked up yet"
        self._specs = specs
        self._interval = settings.interval
        self._family = FAMILIES[settings.family]
        self._names = names
        self._known: dict[str, tuple[str, ...]] = {}
        self._faults: dict[str, str] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """See `Source.wake`."""
        self._woken.set()

    async def look(self, tell: Tell) -> None:
        """See `Source.look`."""
        self._woken.clear()
        await asyncio.gather(*map(self._resolve, self._specs))
        self.why = "; ".join(self._faults.values()) or None
        by_url: dict[str, Found] = {}
        for spec in self._specs:
            for address in self._known.get(spec.url, ()):
                found = Found(at(spec, address))
                by_url.setdefault(found.spec.url, found)  # two names may stand for one address
        tell(list(by_url.values()))
        await asyncio.sleep(min(GAP_SECONDS, self._interval))
        try:
            async with asyncio.timeout(self._interval):
                await self._woken.wait()
        except TimeoutError:
            pass

    async def _resolve(self, spec: ReplicaSpec) -> None:
        parts = urlsplit(spec.url)
        host = parts.hostname or ""
        if not is_name(host):
            self._known[spec.url] = (host,)
            return
        try:
            addresses = await self._names.addresses(host, parts.port or 0, self._family)
        except OSError as error:
            fault = f"{host} cannot be looked up ({error.strerror or error})"
            if self._faults.get(spec.url) != fault:
                logger.warning("discovery by dns: %s; what it stood for before is kept", fault)
            self._faults[spec.url] = fault
            return
        self._faults.pop(spec.url, None)
        self._known[spec.url] = tuple(sorted(each for each in addresses if "%" not in each))


def at(spec: ReplicaSpec, address: str) -> ReplicaSpec:
    """The replica behind one address of a name, called by that address."""
    parts = urlsplit(spec.url)
    name = parts.hostname or ""
    host = f"[{address}]" if ":" in address else address
    netloc = host if parts.port is None else f"{host}:{parts.port}"
    common = spec.model_dump(exclude_none=True, exclude={"url", "name"})
    for feed in ("kv_events", "kv_replay"):  # each replica publishes on its own address
        if common.get(feed, "").startswith(f"tcp://{name}:"):
            common[feed] = common[feed].replace(name, host, 1)
    if parts.scheme == "https" and is_name(name):
        common.setdefault("server_name", name)
    return template(common, f"{parts.scheme}://{netloc}", netloc)
