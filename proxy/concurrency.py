"""How many sequences a replica is given at once. Pure; told the time.

What an engine has beyond what keeps it busy only waits there, first come first served; kept in the proxy
instead it can still be overtaken. So the adaptive limit watches what waiting does to first tokens: the time
to one, per token that had to be computed, against the same where nothing was ahead of it (a gradient, as in
Netflix's concurrency-limits, but with a base line that needs no quiet hours). While it is hardly longer a
limit that binds rises; when it is much longer the limit falls, but never below what the replica decodes and
a prefill beside that: a limit that idles a replica raises every latency.

Only streams teach it: when an answer in one piece began cannot be seen. Without streams it stays where it
started.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

from policies import base

UNKNOWN = 256
"""Where a limit starts if the engine does not say how many sequences it runs: vLLM's own default."""
LEAST, MOST = 8.0, 8192.0
"""What one step of an engine can prefill together; and the end of all rising."""
BESIDE = 8
"""Of so many that decode, one more may be prefilled beside them than the first."""
FIXED_TOKENS = 512.0
"""What a first token costs that no prompt token accounts for, as tokens: HTTP and one step of the engine.
The bench's three profiles put it at 60 to 580."""
TOLERANCE = 2.0
"""Times longer than alone that a first token may take: about one prefill ahead of each."""
FALL, RISE = 0.5, 1.5
"""What one step multiplies by, at the least and at the most."""
PATIENCE = 1.0
"""Seconds of prefill at a replica above which a request waits in the proxy instead: no engine idles on it."""
SAMPLES = 8
"""First tokens that must have come since a step before the next."""
CALM, SETTLE = 0.05, 0.5
"""Weight of a sample in the base line; seconds that a step needs at least to show."""


class Unlimited:
    """No limit."""

    __slots__ = ("value",)

    def __init__(self, value: float = inf) -> None:
        self.value = value

    def at(self, running: int) -> float:  # noqa: ARG002 - what others need
        """The limit of a replica that decodes so many sequences."""
        return self.value

    def observe(self, now: float, sent_at: float, uncached: float, ahead: float, in_flight: int) -> None:
        """Learn nothing."""


class Fixed(Unlimited):
    """A limit that a person chose."""

    __slots__ = ()


class Adaptive(Unlimited):
    """A limit that follows the times to first tokens."""

    __slots__ = ("_alone", "_changed", "_count", "_highest", "_least", "_most", "_sum")

    def __init__(self, slots: int | None, now: float) -> None:
        super().__init__(float(slots or UNKNOWN))
        self._least = min(LEAST, self.value)
        self._highest = float(slots or MOST)
        """More than it runs would only wait there, and leave no headroom for a higher class."""
        self._alone: float | None = None
        """Mean logarithm of seconds a token where nothing was ahead; None before the first."""
        self._changed = now
        self._sum = 0.0
        self._count = 0
        self._most = 0
        """Sequences in flight at most since it changed."""

    def at(self, running: int) -> float:
        """Never so low that none can be prefilled beside those that decode, unless its slots are taken."""
        return max(self.value, min(self._highest, running + running // BESIDE + 1))

    def observe(self, now: float, sent_at: float, uncached: float, ahead: float, in_flight: int) -> None:
        """A first token has come: of a request sent at `sent_at` with `ahead` uncached tokens before its own.

        `in_flight` are the sequences that the replica has now.
        """
        if now <= sent_at:
            return
        each = log((now - sent_at) / (FIXED_TOKENS + uncached))
        if self._alone is None:
            self._alone = each
        elif ahead <= 0:
            self._alone += CALM * (each - self._alone)
        self._most = max(self._most, in_flight)
        if sent_at < self._changed:  # it says how the limit before this one was
            return
        self._sum += each
        self._count += 1
        if self._count >= SAMPLES and now - self._changed >= SETTLE:
            self._step(exp(self._sum / self._count - self._alone))
            self._changed, self._sum, self._count, self._most = now, 0.0, 0, 0

    def _step(self, inflation: float) -> None:
        value, most = self.value, self._most
        gradient = min(max(TOLERANCE / inflation, FALL), RISE)
        if gradient < 1.0:
            self.value = max(self._least, min(value, most) * gradient)
        elif 2 * most >= value:  # else it holds nothing back, and nothing shows how it would be higher
            self.value = min(self._highest, value * gradient + 1.0)


Limit = Unlimited


def limit(concurrency: str | int, slots: int | None, now: float) -> Limit:
    """The limit of a new replica: `none`, `adaptive`, or a number; `slots`: what the engine runs."""
    if concurrency == "none":
        return Unlimited()
    if concurrency == "adaptive":
        return Adaptive(slots, now)
    return Fixed(float(concurrency))


def patience(concurrency: str | int) -> float:
    """Seconds of prefill that may be ahead of a request at a replica under limits of this kind."""
    return PATIENCE if concurrency == "adaptive" else inf


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a class of requests may take of each replica."""

    share: float = 1.0
    """Of its limit."""
    prefill: float = inf
    """Seconds of prefill that may be ahead."""
    kept: frozenset[str] = frozenset()
    """Names of replicas of which it may take nothing."""


ALL = Allowance()


def has_room(view: base.Replica, sequences: int, allowed: Allowance = ALL) -> bool:
    """Whether a replica has room for so many more sequences of a class.

    One that has nothing takes whatever comes, unless it is kept: a request may be larger than any limit.
    """
    if allowed.kept and view.name in allowed.kept:
        return False
    in_flight = view.in_flight
    if in_flight + sequences > view.limit * allowed.share:
        return not in_flight
    return view.queued_tokens <= allowed.prefill * view.prefill_rate


def any_room(views: Sequence[base.Replica], sequences: int, allowed: Allowance = ALL) -> bool:
    """Whether a class may have so many more sequences on some of these replicas."""
    for view in views:  # noqa: SIM110 - a generator would cost more than all the rest of letting in
        if has_room(view, sequences, allowed):
            return True
    return False
