"""What caches saved, in GPU-seconds, against round robin. Pure.

Cached tokens, as replicas reported them, times the seconds that a token of prefill takes there, as learned
from their replies. Round robin would have found some of them too: how many is estimated by a miniature of the
fleet under round robin (see `proxy.shadow`) over a share of prompt starts.

The interval is of 95 %, from two errors that do not depend on each other: of the sample, by a jackknife over
`GROUPS` random groups of prompt starts (Wolter, Introduction to Variance Estimation, chapter 4), and of the
prefill's cost, as far as what was learned has varied. A reply that does not tell cached tokens counts
nowhere.
"""

from math import sqrt

GROUPS = 16
LEAST_TTFTS = 20
"""First tokens that were timed before the prefill's cost counts as measured rather than assumed."""
FORGET = 0.9999
"""What a learned cost still weighs in its spread when the next comes: about ten thousand count."""


class Savings:
    """Sums since the start."""

    def __init__(self, *, gpus: float, price_per_hour: float | None = None, currency: str = "") -> None:
        """`gpus` of a replica; `price_per_hour` of one."""
        self._gpus = gpus
        self._price = price_per_hour
        self._currency = currency
        self.cached_tokens = 0
        self.prompt_tokens = 0
        """Of the requests whose replies told cached tokens."""
        self.cached_seconds = 0.0
        """Of prefill, that those took nobody."""
        self.prompt_seconds = 0.0
        """That all of those prompts would have taken."""
        self._ttfts = 0
        self._prompts = [0] * GROUPS
        self._hits = [0] * GROUPS
        self._weight = self._mean = self._spread = 0.0

    def count(self, prompt: int, cached: int, tokens_per_second: float, *, timed: int) -> None:
        """Replies told `cached` of their prompts' tokens, on a replica that computes so many a second.

        `timed`: of how many of them the first token was seen to come.
        """
        cost = 1 / tokens_per_second
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.prompt_seconds += prompt * cost
        self.cached_seconds += cached * cost
        self._ttfts += timed
        self._weight = FORGET * self._weight + 1
        off = cost - self._mean
        self._mean += off / self._weight
        self._spread = FORGET * self._spread + off * (cost - self._mean)

    def sample(self, group: int, prompt: int, hit: int) -> None:
        """Round robin would have found `hit` of a prompt's tokens; `group` is of its start, any number."""
        self._prompts[group % GROUPS] += prompt
        self._hits[group % GROUPS] += hit

    @property
    def round_robin_rate(self) -> tuple[float, float] | None:
        """The hit rate that round robin would have had, and its standard error; None if not known yet."""
        prompt, hit = sum(self._prompts), sum(self._hits)
        without = [
            (hit - mine) / (prompt - of)
            for of, mine in zip(self._prompts, self._hits, strict=True)
            if of and prompt > of
        ]
        groups = len(without)
        if groups < GROUPS // 2:
            return None
        mean = sum(without) / groups
        variance = (groups - 1) / groups * sum((each - mean) ** 2 for each in without)
        return hit / prompt, sqrt(variance)

    @property
    def cost_error(self) -> float:
        """How far the learned cost of a token varied, as a share of it."""
        return sqrt(max(self._spread, 0.0) / self._weight) / self._mean if self._mean else 0.0

    def saved(self) -> tuple[float, float, float] | None:
        """GPU-seconds saved against round robin, with the interval's ends; None while too little is known."""
        rate = self.round_robin_rate
        if rate is None or self._ttfts < LEAST_TTFTS:
            return None
        share, error = rate
        seconds = self.cached_seconds - share * self.prompt_seconds
        doubt = 1.96 * sqrt((error * self.prompt_seconds) ** 2 + (seconds * self.cost_error) ** 2)
        return seconds * self._gpus, (seconds - doubt) * self._gpus, (seconds + doubt) * self._gpus

    def money(self, gpu_seconds: float) -> float | None:
        """What they cost; None unless a price was given."""
        return None if self._price is None else gpu_seconds / 3600 * self._price

    def told(self) -> dict[str, object]:
        """The figures as an operator reads them."""
        rate, saved = self.round_robin_rate, self.saved()
        told: dict[str, object] = {
            "cached_tokens": self.cached_tokens,
            "prompt_tokens": self.prompt_tokens,
            "hit_rate": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None,
            "round_robin_hit_rate": None if rate is None else round(rate[0], 4),
            "round_robin_hit_rate_error": None if rate is None else round(rate[1], 4),
            "seconds_per_token": self._mean or None,
            "seconds_per_token_error": self.cost_error * self._mean if self._mean else None,
            "cached_gpu_seconds": self.cached_seconds * self._gpus,
            "saved_gpu_seconds": None,
            "gpus_per_replica": self._gpus,
        }
        if saved is None:
            timed = self._ttfts >= LEAST_TTFTS
            told["waiting_for"] = (
                "more prompts" if timed else "streams whose first tokens tell the prefill's cost"
            )
            return told
        told["saved_gpu_seconds"], *ends = saved
        told["interval_95"] = ends
        if self._price is not None:
            told["saved"] = {"currency": self._currency, "amount": self.money(saved[0]),
                             "interval_95": [self.money(each) for each in ends]}  # fmt: skip
        return told
