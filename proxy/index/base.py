"""The seam between routing and whatever knows which replica holds which prefix.

An index takes block keys and replica names and answers at once: synchronous, no I/O, no clock. It never
decides where a request goes, and it never invents knowledge: what it says a replica holds was predicted for
that replica and not taken back since. `keys` are chained 64-bit block keys, one per full block of a prompt:
`keys[i]` stands for the whole prompt up to and including block i, so that equal keys at i mean equal keys
before i (up to 2**-64).

The router's use of it, in order:

    held = index.match(keys)                              # before the choice
    placement = index.predict(replica, keys)              # after it
    index.first_token(placement, expected)                # the answer begins
    index.confirm(placement, predicted, reported)         # when the engine said what it found cached, or
    index.retract(placement)                              # when the request failed before its first byte
    index.predict(replica, longer_keys, after=placement)  # the answer is complete: its blocks are cached too
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(slots=True, eq=False)
class Placement:
    """The receipt for one prediction: what the index believed just before it. For the index alone to read.

    It stays harmless after its replica was forgotten, even if another replica has taken the name since.
    `keys` is the caller's array, not a copy: it must not change while the placement lives.
    """

    replica: str
    keys: array[int]
    before: int
    """Blocks of this prompt that the replica was believed to hold already, unbroken from block 0."""
    incarnation: int
    """Which bearer of the name; a forgotten replica that comes back is another one."""
    tick: int
    """The index's own count of predictions, its only notion of time."""
    earlier: tuple[tuple[int, int], ...]
    """(depth, tick) pairs, rising in depth: blocks up to that depth had last been used at that tick."""
    dropped: bool
    """True if the first block not believed held had been held, and fell to the index's own capacity."""
    ends: ClassVar[bool] = False
    """Whether `over` is to be called when the request is over, however it ends."""

    def over(self) -> None:
        """The request is over."""


class PrefixIndex(Protocol):
    """Which replica holds which prefix. Bounded per replica; every replica can be forgotten."""

    def match(self, keys: array[int]) -> dict[str, int]:
        """Replica name to blocks of this prompt that it holds, unbroken from block 0; absent if none."""

    def predict(self, replica: str, keys: array[int], *, after: Placement | None = None) -> Placement:
        """Record that `replica` is about to hold all of `keys`, as the blocks it used last.

        Called at dispatch, or at the first token for engines that share blocks only once they are computed;
        and again with the longer list when an answer completed more blocks. With `after`, the same request's
        earlier placement, nothing is recorded if that replica was forgotten meanwhile, whoever bears its
        name now.
        """

    def confirm(self, placement: Placement, predicted: int, reported: int) -> None:
        """Learn from what the engine found: blocks of this prompt predicted and reported as cached.

        Both are capped alike: a hit never counts a prompt's last token. The blocks of the request itself
        stay, whatever was reported, for the engine has just computed them.
        """

    def retract(self, placement: Placement) -> None:
        """The request failed before its first byte: what only this placement added is not held."""

    def first_token(self, placement: Placement, expected: float = 0.0) -> None:
        """The replica began to answer, after an expected time to first token of so many seconds.

        It has computed the prompt: an index that is told what is cached should now be told of it soon.
        """

    def forget(self, replica: str) -> None:
        """Everything about this replica is gone, its size included. An unknown name is no error."""

    def resize(self, replica: str, blocks: int) -> None:
        """The engine's cache has room for `blocks` blocks, at least 1. Saying so again changes nothing."""

    def blocks(self, replica: str) -> int:
        """Blocks that this replica is believed to hold; 0 for a name unknown."""

    def capacity(self, replica: str) -> int:
        """The most blocks the index will believe this replica to hold."""

    def size(self) -> int:
        """Distinct blocks stored, whoever holds them."""
