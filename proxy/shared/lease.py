"""The right to ingest one replica's feed: one proxy at a time, decided by Redis alone.

A lease is a key that runs out by itself, so another proxy can take over within `LEASE` after its holder was
killed; a holder that closes gives it up at once. No clock of a proxy is asked: a holder that was away finds
out when it writes, because every write names its token and Redis compares. Tokens carry a counter that only
grows, who made them, and how many that one had made. Must never decide here that a lease still holds.
"""

from itertools import count

from proxy.shared import scripts
from proxy.shared.base import Claim
from proxy.shared.client import Link
from proxy.shared.layout import Names, escape

LEASE = 5.0
"""Seconds until a lease runs out that is not renewed."""
RENEW = 1.25
"""Seconds between renewals: three may fail."""
KEEP = 600.0
"""Seconds that everything else outlives whoever keeps it alive."""


def ms(seconds: float) -> int:
    """Whole milliseconds, as Redis takes them."""
    return int(seconds * 1000)


class Leases:
    """Leases of one pool, for one proxy."""

    def __init__(self, link: Link, names: Names, origin: str) -> None:
        self._link = link
        self._names = names
        self._origin = origin
        self._made = count(1)

    async def claim(self, replica: str) -> Claim | None:
        """Take the lease if nobody has it. RedisError if Redis cannot be asked."""
        keys = (self._names.own(replica), self._names.fence)
        claimant = f"{self._origin}:{next(self._made)}"  # no two tokens are equal, even if the fence was lost
        token = await self._link.script(scripts.CLAIM, keys, (claimant, ms(LEASE), ms(KEEP)))
        return None if token is None else Claim(replica, token.decode())

    async def renew(self, claim: Claim) -> bytes:
        """Prolong it, and what is written of its replica. `HELD`, `FENCED`, or what is wrong with that."""
        names, replica = self._names, claim.replica
        keys = (names.own(replica), names.rep(replica), names.replicas)
        args = (claim.token, ms(LEASE), ms(KEEP), escape(replica))
        return bytes(await self._link.script(scripts.RENEW, keys, args))

    async def release(self, claim: Claim) -> None:
        """Give it up."""
        await self._link.script(scripts.RELEASE, (self._names.own(claim.replica),), (claim.token,))
