"""Handles of an engine whose blocks are smaller than ours: several of them make one block of ours.

A block of ours is held exactly while all its parts are; a part may belong to many blocks, where prompts
branch inside one. A part that goes and comes back brings its blocks back, for the engine finds them again.
Pure.

Takes a few hundred bytes a part: meant for the odd replica out, not for a fleet, whose block size we share.
"""

from collections.abc import Iterable
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from proxy.index.holdings import Copies, Held


class Part(NamedTuple):
    """Where the chain stands after a part."""

    seed: int
    """The key of the last full block."""
    tokens: bytes
    """Those since then."""
    trail: tuple[int, ...]
    """The handles of those."""


def begin(seed: int) -> Part:
    """Return where the chain of a new prompt stands."""
    return Part(seed, b"", ())


class Block(NamedTuple):
    """A full block of ours."""

    key: int
    parts: tuple[int, ...]


class Parts:
    """Handles of parts of our blocks."""

    def __init__(self, held: Held, block_bytes: int, *, counted: bool) -> None:
        self._held = held
        self._block_bytes = block_bytes
        self._copies = Copies(counted=counted)
        self._parts: dict[int, Part | None] = {}
        self._blocks: dict[int, Block] = {}
        """By its last part: the blocks whose last part is there."""
        self._uses: dict[int, set[int]] = {}
        """Part to the last parts of the blocks that it belongs to, itself included."""
        self._complete: set[int] = set()
        """The last parts of those of `_blocks` that have all their parts."""

    def __len__(self) -> int:
        return len(self._parts)

    def after(self, handle: int) -> Part | None:
        """Return where the chain stands after `handle`; None if that is not known."""
        return self._parts.get(handle)

    def store(self, handles: Iterable[int], tokens: Iterable[bytes], at: Part) -> None:
        """Each of `handles` is stored, one after the other, with the tokens beside it."""
        for handle, piece in zip(handles, tokens, strict=True):
            part = Part(at.seed, at.tokens + piece, (*at.trail, handle))
            block: Block | None = None
            if len(part.tokens) == self._block_bytes:
                block = Block(xxh3_64_intdigest(part.tokens, part.seed), part.trail)
                part = Part(block.key, b"", ())
            self._store(handle, part, block)
            at = part

    def _store(self, handle: int, part: Part, block: Block | None) -> None:
        if handle in self._parts:
            before = self._parts[handle]
            if before == part and self._blocks.get(handle) == block:
                self._copies.add(handle)
                return
            if before is None:
                self._copies.add(handle)
            else:  # another block of the same name
                self._copies.forget(handle)
                self._forget_block(handle)
        self._parts[handle] = part
        if block is not None:
            self._blocks[handle] = block
            for each in block.parts:
                self._uses.setdefault(each, set()).add(handle)
        for last in self._uses.get(handle, ()):
            if last not in self._complete and all(each in self._parts for each in self._blocks[last].parts):
                self._complete.add(last)
                self._held.add(self._blocks[last].key)

    def store_unkeyed(self, handles: Iterable[int]) -> None:
        """Each of `handles` is stored, and nobody knows what it stands for, unless it was known before."""
        for handle in handles:
            if handle in self._parts:
                self._copies.add(handle)
            else:
                self._parts[handle] = None

    def remove(self, handles: Iterable[int]) -> None:
        """One copy of each of `handles` is gone."""
        for handle in handles:
            if handle not in self._parts or not self._copies.remove(handle):
                continue
            del self._parts[handle]
            for last in self._uses.get(handle, ()):
                self._break(last)
            self._forget_block(handle)

    def _break(self, last: int) -> None:
        if last in self._complete:
            self._complete.discard(last)
            self._held.drop(self._blocks[last].key)

    def _forget_block(self, last: int) -> None:
        block = self._blocks.pop(last, None)
        if block is None:
            return
        if last in self._complete:
            self._complete.discard(last)
            self._held.drop(block.key)
        for each in block.parts:
            uses = self._uses[each]
            uses.discard(last)
            if not uses:
                del self._uses[each]
