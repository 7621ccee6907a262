"""Two prompts that are nearly alike, laid side by side: where they part and meet again, and what parts them.

A place counts only if both go on alike behind it: prompts that end differently, as two questions do, or that
differ in whole passages, are different prompts. Quadratic in nothing: each of at most `MOST_GAPS` gaps looks
over what is left once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.breaks.pieces import CAPITAL, CUE, DATE, KINDS, MASKED, TIMESTAMP, Piece, Placed

TOOLS, DOCUMENTS = "reordered tools", "reordered documents"
NAME, VALUE, WHITESPACE = "user name", "value", "whitespace"
MOST_GAPS = 16
AHEAD = 6
"""Pieces beyond which two prompts that part do not meet again."""
LONGEST = 8
"""Words that may differ on either side; more of them are another passage."""
LONGEST_NAME = 4
CUE_REACH = 6
"""Words before a name among which one may say that it is one."""


@dataclass(slots=True)
class Break:
    """One place where two prompts part."""

    kind: str
    at: int
    """Piece of the second prompt."""
    word: int
    """Words of that piece before the difference."""
    variant: int
    """Hash of what stands there in the second prompt."""
    tokens: int = 0
    """Of the second prompt, those behind it that both have, the piece itself among them."""


def breaks(one: Sequence[Piece], other: Sequence[Placed]) -> list[Break]:
    """Where `other` parts from `one`, in order, with what both have behind each place."""
    found: list[Break] = []
    i = j = first = gaps = 0
    while i < len(one) and j < len(other):
        left, right = one[i], other[j].piece
        if left.exact == right.exact:
            step = (1, 1)
        elif gaps >= MOST_GAPS:
            break
        else:
            gaps += 1
            if left.loose == right.loose:
                found.append(_changed(left, right, j))
                step = (1, 1)
            elif (run := _crossing(one[i:], other[j:])) is not None:
                is_tools = right.is_whole and other[j].path.startswith("tools")
                order = hash(tuple(placed.piece.loose for placed in other[j : j + run[1]]))
                found.append(Break(TOOLS if is_tools else DOCUMENTS, j, 0, order))
                step = run
            elif (ahead := _meets(one[i:], other[j:])) is not None:
                gap = _window(one[i : i + ahead[0]], other[j : j + ahead[1]], j)
                if gap is None:
                    first = len(found)  # another passage: what comes behind it is lost to that
                else:
                    found.append(gap)
                i, j = i + ahead[0], j + ahead[1]
                continue
            else:
                break
        shared = sum(placed.piece.tokens for placed in other[j : j + step[1]])
        for each in found[first:]:
            each.tokens += shared
        i, j = i + step[0], j + step[1]
    return found


def _changed(left: Piece, right: Piece, at: int) -> Break:
    """What differs in two pieces that are alike once masked."""
    kinds = [
        (KINDS[right.kinds[number]], number)
        for number, (there, here) in enumerate(zip(left.masked, right.masked, strict=False))
        if there != here
    ]
    variant = hash(right.masked.tobytes())
    if not kinds:
        kind = WHITESPACE
        if right.is_whole:  # the same object, its keys in another order
            return Break(TOOLS, at, 0, right.exact)
        return Break(kind, at, 0, right.exact)
    kind, number = kinds[0]
    if kind == DATE and any(each == TIMESTAMP for each, _ in kinds):
        kind = TIMESTAMP
    masked = [word for word, mark in enumerate(right.marks) if mark & MASKED]
    return Break(kind, at, masked[number] if number < len(masked) else 0, variant)


def _crossing(one: Sequence[Piece], other: Sequence[Placed]) -> tuple[int, int] | None:
    """How far two prompts go on with the same pieces in another order, if they do."""
    left = Counter(piece.loose for piece in one)
    right = Counter(placed.piece.loose for placed in other)
    if not (right[one[0].loose] and left[other[0].piece.loose]):
        return None
    i = j = 0
    while i < len(one) and right[one[i].loose] > 0:
        right[one[i].loose] -= 1
        i += 1
    while j < len(other) and left[other[j].piece.loose] > 0:
        left[other[j].piece.loose] -= 1
        j += 1
    return i, j


def _meets(one: Sequence[Piece], other: Sequence[Placed]) -> tuple[int, int] | None:
    """Pieces of each to pass over until both go on alike; the fewest."""
    for total in range(1, 2 * AHEAD):
        for i in range(max(0, total - AHEAD), min(total, AHEAD) + 1):
            j = total - i
            if i < len(one) and j < len(other) and one[i].loose == other[j].piece.loose:
                return i, j
    return None


def _window(one: Sequence[Piece], other: Sequence[Placed], at: int) -> Break | None:
    """What differs in a gap, if it is a few words; None if it is more."""
    if any(piece.is_whole for piece in one) or any(placed.piece.is_whole for placed in other):
        return None
    left = [word for piece in one for word in piece.words]
    right = [word for placed in other for word in placed.piece.words]
    marks = bytes(mark for placed in other for mark in placed.piece.marks)
    start = 0
    while start < min(len(left), len(right)) and left[start] == right[start]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and left[-1 - end] == right[-1 - end]:
        end += 1
    gone, come = len(left) - start - end, len(right) - start - end
    if max(gone, come) > LONGEST:
        return None
    theirs = marks[start : start + come]
    cued = any(mark & CUE for mark in marks[max(0, start - CUE_REACH) : start + come])
    named = come > 0 and all(mark & CAPITAL for mark in theirs)
    kind = NAME if max(gone, come) <= LONGEST_NAME and (cued or named) else VALUE
    variant = hash(tuple(right[start : start + come]))
    word = start
    for placed in other:
        if word < len(placed.piece.words):
            break
        word -= len(placed.piece.words)
        at += 1
    else:  # nothing stands there
        at, word = at - 1, len(other[-1].piece.words) if other else 0
    return Break(kind, at, word, variant)
