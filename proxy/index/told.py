"""The index of a proxy that is not alone: what happens here is told to the others as well.

What they would know anyway is kept to itself: blocks that a replica's events have confirmed, answers that its
events will tell of, and reports that only bear a prediction out. Must never wait: whoever is told queues.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Callable
from typing import Protocol

from proxy.index.base import Placement
from proxy.index.overlay import Prediction
from proxy.index.slots import SlotPlacement
from proxy.index.truth import TrueIndex


class Audience(Protocol):
    """The other proxies; see `proxy.shared.base.Pool`."""

    def predicted(self, number: int, replica: str, keys: array[int]) -> None:
        """A prompt was placed."""

    def retracted(self, number: int) -> None:
        """That placement came to nothing."""

    def reported(self, number: int, predicted: int, reported: int) -> None:
        """The engine found more or fewer blocks cached than predicted."""


class ToldIndex:
    """A `PrefixIndex` like the `TrueIndex` it is made of, for placements that are made in this process."""

    def __init__(self, index: TrueIndex, audience: Callable[[str], Audience | None]) -> None:
        """`audience` gives who shares a replica's index, by the replica's name; None if nobody does."""
        self._index = index
        self._audience = audience
        self.match = index.match
        self.first_token = index.first_token
        self.forget = index.forget
        self.resize = index.resize
        self.blocks = index.blocks
        self.capacity = index.capacity
        self.size = index.size

    def predict(self, replica: str, keys: array[int], *, after: Placement | None = None) -> Placement:
        """See `PrefixIndex.predict`."""
        placement = self._index.predict(replica, keys, after=after)
        confirmed = isinstance(placement, Prediction) and (after is not None or placement.start >= len(keys))
        if not confirmed and placement is not after:
            audience = self._audience(replica)
            if audience is not None:
                audience.predicted(_number(placement), replica, keys)
        return placement

    def retract(self, placement: Placement) -> None:
        """See `PrefixIndex.retract`."""
        self._index.retract(placement)
        audience = self._audience(placement.replica)
        if audience is not None:
            audience.retracted(_number(placement))

    def confirm(self, placement: Placement, predicted: int, reported: int) -> None:
        """See `PrefixIndex.confirm`."""
        self._index.confirm(placement, predicted, reported)
        if abs(reported - predicted) > 1 and not isinstance(placement, Prediction):
            audience = self._audience(placement.replica)
            if audience is not None:
                audience.reported(_number(placement), predicted, reported)


def _number(placement: Placement) -> int:
    """What a placement is called towards others: the two kinds count their ticks apart."""
    return 2 * placement.tick + isinstance(placement, Prediction | SlotPlacement)
