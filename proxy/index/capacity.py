"""How many blocks to believe of one replica: the engine's cache size times a learned factor.

The factor answers for all that the size does not say: memory that running requests hold, blocks larger than
ours, a second tier behind the cache. Numbers only: nothing here knows of prefixes. Invariant:
LEAST <= factor <= MOST.

Both steps are bounded and limit themselves. Down, because a block missed with n blocks used since proves a
capacity below n, and never asks for less than that; up, because only a block that the index itself had
dropped for want of room is evidence, and a block beyond the true capacity is never found. One incident counts
once: blocks last used before the latest known loss say nothing new when they are missed as well.
"""

LEAST, MOST = 0.05, 1.5
DOWN, UP = 0.9, 1.05


class Capacity:
    """The believed capacity of one replica's cache, in blocks."""

    __slots__ = ("_factor", "_lost", "_size", "blocks")

    def __init__(self, size: int) -> None:
        self._size = size
        self._lost = 0
        self.blocks = size
        """At least 1; to be read only."""
        self._learn(1.0)

    def _learn(self, factor: float) -> None:
        self._factor = factor
        self.blocks = max(1, int(self._size * factor))

    @property
    def factor(self) -> float:
        """Learned share of the engine's cache that keeps prefixes."""
        return self._factor

    def resize(self, size: int) -> None:
        """The engine says how large its cache is; a factor learned against another size is void."""
        if size < 1:
            raise ValueError(f"a cache has at least 1 block, not {size}")
        if size != self._size:
            self._size = size
            self._learn(1.0)

    def missed(self, used: int, newer: int, now: int) -> None:
        """A block last used at tick `used` was evicted while at most `newer` blocks were used since."""
        if used > self._lost:
            bound = max(newer / self._size, self._factor * DOWN, LEAST)
            self._learn(min(self._factor, bound))
        self._lost = max(self._lost, now)

    def exceeded(self) -> None:
        """The engine still had a block that was dropped here for want of room."""
        self._learn(min(MOST, self._factor * UP))
