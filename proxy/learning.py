"""What the proxy learns about a replica's speed from the replies it relays. Pure; no clock.

Must never be fed an answer that came in one piece: its first byte says nothing about its prefill.
"""

PRIOR_TOKENS_PER_SECOND = 8000.0
PRIOR_BASE_SECONDS = 0.02
PRIOR_WEIGHT = 4.0
"""How many observations the prior counts as, at PRIOR_TOKENS tokens each."""
PRIOR_TOKENS = 1000.0
FORGET = 0.98
"""What an observation still weighs when the next has come: about fifty count."""


class PrefillRate:
    """TTFT = base + tokens / rate, by least squares over recent (tokens, seconds) pairs.

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
            slope = (self._n * self._xy - self._x * self._y) / spread
            slope = min(max(slope, 1e-6), 0.02)  # a million and fifty tokens a second bound it
            self.tokens_per_second = 1 / slope
            self.base_seconds = min(max((self._y - slope * self._x) / self._n, 0.0), 10.0)
