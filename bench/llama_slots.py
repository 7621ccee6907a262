"""The cache of a simulated llama.cpp server: one prompt a slot, and a cache of prompts in memory. Pure.

Written apart from the product's model of it, by tokens and not by blocks, from what build 10434 was seen to
do: a request takes the free slot whose content shares the greatest part of its prompt, if that is more than
`similarity`, else the free one whose last request was over
first. If less than half of what the slot holds would stay, that is
put aside first, where there is room for it, and the prompt gets back what was put aside and serves it better.
The last token of a prompt is always computed.
"""

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Slot:
    """One of the server's slots."""

    number: int
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    used: int = 0
    """When its last request was over, in requests; 0 is never."""
    busy: bool = False
    prompt: int = 0
    """Tokens of the prompt in it."""
    cached: int = 0
    """Tokens of that which were there before."""


class SlotCache:
    """All slots of a server."""

    def __init__(self, count: int, *, similarity: float = 0.1, aside_tokens: int = 0) -> None:
        """`aside_tokens` are those of the cache in memory; 0: there is none."""
        self.slots = [Slot(number) for number in range(count)]
        self._similarity = similarity
        self._room = aside_tokens
        self._aside: list[array[int]] = []
        """Oldest first."""
        self._requests = 0

    def take(self, tokens: "array[int]") -> Slot | None:
        """Seat a prompt: `cached` of its slot says what need not be computed. None: every slot is busy."""
        free = [slot for slot in self.slots if not slot.busy]
        if not free or not tokens:
            return free[0] if free else None
        shared = {slot.number: common(slot.tokens, tokens) for slot in free}
        best = max(free, key=lambda slot: shared[slot.number])
        similar = shared[best.number] / len(tokens) > self._similarity
        if not similar:
            best = min(free, key=lambda slot: slot.used)
        kept = shared[best.number] / len(best.tokens) if best.tokens else 0.0
        if not similar or kept < 0.5:
            self._exchange(best, tokens, kept)
        best.busy, best.prompt = True, len(tokens)
        best.cached = min(common(best.tokens, tokens), len(tokens) - 1)
        return best

    def leave(self, slot: Slot, tokens: "array[int]") -> None:
        """A request is over; `tokens` of prompt and answer were computed."""
        self._requests += 1
        slot.tokens, slot.busy, slot.used = tokens, False, self._requests

    def clear(self) -> None:
        """Nothing is held any more."""
        self.slots = [Slot(number) for number in range(len(self.slots))]
        self._aside.clear()

    def _exchange(self, slot: Slot, tokens: "array[int]", kept: float) -> None:
        if self._room <= 0:
            return
        old = slot.tokens
        if old and all(common(each, old) < len(old) for each in self._aside):
            self._aside = [each for each in self._aside if common(each, old) < len(each)]
            self._aside.append(old)
        best, most = None, common(old, tokens)
        for each in self._aside:
            shared = common(each, tokens)
            share = shared / len(each)
            if each is not old and share >= 0.25 and share > kept and shared > most:
                best, most, kept = each, shared, share
        if best is not None:
            self._aside = [each for each in self._aside if each is not best]
            slot.tokens = best
        while self._aside and sum(map(len, self._aside)) > self._room:
            del self._aside[0]


def common(left: "array[int]", right: "array[int]") -> int:
    """How many tokens two prompts begin with alike."""
    ends = min(len(left), len(right))
    if left[:ends] == right[:ends]:
        return ends
    low, high = 0, ends
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
