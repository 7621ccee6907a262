"""The break finder: what it has seen, and which breaks it has found. Pure; told the time.

Each prompt is laid beside the one that it shares most with among those seen lately, of which only hashes are
kept. Where a break is, is its path, its kind and the masked words before it.

Bounded: `EXEMPLARS` prompts of at most `MOST_PIECES` pieces, `MOST_BREAKS` breaks, `VARIANTS` values; 32 MB
whatever is sent, and a few for usual traffic. What is least recent is forgotten first.

A look masks at most `MOST_MASKED` characters of new pieces, and as many of those in which breaks lie (twice,
if windows are kept): a few ms of the event loop, whatever is sent. So a longer prompt is learned a stretch
at a time, as its like come by. Who keeps nobody waiting says that more may be masked.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp

from proxy.breaks import align
from proxy.breaks.align import Break, breaks
from proxy.breaks.outline import Segment
from proxy.breaks.pieces import COUNTER, DATE, TIMESTAMP, UUID, Meter, Piece, Pieces, Placed, blank, mask

EXEMPLARS = 128
MOST_BREAKS = 256
VARIANTS = 65_536
MOST_MASKED = 4096
LEAST_TOKENS = 64
"""Tokens behind a break from which on it is worth a word: four blocks."""
LEAST_SEEN = 3
"""Times that a break is seen before it is told."""
FADE_SECONDS = 3600.0
"""Time constant of the rates that are told."""
DAY_SECONDS = 86_400.0
WINDOW = 120
"""Characters around a break that are kept, masked, where windows were asked for."""

_WORD = re.compile(r"\S+")

FIXES = {
    TIMESTAMP: "Move the time behind everything that does not change, as into the last message.",
    DATE: "Move the date behind everything that does not change, as into the last message.",
    UUID: "Move the id behind everything that does not change, or into the request's metadata.",
    COUNTER: "Move the number behind everything that does not change, or leave it out.",
    align.TOOLS: "Send tools, and the keys in them, in one fixed order, as sorted by name.",
    align.DOCUMENTS: "Send these parts in one fixed order, as sorted by id, with those that change last.",
    align.NAME: "Move the name behind everything that does not change, as into the user's first message.",
    align.VALUE: "Move what differs behind everything that does not change.",
    align.WHITESPACE: "Write the white space there in one way: build every request from one template.",
}
"""What to do about each kind."""


@dataclass(slots=True)
class Found:
    """One break."""

    kind: str
    path: str
    offset: int
    first: float
    last: float
    seen: int = 0
    requests: float = 0.0
    """Weighted, fading."""
    tokens: float = 0.0
    """Likewise."""
    total_requests: float = 0.0
    total_tokens: float = 0.0
    window: str | None = None


class Finder:
    """Looks at prompts, and remembers where they part."""

    def __init__(self, now: float, *, windows: bool = False, most_masked: float = MOST_MASKED) -> None:
        """`windows`: keep the masked words around each break.

        `most_masked`: characters that a look may mask, for pieces and for breaks each.
        """
        self.looked = 0
        """Prompts."""
        self._windows = windows
        self._most_masked = most_masked
        self._began = now
        self._pieces = Pieces()
        self._exemplars: OrderedDict[int, list[Piece]] = OrderedDict()
        self._owners: dict[int, int] = {}
        """Loose hash of a piece to the exemplar that had it last."""
        self._next = 0
        self._found: OrderedDict[tuple[str, str, int], Found] = OrderedDict()
        self._variants: OrderedDict[int, None] = OrderedDict()

    def look(
        self, segments: Sequence[Segment], now: float, *, missed: int | None = None, weight: float = 1.0
    ) -> None:
        """Lay a prompt beside its nearest.

        `missed`: its tokens that no cache had; None if that is not known: then a break counts when what
        stands there was not seen before. `weight`: how many requests this one stands for.
        """
        placed = self._pieces.of(segments, Meter(self._most_masked))
        if not placed:
            return
        self.looked += 1
        pieces = [each.piece for each in placed]
        nearest, shared = self._nearest(pieces)
        if nearest is not None:
            meter = Meter(self._most_masked)
            for each in breaks(self._exemplars[nearest], placed):
                if each.tokens >= LEAST_TOKENS and meter.takes(placed[each.at].text):
                    self._note(each, placed, now, missed, weight)
            if 2 * shared < min(_tokens(pieces), _tokens(self._exemplars[nearest])):
                nearest = None
        self._keep(pieces, nearest)

    def report(self, now: float) -> list[dict[str, object]]:
        """Every break that was seen often enough, the costliest first.

        Rates are of the last hour or so, for a day of it. Of several breaks in one request, each is told with
        all tokens behind it that are shared.
        """
        told = [self._told(found, now) for found in self._found.values() if found.seen >= LEAST_SEEN]
        return sorted(told, key=lambda each: -float(str(each["tokens_per_day"])))

    def totals(self, a_day: float | None = None) -> list[dict[str, object]]:
        """The same of prompts whose times are not known: requests and tokens in all.

        `a_day`: how many times as many there are in a day, if that is known.
        """
        found = [each for each in self._found.values() if each.seen >= LEAST_SEEN]
        return [
            {
                **_named(each),
                "requests": round(each.total_requests),
                "tokens": round(each.total_tokens),
                **_daily(each, a_day),
                "fix": FIXES[each.kind],
            }
            for each in sorted(found, key=lambda each: -each.total_tokens)
        ]

    def _told(self, found: Found, now: float) -> dict[str, object]:
        fade = exp(-(now - found.last) / FADE_SECONDS)
        span = FADE_SECONDS * (1 - exp(-max(now - self._began, 1.0) / FADE_SECONDS))
        return {
            **_named(found),
            "seen": found.seen,
            "requests_per_day": round(found.requests * fade / span * DAY_SECONDS),
            "tokens_per_day": round(found.tokens * fade / span * DAY_SECONDS),
            "seconds_since": round(now - found.last, 1),
            "fix": FIXES[found.kind],
        }

    def _nearest(self, pieces: Sequence[Piece]) -> tuple[int | None, int]:
        """The exemplar that shares most with a prompt, and how many tokens."""
        votes: Counter[int] = Counter()
        for piece in pieces:
            owner = self._owners.get(piece.loose)
            if owner is not None:
                votes[owner] += piece.tokens
        if not votes:
            return None, 0
        ((owner, shared),) = votes.most_common(1)
        return (owner, shared) if shared >= LEAST_TOKENS else (None, 0)

    def _keep(self, pieces: list[Piece], instead: int | None) -> None:
        """Remember a prompt, in place of its like."""
        if instead is not None:
            self._forget(instead)
        self._next += 1
        self._exemplars[self._next] = pieces
        for piece in pieces:
            self._owners[piece.loose] = self._next
        if len(self._exemplars) > EXEMPLARS:
            self._forget(next(iter(self._exemplars)))

    def _forget(self, number: int) -> None:
        for piece in self._exemplars.pop(number):
            if self._owners.get(piece.loose) == number:
                del self._owners[piece.loose]

    def _note(
        self, found: Break, placed: Sequence[Placed], now: float, missed: int | None, weight: float
    ) -> None:
        here = placed[found.at]
        path, offset, start = here.path, here.offset, 0
        if found.kind in (align.TOOLS, align.DOCUMENTS):
            path = path.partition("[")[0] if here.piece.is_whole else path
            before = placed[0].piece.loose if found.at else 0
        else:
            before = placed[found.at - 1].piece.loose if found.at and not found.word else 0
            start = _offset(here.text, found.word)
            offset += start
        key = (found.kind, path, hash((before, bytes(here.piece.words[: found.word]))))
        known = self._found.get(key)
        if known is None:
            known = self._found[key] = Found(found.kind, path, offset, now, now)
            if len(self._found) > MOST_BREAKS:
                least = min(list(self._found)[:-1], key=lambda each: self._found[each].last)
                del self._found[least]
        else:
            self._found.move_to_end(key)
        known.seen += 1
        known.offset = offset
        if self._windows:
            known.window = _around(here.text, start, found.kind)
        fade = exp(-(now - known.last) / FADE_SECONDS)
        known.requests, known.tokens, known.last = known.requests * fade, known.tokens * fade, now
        if missed is None:
            if self._is_known(hash((key, found.variant))):
                return
            lost = found.tokens
        else:
            lost = min(found.tokens, missed)
        known.requests += weight
        known.tokens += weight * lost
        known.total_requests += weight
        known.total_tokens += weight * lost

    def _is_known(self, variant: int) -> bool:
        variants = self._variants
        if variant in variants:
            variants.move_to_end(variant)
            return True
        variants[variant] = None
        if len(variants) > VARIANTS:
            variants.popitem(last=False)
        return False


def _named(found: Found) -> dict[str, object]:
    named: dict[str, object] = {"path": found.path, "offset": found.offset, "kind": found.kind}
    return named if found.window is None else {**named, "window": found.window}


def _daily(found: Found, a_day: float | None) -> dict[str, object]:
    if a_day is None:
        return {}
    return {
        "requests_per_day": round(found.total_requests * a_day),
        "tokens_per_day": round(found.total_tokens * a_day),
    }


def _tokens(pieces: Sequence[Piece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _offset(text: str, words: int) -> int:
    """Where the word after so many begins, as words are counted in a piece."""
    found = islice(_WORD.finditer(blank(text)), words, None)
    return next((word.start() for word in found), len(text))


def _around(text: str, start: int, kind: str) -> str:
    """The piece with what differs masked, names too; `start`: where it does."""
    if kind in (align.NAME, align.VALUE):
        return f"{mask(text[max(0, start - WINDOW) : start])}<{kind}>"
    return mask(text.strip())[:WINDOW]
