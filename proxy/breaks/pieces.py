"""Texts to pieces that can be compared without the text: sentences, or tools and documents as a whole.

A piece keeps hashes: of its very characters, of the same with whatever changes by itself masked and white
space made one, of each masked word, and of each masked value. Python's own hashes, which are keyed anew in
each process, so that none says anything outside of it.

Bounded: at most `MOST_PIECES` a prompt, of `MOST_WORDS` words each; pieces that were seen lately are kept
once, `REMEMBERED` of them. Every pattern takes time linear in the text; but the one that masks takes up to
2 us a character where words are short, as in `!a!a!a` and `1:1:1:`. So only the first `LONGEST_MASKED`
characters of a piece are masked, and a `Meter` says of how many pieces.
"""

import re
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from proxy.breaks.outline import Segment

MOST_PIECES = 256
MOST_WORDS = 48
LONGEST_MASKED = 2048
"""Characters of a piece in which what changes by itself is looked for; few sentences and tools are longer."""
REMEMBERED = 8192
CHARACTERS_PER_TOKEN = 4
"""Of English, by most tokenizers; the cost of a break is an estimate."""

TIMESTAMP, DATE, UUID, COUNTER = "timestamp", "date", "uuid", "counter"
KINDS = (TIMESTAMP, DATE, UUID, COUNTER)

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun)"
_VOLATILE = re.compile(
    rf"""
    (?P<timestamp>
        \b\d{{4}}-\d\d-\d\d[t\ ]\d\d:\d\d(?::\d\d(?:[.,]\d{{1,9}})?)?(?:z|\ ?utc|[+-]\d\d:?\d\d)?
      | \b\d{{1,2}}:\d\d(?::\d\d(?:[.,]\d{{1,9}})?)?(?:\ ?[ap]\.?m\b\.?)?
      | \b1[5-9]\d{{8}}(?:\d{{3}}|\d{{6}}|\d{{9}}|\.\d{{1,9}})?\b  # seconds since 1970, from 2017 on
    )
  | (?P<uuid>
        (?<![\w-])[0-9a-f]{{8}}-(?:[0-9a-f]{{4}}-){{3}}[0-9a-f]{{12}}\b
      | (?<![\w-])(?=[a-z_-]{{0,40}}\d)(?=[\d_-]{{0,40}}[a-z])[\w-]{{10,128}}+  # letters and digits: an id
    )
  | (?P<date>
        \b\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}\b
      | \b\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}\b
      | \b(?:{_DAY}\b,?\ )?(?:the\ )?\d{{1,2}}(?:st|nd|rd|th)?\ (?:of\ )?{_MONTH}\b\.?,?(?:\ \d{{4}}\b)?
      | \b(?:{_DAY}\b,?\ )?{_MONTH}\b\.?\ \d{{1,2}}(?:st|nd|rd|th)?\b,?(?:\ \d{{4}}\b)?
      | \b{_MONTH}\ \d{{4}}\b
      | \b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b
    )
  | (?P<counter>\d+(?:[.,]\d+)*)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_STOPS = "。！？；"  # noqa: RUF001 - of East Asia, where no space follows
_WORD = rf"(?:[^\s{_STOPS}]++[{_STOPS}]*+|[{_STOPS}]++)"
_PIECE = re.compile(
    rf"\s*+(?:{_WORD}\s*+){{0,{MOST_WORDS - 1}}}?{_WORD}(?<=[.!?:;{_STOPS}])\s*+"  # a sentence
    rf"|\s*+(?:{_WORD}\s*+){{1,{MOST_WORDS}}}+"
    r"|\s++"
)

CAPITAL, CUE, MASKED = 1, 2, 4
_CUES = frozenset((
    "user", "username", "name", "named", "customer", "client", "dear", "hi", "hello", "hey", "mr", "mrs",
    "ms", "dr", "account", "member", "employee", "patient", "student", "caller", "helping", "assisting",
    "talking", "speaking", "chatting", "called", "email",
))  # fmt: skip
"""Words that a name follows."""
_STRIPPED = ".,;:!?()[]{}<>\"'*#_-"


@dataclass(slots=True, frozen=True)
class Piece:
    """What is known of one sentence, tool or document."""

    exact: int
    loose: int
    """Of the same with what changes masked."""
    is_whole: bool
    """A tool or document."""
    words: "array[int]"
    """Hashes of the masked words."""
    marks: bytes
    """CAPITAL, CUE, MASKED for each word."""
    masked: "array[int]"
    """Hash of each masked value."""
    kinds: bytes
    """Of each of them, as places in `KINDS`."""
    tokens: int
    """Estimated."""


@dataclass(slots=True)
class Placed:
    """A piece, and where it is."""

    piece: Piece
    path: str
    offset: int
    """In characters from the start of the text at `path`."""
    text: str


class Meter:
    """How many characters may yet be masked."""

    __slots__ = ("room",)

    def __init__(self, room: float) -> None:
        self.room = room

    def takes(self, text: str) -> bool:
        """Whether there is room to mask a text; there is then so much less."""
        self.room -= min(len(text), LONGEST_MASKED)
        return self.room >= 0


class Pieces:
    """Makes pieces, each only once."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[bool, int], Piece] = OrderedDict()

    def of(self, segments: Iterable[Segment], meter: Meter | None = None) -> list[Placed]:
        """The pieces of a prompt's head, in order, up to the first new one for which `meter` has no room."""
        placed: list[Placed] = []
        for segment in segments:
            for offset, text in _texts(segment):
                if len(placed) >= MOST_PIECES:
                    return placed
                piece = self._piece(text, segment.canonical, meter)
                if piece is None:
                    return placed
                placed.append(Placed(piece, segment.path, offset, text))
        return placed

    def _piece(self, text: str, canonical: str | None, meter: Meter | None) -> Piece | None:
        key = canonical is not None, hash(text)
        piece = self._known.get(key)
        if piece is None:
            if meter is not None and not meter.takes(text):
                return None
            piece = self._known[key] = _make(text, canonical)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return piece


def _texts(segment: Segment) -> Iterator[tuple[int, str]]:
    if segment.canonical is not None:
        yield 0, segment.text
        return
    for found in _PIECE.finditer(segment.text):
        yield found.start(), found[0]


def mask(text: str) -> str:
    """The text, or its beginning, with what changes by itself replaced by its kind: `<timestamp>`."""
    return _VOLATILE.sub(lambda found: f"<{found.lastgroup}>", text[:LONGEST_MASKED])


def blank(text: str) -> str:
    """The text with what changes by itself made one word of the same length."""
    return _masked(lambda found: "\x00" * len(found[0]), text)


def _masked(instead: Callable[[re.Match[str]], str], text: str) -> str:
    return _VOLATILE.sub(instead, text[:LONGEST_MASKED]) + text[LONGEST_MASKED:]


def _make(text: str, canonical: str | None) -> Piece:
    masked: list[int] = []
    kinds: list[int] = []

    def note(found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        if len(masked) < MOST_WORDS:
            masked.append(hash(found[0]))
            kinds.append(KINDS.index(kind))
        return f"\x00{kind}\x00"

    plain = _masked(note, text if canonical is None else canonical)
    words = plain.split()
    first = words[:MOST_WORDS]
    return Piece(
        exact=hash(text),
        loose=hash(" ".join(words)),
        is_whole=canonical is not None,
        words=array("q", map(hash, first)),
        marks=bytes(map(_mark, first)),
        masked=array("q", masked),
        kinds=bytes(kinds),
        tokens=max(1, len(text) // CHARACTERS_PER_TOKEN),
    )


def _mark(word: str) -> int:
    bare = word.strip(_STRIPPED)
    mark = CAPITAL if bare[:1].isupper() or "@" in bare else 0
    if bare.lower() in _CUES:
        mark |= CUE
    return mark | (MASKED if "\x00" in word else 0)
