"""The prefix cache of one simulated replica: fixed-size blocks, pinned by running sequences, LRU otherwise.

Pure: no clock, no I/O. It follows vLLM's block pool: a freed block stays reusable until its room is needed,
a sequence gives its blocks back tail first, so a prompt's tail is evicted before its head.

One difference: vLLM keeps a second physical copy when two sequences compute the same block at once, here they
share the first. That is what makes the cache prefix-closed in every interleaving (whoever holds a block holds
its parents), and it moves hit rates by less than a block a request.

Invariants: `pinned + evictable <= blocks`; a cached block's parent is cached.
"""

from collections import OrderedDict
from collections.abc import Sequence


class OutOfBlocksError(Exception):
    """More blocks were asked for than are not pinned."""


class BlockCache:
    """Blocks by key; a key stands for a block and everything before it."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError("a cache needs at least one block")
        self.blocks = blocks
        self.evicted: list[int] | None = None
        """Keys that were given up, oldest first, where somebody sets a list to keep them in."""
        self._references: dict[int, int] = {}
        self._evictable: OrderedDict[int, None] = OrderedDict()
        self._anonymous = 0

    @property
    def pinned(self) -> int:
        """Blocks that running sequences hold."""
        return len(self._references) + self._anonymous

    @property
    def evictable(self) -> int:
        """Cached blocks that nobody holds."""
        return len(self._evictable)

    @property
    def cached(self) -> int:
        """Blocks that a request could reuse, whoever holds them."""
        return len(self._references) + len(self._evictable)

    def __contains__(self, key: int) -> bool:
        return key in self._references or key in self._evictable

    def match(self, keys: Sequence[int], limit: int) -> int:
        """How many of the first `limit` keys are cached without a gap."""
        depth = 0
        for key in keys[:limit]:
            if key not in self._references and key not in self._evictable:
                break
            depth += 1
        return depth

    def unpinned(self, keys: Sequence[int]) -> int:
        """How many of these cached keys nobody holds, i.e. what pinning them would add to `pinned`."""
        return sum(key in self._evictable for key in keys)

    def pin(self, key: int) -> bool:
        """Hold one more reference to the block of `key`; True if it was not cached and has to be computed."""
        held = self._references.get(key)
        if held is not None:
            self._references[key] = held + 1
            return False
        new = key not in self._evictable
        if new:
            self._make_room()
        else:
            del self._evictable[key]
        self._references[key] = 1
        return new

    def release(self, key: int) -> None:
        """Give one reference back. The caller releases a sequence's keys last block first."""
        held = self._references[key] - 1
        if held:
            self._references[key] = held
        else:
            del self._references[key]
            self._evictable[key] = None

    def pin_anonymous(self) -> None:
        """Hold a block that has no key: one that is not full yet."""
        self._make_room()
        self._anonymous += 1

    def release_anonymous(self) -> None:
        """Give such a block back; nothing of it is kept."""
        self._anonymous -= 1

    def clear(self) -> bool:
        """Forget everything; refused, like vLLM does, while a sequence holds blocks."""
        if self.pinned:
            return False
        self._evictable.clear()
        return True

    def _make_room(self) -> None:
        if self.pinned + len(self._evictable) < self.blocks:
            return
        if not self._evictable:
            raise OutOfBlocksError
        key, _ = self._evictable.popitem(last=False)
        if self.evicted is not None:
            self.evicted.append(key)
