"""Which server to talk to: one server, the primary that Sentinels name, or the primaries of a cluster.

A topology only finds; whether what it found can be used is checked by `proxy.shared.client`. Invariants: it
changes its answer only inside `find`, and never waits longer than its caller's deadline allows.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError, ResponseError

from proxy.redis_url import Address, spell
from proxy.shared.wire import Command, Pool, Reply

ASK = 1.0
"""Seconds that a Sentinel, or a node asked for the cluster's slots, may take."""
_KEY_LAST_OF_STREAMS = frozenset((b"XREAD", b"XREADGROUP"))
_KEY_AFTER_COUNT = frozenset((b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO"))
_KEY_AFTER_SUBCOMMAND = frozenset((b"XINFO", b"XGROUP", b"OBJECT", b"MEMORY"))


class Topology(Protocol):
    """Where the keys are."""

    async def find(self) -> frozenset[Address]:
        """Look for the primaries anew: their addresses. RedisError or OSError if they cannot be found."""

    def node(self, commands: Sequence[Command]) -> Address:
        """The primary that these commands, all on keys of one slot, go to; after a first `find`."""

    async def close(self) -> None:
        """Give up what it holds."""


class Single:
    """One server. Its name is resolved whenever a connection is opened, so a name that moves is followed."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def find(self) -> frozenset[Address]:
        """There is nothing to look for."""
        return frozenset((self._address,))

    def node(self, _commands: Sequence[Command]) -> Address:
        """The server."""
        return self._address

    async def close(self) -> None:
        """There is nothing to give up."""


class Sentinel:
    """The primary of a service, as most of the Sentinels that answer name it."""

    def __init__(self, sentinels: Sequence[Address], service: str, pool: Callable[[Address], Pool]) -> None:
        self._pools = {address: pool(address) for address in sentinels}
        self._service = service
        self._primary: Address | None = None

    async def find(self) -> frozenset[Address]:
        """Ask every Sentinel, at once."""
        answers = await asyncio.gather(
            *(
                _ask(pool, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
                for pool in self._pools.values()
            ),
            return_exceptions=True,
        )
        named = Counter(found for each in answers if (found := _named(each)) is not None)
        if not named:
            failed = next((str(each) for each in answers if isinstance(each, Exception)), "")
            where = ", ".join(map(spell, self._pools))
            if not failed:
                raise ResponseError(f"no Sentinel at {where} knows the service {self._service!r}")
            raise ResponseError(f"no Sentinel at {where} answers: {failed}")
        self._primary = named.most_common(1)[0][0]
        return frozenset((self._primary,))

    def node(self, _commands: Sequence[Command]) -> Address:
        """The primary."""
        assert self._primary is not None
        return self._primary

    async def close(self) -> None:
        """Close the connections to the Sentinels."""
        for pool in self._pools.values():
            pool.reset(now=True)


class Cluster:
    """The primaries of a cluster, by slot."""

    def __init__(self, seeds: Sequence[Address], pool: Callable[[Address], Pool]) -> None:
        self._seeds = tuple(seeds)
        self._pool = pool
        self._slots: list[Address] = []

    async def find(self) -> frozenset[Address]:
        """Ask the nodes, one after the other in random order, for the slots."""
        known = list(frozenset(self._slots) | frozenset(self._seeds))
        random.shuffle(known)
        why = ""
        for address in known:
            try:
                slots = _by_slot(await _ask(self._pool(address), "CLUSTER", "SLOTS"), address[0])
            except (RedisError, OSError) as error:
                why = f"{spell(address)}: {error or 'no answer'}"
                continue
            self._slots = slots
            for primary in (primaries := frozenset(slots)):
                if b"cluster_state:ok" not in await _ask(self._pool(primary), "CLUSTER", "INFO"):
                    raise ResponseError(f"the cluster is down, says {spell(primary)}")
            return primaries
        raise ResponseError(f"no node of the cluster can say where the slots are ({why})")

    def node(self, commands: Sequence[Command]) -> Address:
        """The primary that has the slot of the first key."""
        for command in commands:
            if (key := key_of(command)) is not None:
                return self._slots[key_slot(key)]
        return self._slots[0]

    async def close(self) -> None:
        """There is nothing to give up: the connections are the link's."""


def key_of(command: Command) -> bytes | None:
    """The first key of a command of those used here; None if it has none."""
    words = [_bytes(each) for each in command[:4]]
    name = words[0].upper()
    if name in _KEY_LAST_OF_STREAMS:
        after = [index for index, word in enumerate(command) if _bytes(word).upper() == b"STREAMS"]
        return _bytes(command[after[0] + 1])
    place = 3 if name in _KEY_AFTER_COUNT else 2 if name in _KEY_AFTER_SUBCOMMAND else 1
    return words[place] if len(words) > place else None


def _bytes(argument: object) -> bytes:
    return bytes(argument) if isinstance(argument, (bytes, memoryview)) else str(argument).encode()


def _by_slot(reply: Reply, asked: str) -> list[Address]:
    slots: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for first, last, primary, *_replicas in reply:
        host = (primary[0] or b"").decode()  # none: the host that was asked
        slots[first : last + 1] = [(host or asked, int(primary[1]))] * (last + 1 - first)
    covered = [address for address in slots if address is not None]
    if len(covered) < REDIS_CLUSTER_HASH_SLOTS:
        raise ResponseError(f"{REDIS_CLUSTER_HASH_SLOTS - len(covered)} slots have no node")
    return covered


async def _ask(pool: Pool, *command: str) -> Reply:
    async with asyncio.timeout(ASK):
        (reply,) = await pool.exchange([command])
    if isinstance(reply, ResponseError):
        raise reply
    return reply


def _named(answer: object) -> Address | None:
    return (answer[0].decode(), int(answer[1])) if isinstance(answer, list) else None
