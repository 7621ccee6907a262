"""Which prefixes recent prompts share most: a sketch of bounded size, whatever prompts come.

A prefix is known by its key at a depth of 1, 2, 4 and so on blocks: keys are chained, so one key stands for
everything before it. Each depth has a summary in the manner of Space-Saving (Metwally, Agrawal, El Abbadi
2005): where twice PLACES are taken, the least counted half makes room, and a new key inherits the most that
any of them was counted as a possible error. So a key with more than 1/PLACES of a depth's counts is always
there. A prompt is counted at a
depth only if it had been seen at the depth above: prompts that share nothing cost one place each, not one a
depth. Counts fade with time by growing the weight of what comes later. Pure; told the time that has passed.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp, log2

FIRST_TOKENS = 128
"""The least depth, or up to twice it: more than a chat template's own opening words."""
LEVELS = 20
"""The greatest depth is 2 ** (LEVELS - 1) blocks."""
PLACES = 64
FADE_SECONDS = 10.0
TIMES = 3
"""How often a prefix must have been seen to count as shared."""
SAME = 0.5
"""A prefix of which one longer prefix has at least this share is that longer one."""
_HUGE = 2.0**60


class _Place:
    """One key at one depth."""

    __slots__ = ("above", "blocks", "count", "error", "times")

    def __init__(self, above: int, blocks: int, count: float, error: float) -> None:
        self.above = above
        """Its key one depth above."""
        self.blocks = blocks
        self.count = count
        self.error = error
        """How much of the count may have been another key's."""
        self.times = 1


@dataclass(slots=True, frozen=True)
class Shared:
    """A prefix that recent prompts share."""

    key: int
    blocks: int
    """How deep the key stands; the prompts that have it share at least so much."""
    rate: float
    """Prompts a second, at least."""


class _Level(dict[int, _Place]):
    """The keys at one depth."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0.0
        """The most that a key was counted which is not here any more."""

    def admit(self, key: int, place: _Place) -> None:
        if len(self) >= 2 * PLACES:
            least = sorted(self, key=lambda known: self[known].count)[:PLACES]
            self.dropped = self[least[-1]].count
            for known in least:
                del self[known]
        place.error = self.dropped
        place.count += self.dropped
        self[key] = place


class Sketch:
    """Counts the prefixes of prompts."""

    def __init__(self) -> None:
        self._levels = [_Level() for _ in range(LEVELS)]
        self._weight = 1.0
        """What one prompt counts now: it grows, in place of fading all that was counted before."""

    def fade(self, seconds: float) -> None:
        """So much time has passed."""
        self._weight *= exp(min(seconds / FADE_SECONDS, 40.0))
        if self._weight > _HUGE:
            for level in self._levels:
                level.dropped /= self._weight
                for place in level.values():
                    place.count /= self._weight
                    place.error /= self._weight
            self._weight = 1.0

    def add(self, keys: array[int], block_tokens: float, prompts: float = 1.0) -> None:
        """Count a prompt by its block keys, for `prompts` that it stands for."""
        weight, above = prompts * self._weight, 0
        first = min(max(0, ceil(log2(FIRST_TOKENS / block_tokens))), LEVELS)
        blocks = 1 << first
        for level in self._levels[first:]:
            if blocks > len(keys):
                return
            key = keys[blocks - 1]
            place = level.get(key)
            if place is None:
                level.admit(key, _Place(above, blocks, weight, 0.0))
                return
            place.count += weight
            place.times += 1
            above, blocks = key, 2 * blocks

    def shared(self, least: float) -> Iterator[Shared]:
        """The prefixes of at least so many prompts a second, each as deep as most of its prompts go."""
        longer: dict[int, float] = {}
        for level in reversed(self._levels):
            here, longer = longer, {}
            for key, place in level.items():
                sure = place.count - place.error
                if sure > longer.get(place.above, 0.0):
                    longer[place.above] = sure
                rate = sure / self._weight / FADE_SECONDS
                if rate >= least and place.times >= TIMES and here.get(key, 0.0) < SAME * sure:
                    yield Shared(key, place.blocks, rate)

    def __len__(self) -> int:
        """Keys that are counted."""
        return sum(map(len, self._levels))
