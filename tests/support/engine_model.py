"""A model of an engine's prefix cache that publishes, and of what may be known of it from its messages.

`Engine` keeps blocks by the path of prompts that leads to them, evicts what was used longest ago, and has
each step encoded as one message. `Known` is what an attentive listener would know who heard some of the
messages, each once and in their order. Both are written from what events mean, not from the proxy's code:
paths instead of hashes, and no sharing of anything.
"""

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache

from xxhash import xxh3_64_intdigest

from bench.engine_events import Change, Dialect, Encoder, Source
from proxy.prompt.blocks import chain

BLOCK = 4
SALTED = 2
"""Prompts that begin with this block have a salt."""

Path = tuple[int, ...]
"""The first token of each block; the others are zeros."""


def root(_lora: str | None, salt: str | None) -> int:
    return 11 if salt is None else 12


def salt(path: Path) -> str | None:
    return "s" if path[0] == SALTED else None


@cache
def tokens(path: Path) -> array:
    return array("I", [token for first in path for token in (first, *[0] * (BLOCK - 1))])


@cache
def keys(path: Path) -> array:
    """One array per path, as an index may remember the array it was asked last."""
    return chain(tokens(path).tobytes(), BLOCK, root(None, salt(path)))[0]


@cache
def handle(path: Path) -> int:
    return xxh3_64_intdigest(bytes(path), 5)


def heads(path: Path) -> list[Path]:
    """The path of each of its blocks."""
    return [path[:end] for end in range(1, len(path) + 1)]


def run(held, path: Path) -> int:
    """Blocks of a prompt that are held, unbroken from the first."""
    return next((at for at, head in enumerate(heads(path)) if head not in held), len(path))


@dataclass(frozen=True)
class Step:
    """What one prompt did to the cache: blocks removed, then those of `path` stored from `first` on."""

    removed: tuple[Path, ...] = ()
    path: Path = ()
    first: int = 0


@dataclass(frozen=True)
class Message:
    process: int
    seq: int
    payload: bytes
    cleared: bool
    steps: tuple[Step, ...] | None
    """None where the payload cannot be read."""
    held: frozenset[Path]
    """In the cache after it."""


