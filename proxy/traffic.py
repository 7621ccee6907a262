"""Which group a request belongs to: `shared` if the start of its prompt was seen lately, else `random`.

Independent of what any replica still caches, so that the two groups can be compared whatever the policy.
Bounded: two generations of 64-bit keys, the older dropped when the younger is full. Pure.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array

SHARED, RANDOM, OTHER = "shared", "random", "other"
START_TOKENS = 128
"""How much of a prompt's start must be equal: more than a chat template's own opening words."""
GENERATION = 65536


class Seen:
    """A sketch of the prompt starts of recent traffic."""

    def __init__(self) -> None:
        self._young: set[int] = set()
        self._old: set[int] = set()

    def group(self, keys: array[int], block_tokens: float) -> str:
        """Class a prompt by its block keys, and remember it."""
        if not keys:
            return RANDOM
        last = max(0, int(START_TOKENS / block_tokens) - 1)
        start = keys[last] if last < len(keys) else keys[-1]
        young = self._young
        if start in young:
            return SHARED
        young.add(start)
        seen = start in self._old
        if len(young) >= GENERATION:
            self._old, self._young = young, set()
        return SHARED if seen else RANDOM
