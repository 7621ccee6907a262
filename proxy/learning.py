"""What is learned of prefill from the replies that are relayed: TTFT = base + tokens / rate. Pure; no clock.

The fleet's line is fitted over all replicas' replies; each replica has a rate of its own that leans on the
fleet's until its own replies outweigh it, and again when it has had none for a while. Otherwise a replica
that was misjudged once would get no requests, and so no chance to be judged anew.

Must never be fed an answer that came in one piece: its first byte says nothing about its prefill.
"""

PRIOR_TOKENS_PER_SECOND = 8000.0
PRIOR_BASE_SECONDS = 0.02
PRIOR_WEIGHT = 4.0
"""How many observations the prior counts as, at PRIOR_TOKENS tokens each."""
PRIOR_TOKENS = 1000.0
FORGET = 0.98
"""What an observation still weighs when the next has come: about fifty count."""
SLOWEST, FASTEST = 50.0, 1e6
"""Tokens a second that bound every estimate."""
LONGEST_BASE = 10.0


class FleetLine:
    """The line through recent (tokens, seconds) pairs of all replicas, by least squares.

    `tokens` are the uncached prompt tokens ahead of the request in its replica's queue plus its own. The fit
    starts at a prior and forgets exponentially. A spread of token counts is needed to tell base from rate;
    without one the prior's base holds, since its pseudo-observations lie on the prior's line.
    """

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "base_seconds", "tokens_per_second")

    def __init__(self) -> None:
        self.tokens_per_second = PRIOR_TOKENS_PER_SECOND
        self.base_seconds = PRIOR_BASE_SECONDS
        slow = PRIOR_BASE_SECONDS + PRIOR_TOKENS / PRIOR_TOKENS_PER_SECOND
        half = PRIOR_WEIGHT / 2  # half of the prior sits at no tokens, half at PRIOR_TOKENS
        self._n = PRIOR_WEIGHT
        self._x = half * PRIOR_TOKENS
        self._y = half * (PRIOR_BASE_SECONDS + slow)
        self._xx = half * PRIOR_TOKENS**2
        self._xy = half * PRIOR_TOKENS * slow

    def observe(self, tokens: float, seconds: float) -> None:
        """Take in one reply's (uncached tokens, seconds to its first token)."""
        self._n = FORGET * self._n + 1
        self._x = FORGET * self._x + tokens
        self._y = FORGET * self._y + seconds
        self._xx = FORGET * self._xx + tokens * tokens
        self._xy = FORGET * self._xy + tokens * seconds
        spread = self._n * self._xx - self._x * self._x
        if spread > 1.0:
            slope = _bounded((self._n * self._xy - self._x * self._y) / spread)
            self.tokens_per_second = 1 / slope
            self.base_seconds = min(max((self._y - slope * self._x) / self._n, 0.0), LONGEST_BASE)


class ReplicaRate:
    """One replica's prefill rate, given the fleet's line."""

    __slots__ = ("_xx", "_xy")

    def __init__(self) -> None:
        self._xx = 0.0
        self._xy = 0.0

    def observe(self, tokens: float, seconds: float, line: FleetLine) -> None:
        """Take in one reply of this replica."""
        self._xx = FORGET * self._xx + tokens * tokens
        self._xy = FORGET * self._xy + tokens * max(seconds - line.base_seconds, 0.0)

    def fade(self, share: float) -> None:
        """Let what is known weigh `share` of what it did: time has passed."""
        self._xx *= share
        self._xy *= share

    def tokens_per_second(self, line: FleetLine) -> float:
        """The estimate."""
        prior = PRIOR_WEIGHT * PRIOR_TOKENS**2
        return 1 / _bounded((prior / line.tokens_per_second + self._xy) / (prior + self._xx))


def _bounded(slope: float) -> float:
    return min(max(slope, 1 / FASTEST), 1 / SLOWEST)
