"""What the other proxies have in flight at each replica: told a few times a second, summed over who lives.

Each proxy keeps one field of a hash: its load at all replicas, written only when it has changed. Beside it is
a key that runs out unless it is renewed: the field of a proxy without one counts no more and is deleted by
whoever notices. One call a round does all of that. Must never be a reason to wait: what is not known is zero,
and `known` says so.
"""

import asyncio
import struct
import time
from collections.abc import Callable, Iterable, Mapping

from redis.exceptions import RedisError

from proxy.description import NOTHING, Load
from proxy.shared import scripts
from proxy.shared.base import Counts
from proxy.shared.lease import KEEP, ms
from proxy.shared.log import Log

ROUND = 0.05
"""Seconds between rounds: a load as old as a prefill sends requests past replicas that are free again."""
LIVE = 2.0
"""Seconds after its last round that a proxy's load still counts."""
_ROW = struct.Struct("<HIQI")


Source = Callable[[], Mapping[str, Load]]


class Loads:
    """Other proxies' loads, as of the last round."""

    def __init__(self, log: Log, source: Source, counts: Counts) -> None:
        self.proxies = 0
        """Others that live."""
        self._log = log
        self._source = source
        self._counts = counts
        self._told = b""
        self._heard: dict[bytes, bytes] = {}
        self._sums: dict[str, Load] = {}
        self._at = -LIVE

    @property
    def known(self) -> bool:
        """Whether the sums are of late."""
        return time.monotonic() - self._at < LIVE

    def others(self, replica: str) -> Load:
        """What the other proxies have at this replica."""
        return self._sums.get(replica, NOTHING) if self.known else NOTHING

    async def run(self) -> None:
        """Tell and hear for ever."""
        while True:
            await self._log.agreed.wait()
            try:
                await self.round()
            except RedisError:
                self._counts.failures += 1
                self._told = b""
                await self._log.link.wait_up()
            await asyncio.sleep(ROUND)

    async def round(self) -> None:
        """Tell once, and hear."""
        ours = pack(self._source())
        names, origin = self._log.names, self._log.origin
        keys = (names.load, names.live(origin))
        args = (origin, b"" if ours == self._told else ours, ms(LIVE), ms(KEEP), names.live(""))
        present, *rows = await self._log.link.script(scripts.ROUND, keys, args)
        self._told = ours if present == b"1" else b""
        self._at = time.monotonic()
        heard = dict(zip(rows[::2], rows[1::2], strict=True))
        self.proxies = len(heard)
        if heard != self._heard:
            self._heard = heard
            self._sums = _sum(heard.values())

    async def close(self) -> None:
        """Count no more, at once."""
        try:
            await self._log.link.call("UNLINK", self._log.names.live(self._log.origin))
        except RedisError:
            self._counts.failures += 1


def pack(loads: Mapping[str, Load]) -> bytes:
    """One proxy's field; idle replicas are left out. Never empty."""
    rows = [b"\x01"]
    for replica, load in loads.items():
        if any(load):
            name = replica.encode(errors="surrogatepass")
            rows.append(_ROW.pack(len(name), *load) + name)
    return b"".join(rows)


def unpack(field: bytes) -> dict[str, Load]:
    """Undo `pack`; what is not of this form is nothing."""
    loads: dict[str, Load] = {}
    place = 1
    try:
        while field[:1] == b"\x01" and place < len(field):
            length, *load = _ROW.unpack_from(field, place)
            place += _ROW.size + length
            name = field[place - length : place]
            loads[name.decode(errors="surrogatepass")] = Load(*load)
    except (struct.error, UnicodeDecodeError):
        return {}
    return loads


def _sum(fields: Iterable[bytes]) -> dict[str, Load]:
    sums: dict[str, Load] = {}
    for field in fields:
        for replica, load in unpack(field).items():
            sums[replica] = Load(*map(sum, zip(sums.get(replica, NOTHING), load, strict=True)))
    return sums
