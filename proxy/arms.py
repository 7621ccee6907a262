"""What the two sides of a canary did lately. Pure.

Traffic is divided into *bands* by a point in [0, 100) that a prompt's start has for good; which side a band
is on is the caller's to say, so one record serves every stage, and the time before the first.

Bounded: slices of `SLICE_SECONDS`, at most `SLICES` of them, each with at most `BUCKETS` counts a band: 15 MB
with five bands if every bucket of every slice were used, a tenth of it in practice.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, log, sqrt

SLICE_SECONDS = 5.0
SLICES = 720
"""An hour."""
STEP = log(1.1)
"""Neighbouring buckets of times differ by a tenth: so exact are the percentiles."""
FASTEST = 0.001
BUCKETS = 146
"""Up to 1,000 s."""
ROOT_TOKENS = 128
"""How much of a prompt decides its point: more than a chat template's own opening words."""
SPREAD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: Fibonacci hashing (Knuth, The Art of Computer Programming 3, section 6.4)."""


def root(keys: array[int], block_tokens: float, affinity: int = 0) -> int:
    """What prompts have in common that begin alike; 0 if nothing is known of the prompt."""
    if not keys:
        return affinity
    last = max(0, int(ROOT_TOKENS / block_tokens) - 1)
    return keys[last] if last < len(keys) else keys[-1]


def point(of_root: int) -> float:
    """Where a prompt's start lies among all of them: 0 <= point < 100, the same in every proxy."""
    return ((of_root * SPREAD) & 0xFFFFFFFFFFFFFFFF) / 2**64 * 100


@dataclass(slots=True)
class Figures:
    """Sums over some requests."""

    requests: int = 0
    failures: int = 0
    ttfts: int = 0
    buckets: dict[int, int] = field(default_factory=dict)
    prompt: float = 0.0
    cached: float = 0.0
    cached_squares: float = 0.0
    products: float = 0.0
    """Of cached and prompt tokens."""
    prompt_squares: float = 0.0
    used: int = 0
    usage: float = 0.0
    usage_squares: float = 0.0

    def add(
        self, ttft: float | None, prompt: int, cached: int, kv_usage: float | None, *, failed: bool
    ) -> None:
        """Count one request."""
        self.requests += 1
        self.failures += failed
        if ttft is not None:
            self.ttfts += 1
            at = _bucket(ttft)
            self.buckets[at] = self.buckets.get(at, 0) + 1
        if prompt and not failed:
            self.prompt += prompt
            self.cached += cached
            self.cached_squares += cached * cached
            self.products += cached * prompt
            self.prompt_squares += prompt * prompt
        if kv_usage is not None:
            self.used += 1
            self.usage += kv_usage
            self.usage_squares += kv_usage * kv_usage

    def merge(self, other: Figures) -> None:
        """Count another's requests too."""
        if not other.requests:
            return
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for at, count in other.buckets.items():
            self.buckets[at] = self.buckets.get(at, 0) + count

    @property
    def failed(self) -> float | None:
        """The share of requests that failed."""
        return self.failures / self.requests if self.requests else None

    @property
    def hit_rate(self) -> float | None:
        """Cached over prompt tokens."""
        return self.cached / self.prompt if self.prompt else None

    @property
    def kv_usage(self) -> float | None:
        """Mean usage of the KV caches of the replicas that took the requests."""
        return self.usage / self.used if self.used else None

    @property
    def ttft_p95(self) -> float | None:
        """Seconds, at the upper bound of its bucket."""
        if not self.ttfts:
            return None
        wanted, seen = ceil(0.95 * self.ttfts), 0
        for at, count in sorted(self.buckets.items()):
            seen += count
            if seen >= wanted:
                return FASTEST * float(1.1**at)
        return None

    def above(self, seconds: float) -> float:
        """The share of times to first tokens above the bucket of `seconds`."""
        at = _bucket(seconds)
        more = sum(count for bucket, count in self.buckets.items() if bucket > at)
        return more / self.ttfts if self.ttfts else 0.0

    @property
    def hit_error(self) -> float:
        """Standard error of the hit rate, as of a ratio of sums (Cochran, Sampling Techniques, 6.4)."""
        if not self.prompt:
            return 0.0
        rate = self.cached / self.prompt
        residual = self.cached_squares - 2 * rate * self.products + rate * rate * self.prompt_squares
        return sqrt(max(residual, 0.0)) / self.prompt

    @property
    def usage_error(self) -> float:
        """Standard error of the mean usage."""
        if not self.used:
            return 0.0
        mean = self.usage / self.used
        return sqrt(max(self.usage_squares / self.used - mean * mean, 0.0) / self.used)

    def told(self) -> dict[str, float | int | None]:
        """The figures as an operator reads them."""
        return {
            "requests": self.requests,
            "ttft_p95_seconds": _rounded(self.ttft_p95),
            "errors": _rounded(self.failed),
            "hit_rate": _rounded(self.hit_rate),
            "kv_usage": _rounded(self.kv_usage),
        }


_SUMS = tuple(name for name in Figures.__dataclass_fields__ if name != "buckets")


def _bucket(seconds: float) -> int:
    return min(max(ceil(log(max(seconds, FASTEST) / FASTEST) / STEP - 1e-9), 0), BUCKETS - 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(slots=True)
class Bands:
    """The requests of the last while, by band."""

    cuts: Sequence[float]
    """Upper ends of the bands, rising; the last is 100."""
    slices: deque[tuple[float, list[Figures]]] = field(default_factory=deque)

    def band(self, at: float) -> int:
        """The band of a point."""
        return bisect_right(self.cuts, at)

    def add(
        self,
        now: float,
        band: int,
        ttft: float | None,
        prompt: int,
        cached: int,
        kv_usage: float | None,
        *,
        failed: bool,
    ) -> None:
        """Count one request of a band."""
        if not self.slices or now - self.slices[-1][0] >= SLICE_SECONDS:
            self.slices.append((now, [Figures() for _ in self.cuts]))
            if len(self.slices) > SLICES:
                self.slices.popleft()
        self.slices[-1][1][band].add(ttft, prompt, cached, kv_usage, failed=failed)

    def clear(self) -> None:
        """Forget everything."""
        self.slices.clear()

    def sides(self, percent: float) -> tuple[Figures, Figures]:
        """What the bands up to `percent` did, and what the others did."""
        below, above = Figures(), Figures()
        for _, bands in self.slices:
            for cut, figures in zip(self.cuts, bands, strict=True):
                (below if cut <= percent else above).merge(figures)
        return below, above

    def trim(self, now: float, seconds: float, percent: float, least: int) -> None:
        """Forget what is older than `seconds`, as long as `least` requests of each side remain."""
        counts = [self._counts(bands, percent) for _, bands in self.slices]
        below, above = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        for one, other in counts:
            if now - self.slices[0][0] <= seconds or below - one < least or above - other < least:
                return
            below, above = below - one, above - other
            self.slices.popleft()

    def _counts(self, bands: Iterable[Figures], percent: float) -> tuple[int, int]:
        sides = [0, 0]
        for cut, figures in zip(self.cuts, bands, strict=True):
            sides[cut > percent] += figures.requests
        return sides[0], sides[1]
