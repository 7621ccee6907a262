"""A book of handles against an engine's cache that knows no handles: which paths of blocks are there.

The engine stores runs of a prompt's blocks after a parent that is there, may store what it has already (as
another copy), and removes single copies from anywhere. The book must hold exactly the keys of the blocks of
ours that are there in all their parts; and what its deltas say, applied one after the other, must be that.
"""

from array import array
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from proxy.index.events import Batch, Cleared, Removed, Stored
from proxy.index.handles import Delta, HandleBook
from proxy.prompt.blocks import chain

OURS = 4
START = 11

Path = tuple[int, ...]
"""The first token of each block of the engine; its others are zeros."""


def handle(path: Path) -> int:
    return xxh3_64_intdigest(bytes(path), 5)


def tokens(path: Path, size: int) -> list[int]:
    return [token for first in path for token in (first, *[0] * (size - 1))]


def keys(path: Path, size: int) -> list[int]:
    return chain(array("I", tokens(path, size)).tobytes(), OURS, START)[0].tolist()


class Cache(RuleBasedStateMachine):
    @initialize(size=st.sampled_from((4, 4, 8, 2, 1)))
    def begin(self, size: int):
        self.size = size
        self.book = HandleBook(lambda lora, salt: START, OURS, copies="counted")
        self.copies: Counter[Path] = Counter()
        self.told: set[int] = set()
        self.handles: dict[int, tuple[int, int]] = {}
        self.events: list = []

    @rule(path=st.lists(st.integers(1, 2), min_size=1, max_size=9).map(tuple), since=st.integers(0, 8))
    def store(self, path: Path, since: int):
        since = min(since, len(path) - 1)
        while since and not self.copies[path[:since]]:
            since -= 1
        run = [path[:end] for end in range(since + 1, len(path) + 1)]
        self.copies.update(run)
        parent = handle(path[:since]) if since else None
        self.events.append(
            Stored([handle(each) for each in run], parent, tokens(path[since:], self.size), self.size)
        )

    @precondition(lambda self: +self.copies)
    @rule(data=st.data())
    def remove(self, data):
        there = sorted(+self.copies)
        gone = data.draw(st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True))
        for path in gone:
            self.copies[path] -= 1
        self.events.append(Removed([handle(path) for path in gone]))

    @rule()
    def remove_what_is_not_there(self):
        self.events.append(Removed([7]))

    @rule()
    def clear(self):
        self.copies.clear()
        self.events.append(Cleared())

    @rule()
    def publish(self):
        self.apply(self.book.apply(Batch(0.0, self.events)))
        self.events = []

    @precondition(lambda self: self.book.resumable)
    @rule()
    def another_takes_over(self):
        self.publish()
        if not self.book.resumable:
            return
        self.book = HandleBook(lambda lora, salt: START, OURS, copies="counted")
        self.book.resume((each, key, copies) for each, (key, copies) in self.handles.items())

    def apply(self, delta: Delta):
        removed, stored = set(delta.removed), set(delta.stored)
        if delta.cleared:
            self.told.clear()
            self.handles.clear()
            assert not removed
        assert len(removed) == len(delta.removed)
        assert len(stored) == len(delta.stored)
        assert removed <= self.told
        self.told -= removed
        assert not stored & (self.told | removed)
        self.told |= stored
        for each in delta.handles_gone:
            self.handles.pop(each, None)
        for each, key, copies in delta.handles:
            self.handles[each] = key, copies
        assert delta.unkeyed == 0
        assert self.told == self.expected()
        assert self.book.keys == len(self.told)
        assert self.book.handles == len(+self.copies)
        if self.book.resumable:
            assert self.handles == {
                handle(path): (keys(path, self.size)[-1], copies) for path, copies in (+self.copies).items()
            }

    def expected(self) -> set[int]:
        found = set()
        for path in +self.copies:
            if self.size >= OURS:
                found.update(keys(path, self.size)[-(self.size // OURS) :])
            elif len(path) % (parts := OURS // self.size) == 0 and all(
                self.copies[path[: len(path) - back]] for back in range(parts)
            ):
                found.add(keys(path, self.size)[-1])
        return found

    @invariant()
    def nothing_is_counted_below_zero(self):
        assert all(count >= 0 for count in getattr(self, "copies", {}).values())


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
