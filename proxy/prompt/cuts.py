"""Where a prompt's text may be cut without changing any token, and the chunks that this gives.

A text is cut from the left: before the separator (the special token that begins each turn), and, in long
stretches without one, before a space between two letters. Where the next cut is depends only on the text up
to it and the few characters after, so equal prefixes are cut equally. The chunks joined are the text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Chunk = str | bytes
"""Text to be tokenized, or bytes that are tokens already."""

SHORTEST: Final = 256
"""Characters: a separator closer to the last cut than this is not cut at; tiny turns share a chunk."""
LONGEST: Final = 4096
"""Characters: from here on the first safe place is cut at, separator or not. About 1,000 tokens: larger
chunks are quicker to look up, smaller ones waste less of what is already known."""


@dataclass(slots=True, frozen=True)
class Cuts:
    """The places of one tokenizer; no chunk is cut where both are None.

    The separator shares no characters with another occurrence of itself, nor with a boundary.
    """

    separator: str | None = None
    boundary: re.Pattern[str] | None = None

    def chunks(self, pieces: Sequence[Chunk]) -> "Chunks":
        """Cut pieces of a prompt; those that are bytes stay whole."""
        return Chunks(self, pieces)


WHOLE: Final = Cuts()
"""Cuts nothing: pieces are chunks."""


class Chunks(Iterator[Chunk]):
    """The chunks of a prompt, one after another."""

    __slots__ = ("_at", "_boundary", "_end", "_gap", "_pieces", "_separator", "_text", "_turn")

    def __init__(self, cuts: Cuts, pieces: Sequence[Chunk]) -> None:
        self._separator = cuts.separator
        self._boundary = cuts.boundary
        self._pieces = iter(pieces)
        self._text = ""
        self._at = self._end = self._turn = self._gap = 0

    def __next__(self) -> Chunk:
        chunk = self.take()
        if chunk is None:
            raise StopIteration
        return chunk

    def take(self) -> Chunk | None:
        """Give the next chunk, None after the last."""
        while self._at == self._end:
            piece = next(self._pieces, None)
            if piece is None or isinstance(piece, bytes):
                return piece
            self._text, self._at, self._end = piece, 0, len(piece)
            self._turn = self._end if self._separator is None else 0
            self._gap = self._end if self._boundary is None else 0
        text, at, end = self._text, self._at, self._end
        if self._turn < at + SHORTEST and self._separator is not None:
            found = text.find(self._separator, at + SHORTEST)
            self._turn = end if found < 0 else found
        if self._gap < at + LONGEST and self._boundary is not None:
            match = self._boundary.search(text, at + LONGEST)
            self._gap = end if match is None else match.start()
        self._at = min(self._turn, self._gap)
        return text[at : self._at]

    def guess(self, length: int) -> str | None:
        """Give the next `length` characters if they end where a chunk might; the caller knows what they are.

        Text that was once a chunk holds no place to cut at. So if it stands here, and a cut is due after it,
        it is the next chunk, and neither separator nor boundary need be searched for.
        """
        text, cut = self._text, self._at + length
        if (
            cut == self._end
            or (self._separator is not None and text.startswith(self._separator, cut))
            or (length >= LONGEST and self._boundary is not None and self._boundary.match(text, cut))
        ):
            return text[self._at : cut]
        return None

    def skip(self, length: int) -> None:
        """Go on after the next `length` characters, as if they had been given."""
        self._at += length


NO_CHUNKS: Final = WHOLE.chunks(())
