"""The sequence numbers of one event feed: what may be applied now, and what must be asked for first.

A publisher numbers its messages 0, 1, 2 ...; they come by a socket that may lose, repeat and reorder them,
and a replay gives those that the publisher still has. Pure: takes what arrived, returns steps for its caller
to take in their order. Messages are handed out one after the other, without a gap, except after a step that
says so (`Restarted`, `Stale`); what waits for its turn is bounded.

A replay is asked for from the last message applied, not from the one after: if that one reads otherwise now,
another process speaks. A new `Replay` ends the one before, whose messages must not be passed on any more; a
new `Check` likewise the one before, whose answer may be too old. What one process has sent must be passed on
before anything of the next.
"""

from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from proxy.index.waiting import Waiting

RECENT: Final = 256
"""Messages applied that are told from others of the same number."""


@dataclass(slots=True, frozen=True)
class Apply:
    """The next message in order."""

    seq: int
    payload: bytes


@dataclass(slots=True, frozen=True)
class Replay:
    """Ask the publisher for what it has from `start` on. It ends in `replay_ended` or `replay_failed`."""

    start: int


@dataclass(slots=True, frozen=True)
class Restarted:
    """Another process speaks: forget what the one before has stored; what follows is all there is."""


@dataclass(slots=True, frozen=True)
class Check:
    """A lower number came than was expected: ask whether the process's start time has changed."""


@dataclass(slots=True, frozen=True)
class Stale:
    """Messages are lost for good: what was stored may be gone by now, so forget it.

    What is applied after this is true, but not all there is: blocks stored before are unknown, until they are
    stored again.
    """

    why: str


Step = Apply | Replay | Restarted | Check | Stale


@dataclass(slots=True)
class Asked:
    """A replay under way."""

    last: int
    """What had been applied when it was asked for; -1: nothing."""
    before: frozenset[int]
    """What was waiting: if the publisher has never sent it, another process has."""
    missed: int
    """The same of what there was no room for."""
    failures: int = 0
    probe: bool = False
    """Whether it is asked for only to see where the publisher's numbers begin and end."""
    first: int | None = None
    newest: int = -1


