"""Reading what is shared, whole: what each replica holds, and what its next ingester needs.

Sets and hashes are read page by page, each packed into one string by Redis, so that neither side stops for
long: one SMEMBERS of a million blocks stops the server for over a second. What is written while a set is
read may or may not be in the pages, so whoever reads must have noted the log's end before, and apply what
the log says after it. Must never write.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import cast

from proxy.shared import scripts
from proxy.shared.base import Claim, Mode, Resume
from proxy.shared.client import Link
from proxy.shared.layout import Names, blocks_from, handles_from, unescape
from proxy.shared.script import Script

PAGE = 1_000
"""Entries of a page: about a millisecond for Redis, and for who applies them."""


@dataclass(slots=True, frozen=True)
class Held:
    """A replica of which something is shared."""

    replica: str
    epoch: str
    mode: Mode
    key: bytes
    """Of the set of its blocks."""


@dataclass(slots=True, frozen=True)
class Tail:
    """The log's last entry: where to read on, and its number."""

    id: bytes
    number: int


class Reader:
    """What Redis holds of one pool."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names

    async def tail(self) -> Tail:
        """Where the log ends."""
        last, number = await self._link.script(scripts.TAIL, (self._names.log, self._names.number))
        return Tail(last, int(number))

    async def fleet(self) -> list[Held]:
        """Every replica of which something is shared."""
        rows = await self._link.script(scripts.FLEET, (self._names.replicas,), (self._names.rep(""),))
        return [
            Held(unescape(replica), unescape(epoch), cast("Mode", mode.decode()), key)
            for replica, epoch, mode, key in zip(*[iter(rows)] * 4, strict=True)
        ]

    async def blocks(self, key: bytes) -> AsyncIterator[array[int]]:
        """The blocks of a replica, in parts that may overlap; at least one part."""
        async for page in self._pages(scripts.BLOCKS, key):
            yield blocks_from(page)

    async def resume(self, claim: Claim) -> Resume | None:
        """What the last ingester of this replica left, if it is whole."""
        keys = (self._names.own(claim.replica), self._names.rep(claim.replica))
        reply = await self._link.script(scripts.RESUME, keys, (claim.token,))
        if reply is None:
            return None
        epoch, seq, key = reply
        handles: dict[int, tuple[int, int]] = {}  # a scan may return an entry twice
        async for page in self._pages(scripts.HANDLES, key):
            handles.update((handle, (block, copies)) for handle, block, copies in handles_from(page))
        return Resume(unescape(epoch), int(seq), [(handle, *held) for handle, held in handles.items()])

    async def _pages(self, script: Script, key: bytes) -> AsyncIterator[bytes]:
        cursor = b"0"
        while True:
            cursor, page = await self._link.script(script, (key,), (cursor, PAGE))
            yield page
            if cursor == b"0":
                return