class Engine:
    def __init__(
        self, dialect: Dialect, *, counted: bool, room: int, history: int, bytes_hashes: bool = False
    ) -> None:
        """`counted`: the end of every copy of a block is told of, not only of the last.

        `room`: blocks of the cache, `history`: messages that can be replayed.
        """
        self.counted = counted
        self.process = 0
        self.messages: dict[bytes, Message] = {}
        """By payload, of all processes; no two are alike, as each has its time."""
        self.history: deque[Message] = deque(maxlen=history)
        self.copies: Counter[Path] = Counter()
        self.seq = 0
        self._encoder = Encoder(dialect, BLOCK, bytes_hashes=bytes_hashes)
        self._room = room
        self._used: dict[Path, None] = {}
        """Blocks, those used longest ago first."""

    def restart(self) -> None:
        self.process += 1
        self.seq = 0
        self.history.clear()
        self._forget()

    def step(self, prompts: list[Path], *, cleared: bool = False, again: bool = False) -> Message:
        """Compute prompts; `again`: each as by two requests at once, so that its blocks have copies."""
        if cleared:
            self._forget()
        steps = [self._serve(path, whole=whole) for path in prompts for whole in (False, True)[: 1 + again]]
        changes = [
            Change(
                [handle(path) for path in step.removed],
                [handle(path) for path in heads(step.path)],
                step.first,
                len(step.path),
                Source(tokens(step.path), salt(step.path) if step.path else None),
            )
            for step in steps
        ]
        payload = self._encoder.batch(self._time(), changes, cleared=cleared)
        return self._publish(payload, tuple(steps), cleared=cleared)

    def drop(self, path: Path) -> Message:
        """Evict a block out of turn."""
        step = Step(removed=tuple(self._evict(path)))
        change = Change([handle(each) for each in step.removed], [], 0, 0, Source(tokens(())))
        return self._publish(self._encoder.batch(self._time(), [change]), (step,))

    def babble(self) -> Message:
        """Publish what nobody can read, and what was done to the cache in that step is not known."""
        self._evict(next(iter(self._used), ()))
        return self._publish(b"\xc1%d" % len(self.messages), None)

    def _publish(self, payload: bytes, steps: tuple[Step, ...] | None, *, cleared: bool = False) -> Message:
        message = Message(self.process, self.seq, payload, cleared, steps, frozenset(+self.copies))
        assert payload not in self.messages
        self.messages[payload] = message
        self.history.append(message)
        self.seq += 1
        return message

    def _serve(self, path: Path, *, whole: bool) -> Step:
        first = 0 if whole else run(+self.copies, path)
        removed: list[Path] = []
        stored = heads(path)[first:]
        spared = set(heads(path))
        while sum(self.copies.values()) + len(stored) > self._room:
            victim = next((each for each in self._used if each not in spared), None)
            if victim is None:
                break
            removed += self._evict(victim)
        self.copies.update(stored)
        for each in reversed(heads(path)):  # so that a prompt's end goes before its beginning
            self._used.pop(each, None)
            self._used[each] = None
        return Step(tuple(removed), path, first)

    def _evict(self, path: Path) -> list[Path]:
        """One copy; what is told of it."""
        if not self.copies[path]:
            return []
        self.copies[path] -= 1
        if self.copies[path]:
            return [path] if self.counted else []
        del self._used[path]
        return [path]

    def _forget(self) -> None:
        self._encoder.forget()
        self.copies.clear()
        self._used.clear()

    def _time(self) -> float:
        return 1.0 + len(self.messages)


@dataclass
class Known:
    """What follows from the messages heard since the last that was lost, or since the process began."""

    counted: bool
    process: int | None = None
    last: int = -1
    """The last message heard."""
    whole: bool = True
    """Whether it is all that the engine holds."""
    mixed: bool = False
    """Whether it is of two processes: the latter's start time was not seen yet."""
    copies: Counter[Path] = field(default_factory=Counter)
    keyed: set[Path] = field(default_factory=set)
    """Of those, the blocks whose place is known."""

    def hear(self, message: Message, *, unseen: bool) -> None:
        """Take the next message, which must be the next.

        `unseen`: unless it is of a process that nobody has seen yet, only its numbers; then all is forgotten
        as soon as it is seen.
        """
        self.mixed |= unseen and self.process is not None and self.process != message.process
        if self.process is None or self.mixed:
            assert self.process is not None or message.seq == 0 or not self.whole, "messages are missing"
            self.process = message.process
        else:
            assert (message.process, message.seq) == (self.process, self.last + 1)
        self.last = message.seq
        if message.cleared:
            self.forget()
            self.whole = True
        if message.steps is None:
            return
        for step in message.steps:
            for path in step.removed:
                self._remove(path)
            self._store(step)
        if not self.mixed:
            assert self.keyed <= message.held
            assert self.keyed == message.held or not self.whole

    def _remove(self, path: Path) -> None:
        self.copies[path] -= 1
        if self.copies[path] <= 0 or not self.counted:
            del self.copies[path]
            self.keyed.discard(path)

    def _store(self, step: Step) -> None:
        new = heads(step.path)[step.first :]
        self.copies.update(new)
        if not step.first or step.path[: step.first] in self.keyed:
            self.keyed.update(new)

    def forget(self) -> None:
        """Nothing of what was heard counts."""
        self.whole &= self.process is None
        self.copies.clear()
        self.keyed.clear()

    def told(self) -> "Known":
        """What others can know of it."""
        copies = Counter({path: self.copies[path] for path in self.keyed})
        return Known(self.counted, self.process, self.last, self.whole, self.mixed, copies, set(self.keyed))
