"""Placements that other proxies tell of: what they predicted, and what became of it, by origin and number.

The index takes them as its own. Only the receipts are kept here, the newest of each origin up to a bound;
what is said of a placement whose receipt is gone, or never came, is passed over. Nobody tells of another
proxy's first token, so these predictions have their time from the start, long enough for a queue.

An origin that is gone takes its receipts with it, not its placements: most of its requests had been answered.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array

from proxy.index.base import Placement
from proxy.index.truth import TrueIndex

RECEIPTS = 4_096
"""Placements of one origin that can still be taken back."""
ORIGINS = 256
QUEUED_S = 30.0
"""Seconds for a placement of another proxy to be confirmed by events, its time in a queue included."""


class Remote:
    """The placements of all other proxies."""

    def __init__(self, index: TrueIndex, *, receipts: int = RECEIPTS, origins: int = ORIGINS) -> None:
        self._index = index
        self._most = receipts
        self._most_origins = origins
        self._origins: dict[str, dict[int, Placement]] = {}
        """The origin heard last is last, and so is its newest placement."""

    def __len__(self) -> int:
        """Receipts kept."""
        return sum(map(len, self._origins.values()))

    def predicted(self, origin: str, number: int, replica: str, keys: array[int]) -> None:
        """Another proxy placed this prompt, under a number of its own. `keys` must not change any more."""
        placement = self._index.predict(replica, keys)
        self._index.expire(placement, QUEUED_S)
        if placement.ends:  # nobody tells when: what others have in slots may be waited for
            placement.over()
        receipts = self._origins.pop(origin, {})
        receipts.pop(number, None)
        receipts[number] = placement
        if len(receipts) > self._most:
            del receipts[next(iter(receipts))]
        self._origins[origin] = receipts
        if len(self._origins) > self._most_origins:
            del self._origins[next(iter(self._origins))]

    def retracted(self, origin: str, number: int) -> None:
        """Its request failed before the first byte."""
        placement = self._take(origin, number)
        if placement is not None:
            self._index.retract(placement)

    def reported(self, origin: str, number: int, predicted: int, reported: int) -> None:
        """The engine found more blocks or fewer than predicted."""
        placement = self._take(origin, number)
        if placement is not None:
            self._index.confirm(placement, predicted, reported)

    def forget(self, origin: str) -> None:
        """That proxy is gone. An unknown one is no error."""
        self._origins.pop(origin, None)

    def _take(self, origin: str, number: int) -> Placement | None:
        return self._origins.get(origin, {}).pop(number, None)
