"""One replica's events, batch by batch, to what they change of our keys.

The engine names blocks by handles of its own; a book knows which of our keys each stands for, and how many
copies there are. Pure: told the batches of one replica in their order, each at most once, and nothing else.

What becomes a key: blocks on the GPU, of groups whose layers attend to everything before, with nothing that
keeps them apart but an adapter's name and a salt, whose parent has a key or that begin a prompt. Anything
else there is known as unkeyed: so are its children, and its removal takes nothing away that was not claimed.
Blocks elsewhere (on the CPU, in groups of sliding windows) change nothing here: they are no hits, and their
going does not end one.

Where an engine's meaning is in doubt, a block is called absent.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from proxy.index.batch import GPU, Batch, Cleared, Removed, Stored
from proxy.index.holdings import Held, Whole
from proxy.index.parts import Parts, begin
from proxy.prompt.blocks import TOKEN_BYTES, chain

ATTEND_TO_ALL: Final = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
"""Kinds of groups whose blocks are usable wherever a prompt matches; None: the engine has but one group."""
MOST_PARTS: Final = 8
"""An engine whose blocks are smaller than an eighth of ours is not followed: each part takes its own room."""
MOST_HANDLES: Final = 1 << 23
BITS: Final = (1 << 64) - 1
APART: Final = 0x9E3779B97F4A7C15
"""Odd, so that no two groups share a multiple of it (2**64 divided by the golden ratio)."""

Root = Callable[[str | None, str | None], int]
"""(adapter, salt) to key[-1], as `Keyer.chain_start` has it."""


def _keys() -> array[int]:
    return array("Q")


@dataclass(slots=True)
class Delta:
    """The net effect of one batch; to be applied in the order of the fields."""

    cleared: bool = False
    removed: array[int] = field(default_factory=_keys)
    """Our keys, array('Q'), no longer held."""
    stored: array[int] = field(default_factory=_keys)
    """Our keys, array('Q'), held from now on."""
    handles_gone: list[int] = field(default_factory=list)
    """May name handles that were never told of, and some that `handles` tells of again."""
    handles: list[tuple[int, int, int]] = field(default_factory=list)
    """(handle, our key, copies) as it is now, of handles that changed; only what `resume` can take."""
    unkeyed: int = 0
    """Blocks stored that could not be given a key, among those that should have one."""


class HandleBook:
    """What one replica has said it keeps."""

    def __init__(
        self,
        root: Root,
        block_size: int,
        *,
        copies: Literal["counted", "unknown"] = "unknown",
        limit: int = MOST_HANDLES,
    ) -> None:
        """`block_size`: tokens of a block of ours.

        `copies`: "counted" for an engine that reports the end of every copy of a block that it has reported
        (vLLM to 0.33); "unknown" for any other, whose first word of a removal is taken for the last.
        `limit`: handles kept; what is stored beyond it is unkeyed and not remembered.
        """
        self._root = root
        self._block_size = block_size
        self._counted = copies == "counted"
        self._limit = limit
        self._unkeyed = 0
        self.misfit: int | None = None
        """The engine's block size, where it and ours are no multiples: nothing of it can be keyed."""
        self.clear()

    @property
    def keys(self) -> int:
        """Distinct keys held."""
        return len(self._held.keys)

    @property
    def handles(self) -> int:
        """Handles known, with those that are unkeyed."""
        return len(self._whole) + len(self._parts)

    @property
    def resumable(self) -> bool:
        """Whether `Delta.handles` has told of all that is held: not where block sizes differ."""
        return not self._odd

    def apply(self, batch: Batch) -> Delta:
        """Take one batch, the next in order."""
        cleared = False
        for event in batch.events:
            if isinstance(event, Removed):
                if event.medium == GPU:
                    self._remove(event)
            elif isinstance(event, Stored):
                if event.medium == GPU and event.kind in ATTEND_TO_ALL:
                    self._store(event)
            elif isinstance(event, Cleared):
                self.clear()
                cleared = True
        removed, stored = self._held.take()
        gone, handles = self._whole.take()
        unkeyed, self._unkeyed = self._unkeyed, 0
        return Delta(cleared, removed, stored, gone, handles, unkeyed)

    def resume(self, handles: Iterable[tuple[int, int, int]]) -> None:
        """Take over what another book has told of the same replica; what is known already stays."""
        self._whole.resume(handles)
        self._held.take()
        self._whole.take()

    def whole(self) -> Delta:
        """All that is held, as one change from nothing: for whoever has lost what `apply` told."""
        return Delta(cleared=True, stored=array("Q", self._held.keys), handles=self._whole.all())

    def clear(self) -> Delta:
        """Forget everything: the engine has, or nobody knows what it still keeps."""
        self._odd = False
        self._held = Held()
        self._whole = Whole(self._held, counted=self._counted)
        self._parts = Parts(self._held, self._block_size * TOKEN_BYTES, counted=self._counted)
        return Delta(cleared=True)

    def _remove(self, event: Removed) -> None:
        handles = _of_group(event.hashes, event.group)
        self._whole.remove(handles)
        if self._parts:
            self._parts.remove(handles)

    def _store(self, event: Stored) -> None:
        handles, parent = event.hashes, event.parent
        if event.group:
            handles = _of_group(handles, event.group)
            parent = None if parent is None else _of_group([parent], event.group)[0]
        if len(self._whole) + len(self._parts) + len(handles) > self._limit:
            self._unkeyed += len(handles)
            return
        keyed = len(handles) if event.extra is None else _plain(event)
        smaller = 0 < event.block_size < self._block_size
        store = self._store_parts if smaller else self._store_whole
        if not (keyed and self._fits(event) and store(event, parent, handles, keyed)):
            keyed = 0
        if keyed < len(handles):
            self._unkeyed += len(handles) - keyed
            (self._parts if smaller else self._whole).store_unkeyed(handles[keyed:])

    def _fits(self, event: Stored) -> bool:
        """Whether the event has the tokens of its blocks, and blocks of a size that can be followed."""
        theirs, ours = event.block_size, self._block_size
        if len(event.tokens) != len(event.hashes) * theirs or theirs <= 0:
            return False
        if theirs == ours:
            return True
        self._odd = True
        fits = theirs % ours == 0 or (ours % theirs == 0 and ours // theirs <= MOST_PARTS)
        if not fits:
            self.misfit = theirs
        return fits

    def _store_whole(self, event: Stored, parent: int | None, handles: list[int], keyed: int) -> bool:
        """Key the first `keyed` of `handles`; False if that cannot be done."""
        before = self._root(event.lora, event.salt) if parent is None else self._whole.last(parent)
        tokens = _bytes(event.tokens)
        if before is None or tokens is None:
            return False
        keys = chain(tokens, self._block_size, before)[0].tolist()
        several = event.block_size // self._block_size
        if keyed < len(handles):
            handles = handles[:keyed]
            keys = keys[: keyed * several]
        (self._whole.store if several == 1 else self._whole.store_larger)(handles, keys)
        return True

    def _store_parts(self, event: Stored, parent: int | None, handles: list[int], keyed: int) -> bool:
        """Do the same for blocks smaller than ours."""
        before = begin(self._root(event.lora, event.salt)) if parent is None else self._parts.after(parent)
        tokens = _bytes(event.tokens)
        if before is None or tokens is None:
            return False
        size = event.block_size * TOKEN_BYTES
        self._parts.store(
            handles[:keyed], [tokens[at * size : (at + 1) * size] for at in range(keyed)], before
        )
        return True


def _of_group(hashes: list[int], group: int | None) -> list[int]:
    """Make handles of hashes: groups of layers name their blocks alike, and keep and drop them each alone.

    Those of group 0, or of an engine without groups, are the hashes.
    """
    if not group:
        return hashes
    apart = group * APART & BITS
    return [each ^ apart for each in hashes]


def _plain(event: Stored) -> int:
    """Count the blocks, from the first, that nothing keeps apart which we do not know how to key."""
    if event.extra is None:
        return len(event.hashes)
    if len(event.extra) != len(event.hashes):
        return 0
    return next((at for at, extra in enumerate(event.extra) if extra), len(event.extra))


def _bytes(tokens: list[int]) -> bytes | None:
    """Lay token ids out as keys are made of them; None if one is no 32-bit number."""
    try:
        return array("I", tokens).tobytes()
    except OverflowError:
        return None