@dataclass(slots=True)
class Sequencer:
    """The numbers of one publisher's feed."""

    last: int | None = None
    """The last message applied; given, where another has applied those before."""
    attempts: int = 3
    """Replays that fail, or bring nothing new, before what is missing is given up."""
    most_messages: int = 10_000
    most_bytes: int = 64 << 20
    """What may wait for its turn."""
    _marks: dict[int, int] = field(default_factory=dict)
    """Number to digest of the latest messages applied."""
    _asked: Asked | None = None
    _fruitless: int = 0
    _checking: bool = False
    _proven: bool = True
    """Whether the publisher is known for the process whose messages have been applied."""
    _unknowable: bool = False
    """Whether a check could not tell."""
    _ahead: Waiting = field(init=False)
    """Came before what precedes it."""
    _doubtful: Waiting = field(init=False)
    """Came while a check was under way."""

    def __post_init__(self) -> None:
        self._ahead = Waiting(self.most_messages, self.most_bytes)
        self._doubtful = Waiting(self.most_messages, self.most_bytes)

    def parted(self) -> None:
        """Whoever listens has connected, for the first time or again; `resync` follows, perhaps later.

        What waits for its turn may be of another process than what comes now: only a replay can tell.
        """
        self._ahead.forget()
        self._doubtful.forget()
        self._proven = self.last is None
        self._unknowable = False

    def resync(self) -> list[Step]:
        """Whoever listens has connected: ask what it missed."""
        self.parted()
        return self._ask(probe=self._asked is not None and self._asked.probe)

    def live(self, seq: int, payload: bytes) -> list[Step]:
        """A message was published."""
        if self._checking:
            self._doubtful.keep(seq, payload)
            return []
        if seq <= self._applied:
            if self._marks.get(seq) == xxh3_64_intdigest(payload):
                return []
            self._checking = True
            self._doubtful.keep(seq, payload)
            return [Check()]
        if self._asked is None and self._proven and seq == self._applied + 1:
            return [self._apply(seq, payload)]
        self._ahead.keep(seq, payload)
        return [] if self._asked else self._ask()

    def replayed(self, seq: int, payload: bytes) -> list[Step]:
        """A message of the replay that was asked for last."""
        asked = self._asked
        if asked is None:  # it was given up
            return []
        mark = self._marks.get(seq)
        if mark is not None:
            if mark != xxh3_64_intdigest(payload):
                return self._restart()
            self._proven, self._unknowable = True, False
        opening = asked.first is None
        if opening:
            asked.first = seq
        asked.newest = max(asked.newest, seq)
        if asked.probe or seq <= self._applied:
            return []
        if opening and seq > max(asked.last, 0):
            why = f"the publisher's replay begins at message {seq}, not at {max(asked.last, 0)}"
            return [Stale(why), self._apply(seq, payload)]
        if seq == self._applied + 1:
            return [self._apply(seq, payload)]
        self._ahead.keep(seq, payload)
        return []

    def replay_ended(self) -> list[Step]:
        """The publisher has sent all it has."""
        asked, self._asked = self._asked, None
        if asked is None:
            return []
        if asked.probe:
            if asked.first == 0 and asked.newest < self._applied:
                return self._restart()
            return self._same_process()
        foreign = False
        if asked.first is not None:
            beyond = [seq for seq in self._ahead.messages if seq in asked.before and seq > asked.newest]
            for seq in beyond:
                self._ahead.drop(seq)
            foreign = bool(beyond)
            if asked.newest < self._ahead.missed == asked.missed:
                self._ahead.missed = -1
                foreign = True
        steps = self._in_order()
        progress = self._applied > asked.last
        self._fruitless = 0 if progress else self._fruitless + 1
        if self._ahead:
            if asked.first is None or self._fruitless >= self.attempts:
                steps += self._give_up("the publisher's replay does not have what is missing")
            else:
                steps += self._ask()
        elif foreign and progress:  # unless the end of the replay was lost on its way
            steps += self._ask()
        if asked.first is None and (asked.last >= 0 or asked.before or asked.missed >= 0):
            self._proven = False
        return steps + self._prove()

    def replay_failed(self) -> list[Step]:
        """No replay could be had, or not to its end."""
        asked, self._asked = self._asked, None
        if asked is None:
            return []
        failures = asked.failures + 1
        if failures < self.attempts and (self._ahead or asked.probe):
            return self._ask(failures=failures, probe=asked.probe)
        if asked.probe:
            self._checking = False
            self._ahead, self._doubtful = self._doubtful, self._ahead
            return self._give_up("numbers begin anew, and neither a start time nor a replay says why")
        if not self._proven:
            why = "neither a start time nor a replay says whether the publisher is the same process"
            return self._give_up(why) if self._unknowable else self._prove()
        steps = self._in_order()
        return steps + self._give_up("the publisher's replay cannot be had") if self._ahead else steps

    def checked(self, *, restarted: bool | None) -> list[Step]:
        """Whether the process is another one now; None: that cannot be told, so the numbers must tell.

        May be said without a check, by whoever learns of a restart in another way.
        """
        if restarted:
            return self._restart()
        if not self._checking:
            return []
        if restarted is None:
            self._proven, self._unknowable = False, True
            return self._ask(probe=True)
        self._proven, self._unknowable = True, False
        return self._same_process()

    @property
    def _applied(self) -> int:
        return -1 if self.last is None else self.last

    def _apply(self, seq: int, payload: bytes) -> Apply:
        self.last = seq
        self._marks[seq] = xxh3_64_intdigest(payload)
        if len(self._marks) > RECENT:
            del self._marks[next(iter(self._marks))]
        return Apply(seq, payload)

    def _in_order(self) -> list[Step]:
        """Apply what waits and whose turn it is."""
        steps: list[Step] = []
        self._ahead.drop_until(self._applied)
        while (payload := self._ahead.drop(self._applied + 1)) is not None:
            steps.append(self._apply(self._applied + 1, payload))
        self._ahead.drop_until(self._applied)
        return steps

    def _ask(self, *, failures: int = 0, probe: bool = False) -> list[Step]:
        waiting = self._ahead
        self._asked = Asked(self._applied, frozenset(waiting.messages), waiting.missed, failures, probe)
        return [Replay(0 if probe else max(self._applied, 0))]

    def _prove(self) -> list[Step]:
        """Ask who the publisher is, if that is not known and could be."""
        if self._proven or self._checking or self._unknowable:
            return []
        self._checking = True
        return [Check()]

    def _restart(self) -> list[Step]:
        """Begin anew. What came since the check stays, in case that no replay can be had."""
        self._ahead, self._doubtful = self._doubtful, Waiting(self.most_messages, self.most_bytes)
        self._checking = False
        self._proven, self._unknowable = True, False
        self._fruitless = 0
        self._marks.clear()
        self.last = None
        return [Restarted(), *self._ask()]

    def _same_process(self) -> list[Step]:
        """What came during the check is of the same process: what is old has been applied."""
        self._checking = False
        for seq, payload in self._doubtful.messages.items():
            if seq > self._applied:
                self._ahead.keep(seq, payload)
        self._ahead.missed = max(self._ahead.missed, self._doubtful.missed)
        self._doubtful = Waiting(self.most_messages, self.most_bytes)
        if self._asked:
            return []
        if not self._proven:
            return self._ask()
        steps = self._in_order()
        return steps + self._ask() if self._ahead else steps

    def _give_up(self, why: str) -> list[Step]:
        """Go on after the last of what is missing."""
        newest = self._ahead.newest
        run = newest
        while run in self._ahead.messages:
            run -= 1
        steps: list[Step] = [Stale(why)]
        self._marks.clear()
        self.last = run if run >= 0 else None
        self._proven, self._unknowable = True, False
        steps += [self._apply(seq, self._ahead.messages[seq]) for seq in range(run + 1, newest + 1)]
        self._ahead = Waiting(self.most_messages, self.most_bytes)
        self._fruitless = 0
        return steps
