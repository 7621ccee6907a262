"""Whose word counts for where a request came from.

A client's address is its connection's, unless that is a proxy that is trusted: then it is the last address of
X-Forwarded-For that is not a trusted proxy's. So nobody can put on another's address: what stands left of
the first address that no trusted proxy vouches for is never looked at. Where an entry is no address, the
nearest hop known to be real counts. `X-Forwarded-*`, `Forwarded` and `X-Real-IP` reach a replica only from a
trusted proxy; from anybody else they are claims, and are left out (see `request_head.forwardable`).

Pure. Invariant: the result is a normal form, so that one client has one spelling: IPv4 also where it came
mapped into IPv6, and of IPv6 the /64 network, within which a client may choose any address.
"""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MOST_HOPS = 32
"""Entries of X-Forwarded-For that are looked at, from the right."""


def network(text: str) -> Network:
    """Read an address or a network; ValueError is a phrase that follows the setting's name."""
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise ValueError(f"names {text.strip()!r}, which is no address or network like 10.0.0.0/8") from None


class TrustedProxies:
    """The proxies in front of this one whose word counts."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)
        self._trusts = lru_cache(maxsize=4096)(self._among)

    def trusts(self, peer: str | None) -> bool:
        """Whether a connection from this address is a trusted proxy's; one without an address never is."""
        return bool(self._networks) and peer is not None and self._trusts(peer)

    def caller(self, peer: str | None, forwarded_for: bytes | None) -> str | None:
        """The address of whoever calls over a connection from `peer`; None if it has none."""
        nearest = None if peer is None else _address(peer)
        if nearest is None:
            return peer
        if forwarded_for is not None and self.trusts(peer):
            for entry in reversed(forwarded_for.rsplit(b",", MOST_HOPS)[-MOST_HOPS:]):
                address = _address(_bare(entry))
                if address is None:
                    break
                nearest = address
                if not self._trusts(str(address)):
                    break
        return _spelled(nearest)

    def _among(self, peer: str) -> bool:
        address = _address(peer)
        return address is not None and any(address in each for each in self._networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _bare(entry: bytes) -> str:
    """An entry without the port and brackets that some proxies write."""
    text = entry.strip().decode("latin-1")
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


@lru_cache(maxsize=4096)
def _spelled(address: IPv4Address | IPv6Address) -> str:
    return str(address) if address.version == 4 else str(ip_network((address, 64), strict=False))
