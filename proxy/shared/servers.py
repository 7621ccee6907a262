"""The connections of one link: two pools for each server, one for commands and one for what blocks there."""

import ssl
from collections.abc import Callable

from proxy.redis_url import Address, RedisURL
from proxy.shared.wire import Pool, context

CONNECTIONS = 10
"""Connections to one server for commands."""
BLOCKING = 64
"""Connections to one server for commands that block there, each on its own."""


class Servers:
    """Pools by address, made when first asked for."""

    def __init__(self, url: RedisURL) -> None:
        self._url = url
        self._commands: dict[Address, Pool] = {}
        self._blocking: dict[Address, Pool] = {}
        self._made: ssl.SSLContext | None = None
        self._tls: Callable[[], ssl.SSLContext] | None = self._context if url.tls is not None else None

    def commands(self, address: Address) -> Pool:
        """The pool for commands that are answered at once."""
        return self._of(self._commands, address, CONNECTIONS)

    def blocking(self, address: Address) -> Pool:
        """The pool for what blocks; the link looks after the server there too, past any backlog."""
        return self._of(self._blocking, address, BLOCKING)

    def sentinel(self, address: Address) -> Pool:
        """A pool for a Sentinel, which has credentials of its own; the caller keeps it."""
        return Pool(address, self._url.sentinel, tls=self._tls, size=1)

    def reset(self) -> None:
        """Connect anew from now on: what runs may still end, what blocks ends at once."""
        self._made = None  # certificates may have been renewed
        for pool in self._commands.values():
            pool.reset()
        for pool in self._blocking.values():
            pool.reset(now=True)

    def keep(self, addresses: frozenset[Address]) -> None:
        """Close what leads elsewhere."""
        for pools in (self._commands, self._blocking):
            for address in pools.keys() - addresses:
                pools.pop(address).reset(now=True)

    def _of(self, pools: dict[Address, Pool], address: Address, size: int) -> Pool:
        if (pool := pools.get(address)) is None:
            url = self._url
            pool = pools[address] = Pool(address, url.credentials, db=url.db, tls=self._tls, size=size)
        return pool

    def _context(self) -> ssl.SSLContext:
        assert self._url.tls is not None
        if self._made is None:
            self._made = context(self._url.tls)
        return self._made
