"""Host names: the addresses behind them, asked of the system's resolver, off the path of requests.

Nothing is kept here: whoever holds addresses decides how long they count. Must never block the event loop.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

GetAddrInfo = Callable[..., Awaitable[list[tuple[Any, ...]]]]
"""Of `loop.getaddrinfo`'s shape."""


def is_name(host: str) -> bool:
    """Whether a host is a name; an address stands for itself."""
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


class Names:
    """Asks for addresses."""

    def __init__(self, getaddrinfo: GetAddrInfo | None = None) -> None:
        """`getaddrinfo` is the event loop's unless given."""
        self._getaddrinfo = getaddrinfo

    async def addresses(self, host: str, port: int, family: int = socket.AF_UNSPEC) -> tuple[str, ...]:
        """All addresses of a name, each once, in the order they came. Raises OSError if there is none."""
        ask = self._getaddrinfo or asyncio.get_running_loop().getaddrinfo
        try:
            found = await ask(host, port, family=family, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host} cannot be a host name") from error
        if not found:
            raise OSError(f"{host} has no address")
        return tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Resolver(AbstractResolver):
    """The same for aiohttp's client."""

    def __init__(self, names: Names) -> None:
        self._names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See `AbstractResolver.resolve`."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._names.addresses(host, port, family)
        ]

    async def close(self) -> None:
        """Nothing is held."""
