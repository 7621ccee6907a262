"""What is learned of prefill from the replies that are relayed: TTFT = base + tokens / rate. Pure; no clock.

The fleet's line is fitted over all replicas' replies; each replica has a rate of its own that leans on the
fleet's until its own replies outweigh it, and again when it has had none for a while. Otherwise a replica
that was misjudged once would get no requests, and so no chance to be judged anew.

Must never be fed an answer that came in one piece: its first byte says nothing about its prefill.
"""

PRIOR_TOKENS_PER_SECOND = 8000.0
PRIOR_BASE_SECONDS = 0.02
PRIOR_NOISE_SECONDS = 0.02
"""How far a reply is off the line, before any has been seen."""
PRIOR_WEIGHT = 4.0
"""How many observations a prior counts as where it gives way to them."""
PRIOR_TOKENS = 1000.0
"""Of each of those, for a replica's rate."""
FORGET = 0.98
"""What an observation still weighs when the next has come: about fifty count."""
SLOWEST, FASTEST = 50.0, 1e6
"""Tokens a second that bound every estimate."""
LONGEST_BASE = 10.0

_PRIOR_SLOPE = 1 / PRIOR_TOKENS_PER_SECOND
_PRIOR_SQUARES = PRIOR_WEIGHT * PRIOR_NOISE_SECONDS**2
_BASE_WEIGHT, _SLOPE_WEIGHT = 1 / PRIOR_BASE_SECONDS**2, 1 / _PRIOR_SLOPE**2


class FleetLine:
    """The line through recent (tokens, seconds) pairs of all replicas.

    `tokens` are the uncached prompt tokens ahead of the request in its replica's queue plus its own. Only a
    spread of token counts tells base from rate. Without one, least squares would follow the noise to either
    bound; so base and slope are the most probable ones under normal priors, each as wide as its mean
    (Bayesian linear regression: Bishop, Pattern Recognition and Machine Learning, 3.3.1):

        minimise  sum((seconds - base - slope * tokens)^2) / noise^2
                  + ((base - base0) / base0)^2 + ((slope - slope0) / slope0)^2

    `noise^2` is the mean square of what least squares leaves, PRIOR_NOISE_SECONDS included as PRIOR_WEIGHT
    observations. Observations are forgotten exponentially, the priors never (Kulhavy and Zarrop, On a general
    concept of forgetting, 1993). So where all prompts are of one length, the slope differs from slope0 by at
    most `m / (2 * base0)` of it, `m` being how far the mean reply is off the prior's line; and where they are
    nearly so, noise moves it by half of slope0 (one standard deviation), however near they are.
    """

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "_yy", "base_seconds", "tokens_per_second")

    def __init__(self) -> None:
        self.tokens_per_second = PRIOR_TOKENS_PER_SECOND
        self.base_seconds = PRIOR_BASE_SECONDS
        self._n = self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def observe(self, tokens: float, seconds: float) -> None:
        """Take in one reply's (uncached tokens, seconds to its first token)."""
        n = self._n = FORGET * self._n + 1
        x = self._x = FORGET * self._x + tokens
        y = self._y = FORGET * self._y + seconds
        xx = self._xx = FORGET * self._xx + tokens * tokens
        xy = self._xy = FORGET * self._xy + tokens * seconds
        yy = self._yy = FORGET * self._yy + seconds * seconds
        noise, spread = yy - y * y / n, xx - x * x / n
        if spread > 1.0:
            noise -= (xy - x * y / n) ** 2 / spread
        noise = (max(noise, 0.0) + _PRIOR_SQUARES) / (n + PRIOR_WEIGHT)
        base_weight, slope_weight = noise * _BASE_WEIGHT, noise * _SLOPE_WEIGHT
        n += base_weight
        y += base_weight * PRIOR_BASE_SECONDS
        xx += slope_weight
        xy += slope_weight * _PRIOR_SLOPE
        slope = _bounded((n * xy - x * y) / (n * xx - x * x))
        self.tokens_per_second = 1 / slope
        self.base_seconds = min(max((y - slope * x) / n, 0.0), LONGEST_BASE)


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
