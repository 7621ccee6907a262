"""Whether what a replica does with requests is good enough to send it more. Pure; told the time.

Fed with how real requests end. Success: an answer that is not the replica's fault, whole. Failure: a refused
or reset connection, a 5xx, a stream that dies, silence. Neutral, and never told here: a 4xx, 429 and 503
(the replica is full, not broken), a client that left.

Closed, failures and successes are weighed one against one, so it opens where more than half fail for a while
and not for a few that fail among many. Open, nothing is sent; after a pause, one request is sent on trial:
its success closes the breaker, its failure opens it again for twice as long. The trial is leased: one that is
never heard of again, or ends without saying anything, makes place for the next.

Invariants: at most one trial at a time; a request that was sent before the breaker last opened changes
nothing; whatever happens, some trial is due at most `LONGEST + TRIAL_SECONDS` after it opened.
"""

from enum import IntEnum

FAILURES = 5
"""Failures, less successes, that open it."""
PROBATION = 3
"""Those of them that it begins with when it closes again."""
SHORTEST, LONGEST = 2.0, 30.0
"""Seconds until the first trial, and at most after trials that failed."""
TRIAL_SECONDS = 10.0
"""How long one trial keeps others away."""


class State(IntEnum):
    """As in the metric; the higher, the worse."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Of one replica, in one proxy."""

    __slots__ = ("_due", "_pause", "failures", "generation", "state", "trial")

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.generation = 0
        """How often it has opened: what a request is told when it is sent, and tells with its outcome."""
        self.failures = 0
        """Failures of this generation, less successes."""
        self.trial: object | None = None
        """Whoever is on trial."""
        self._due = 0.0
        """When the pause, or the lease of the trial, ends."""
        self._pause = SHORTEST

    @property
    def admits(self) -> bool:
        """Whether the next request may be sent."""
        return not self.state or (self.state is State.HALF_OPEN and self.trial is None)

    @property
    def awaits_trial(self) -> bool:
        """Whether the next request would be the trial."""
        return self.state is State.HALF_OPEN and self.trial is None

    def lend(self, request: object, now: float) -> None:
        """A request is sent: the trial, if one is due."""
        if self.awaits_trial:
            self.trial, self._due = request, now + TRIAL_SECONDS

    def give_back(self, request: object) -> bool:
        """A request has ended, whatever it has said; True if it was on trial and decided nothing."""
        if self.trial is not request:
            return False
        self.trial = None
        return True

    def succeeded(self, generation: int) -> bool:
        """A request that was sent in `generation` went well; True if that closes the breaker."""
        if generation != self.generation:
            return False
        if not self.state:
            self.failures = max(0, self.failures - 1)
            return False
        self.state, self.trial = State.CLOSED, None
        self.failures, self._pause = PROBATION, SHORTEST
        return True

    def failed(self, generation: int, now: float) -> bool:
        """A request that was sent in `generation` failed; True if that opens the breaker."""
        if generation != self.generation or self.state is State.OPEN:
            return False
        if not self.state:
            self.failures += 1
            if self.failures < FAILURES:
                return False
        else:
            self._pause = min(LONGEST, 2 * self._pause)
        self.state, self.trial = State.OPEN, None
        self.generation += 1
        self._due = now + self._pause
        return True

    def tick(self, now: float) -> bool:
        """Let time pass; True if a trial has come to be due."""
        if not self.state or now < self._due or self.awaits_trial:
            return False
        self.state, self.trial = State.HALF_OPEN, None
        return True

    def reset(self) -> None:
        """The replica is a new process: nothing is known of it, and nothing of the old one counts."""
        self.state, self.trial = State.CLOSED, None
        self.generation += 1
        self.failures, self._pause = 0, SHORTEST
