"""Whether one side of a canary is worse than the other by more than chance, and in what. Pure.

Each comparison is of what both sides did, what an operator allows, and by how much the two differed before.
"""

from dataclasses import dataclass
from math import hypot, sqrt

from proxy.arms import Figures
from proxy.canary_terms import CanaryTerms

DOUBT = 3.0
"""Standard errors beyond a limit that rule chance out: of comparisons at the limit, one in 700 errs."""
LEAST_SECONDS = 0.02
"""Differences of times to first tokens below this are nobody's concern."""


@dataclass(frozen=True, slots=True)
class Before:
    """By how much the two sides differed when both were treated alike; never to the canary's disadvantage."""

    ttft: float = 1.0
    """The canary's side's 95th percentile over the other's."""
    hit_rate: float = 0.0
    errors: float = 0.0
    kv_usage: float = 0.0


def before(canary: Figures, main: Figures, least: int) -> Before:
    """What differs between two sides that are treated alike; nothing unless each has `least` requests."""
    if min(canary.requests, main.requests) < least:
        return Before()
    one, other = canary.ttft_p95, main.ttft_p95
    return Before(
        ttft=max(1.0, one / other) if one is not None and other else 1.0,
        hit_rate=max(0.0, (main.hit_rate or 0.0) - (canary.hit_rate or 0.0)),
        errors=max(0.0, (canary.failed or 0.0) - (main.failed or 0.0)),
        kv_usage=max(0.0, (canary.kv_usage or 0.0) - (main.kv_usage or 0.0)),
    )


def errors_breach(canary: Figures, main: Figures, terms: CanaryTerms, was: Before) -> str | None:
    """Why the canary's errors are too many, or None."""
    if not canary.requests or not main.requests:
        return None
    one, other = canary.failures / canary.requests, main.failures / main.requests
    both = (canary.failures + main.failures + 1) / (canary.requests + main.requests + 2)  # Laplace's rule
    doubt = sqrt(both * (1 - both) * (1 / canary.requests + 1 / main.requests))
    if not _beyond_doubt(one - other - was.errors - terms.errors, doubt):
        return None
    return f"{one:.1%} of its requests failed, {other:.1%} of the others"


def ttft_breach(canary: Figures, main: Figures, terms: CanaryTerms, was: Before) -> str | None:
    """Why the canary's times to first tokens are too long, or None.

    At the limit a twentieth of its times would be above it: more than that, beyond doubt, is a breach.
    """
    usual, own = main.ttft_p95, canary.ttft_p95
    if usual is None or own is None or min(canary.ttfts, main.ttfts) < terms.min_requests:
        return None
    limit = max(usual * terms.ttft * was.ttft, usual + LEAST_SECONDS)
    doubt = sqrt(0.05 * 0.95 * (1 / canary.ttfts + 1 / main.ttfts))
    if not _beyond_doubt(canary.above(limit) - 0.05, doubt):
        return None
    return f"its P95 to the first token is {own * 1000:,.0f} ms, the other's {usual * 1000:,.0f} ms"


def hit_breach(canary: Figures, main: Figures, terms: CanaryTerms, was: Before) -> str | None:
    """Why the canary's hit rate is too low, or None."""
    one, other = canary.hit_rate, main.hit_rate
    if one is None or other is None:
        return None
    if not _beyond_doubt(other - one - was.hit_rate - terms.hit_rate, canary.hit_error, main.hit_error):
        return None
    return f"its hit rate is {one:.1%}, the other's {other:.1%}"


def usage_breach(canary: Figures, main: Figures, terms: CanaryTerms, was: Before) -> str | None:
    """Why the canary's replicas are too full, or None."""
    one, other = canary.kv_usage, main.kv_usage
    if one is None or other is None:
        return None
    if not _beyond_doubt(one - other - was.kv_usage - terms.kv_usage, canary.usage_error, main.usage_error):
        return None
    return f"the KV caches of its replicas are {one:.1%} in use, the other's {other:.1%}"


def _beyond_doubt(excess: float, *errors: float) -> bool:
    """Whether what is above a limit is so by more than chance; `errors`: standard, of what it is made of."""
    return excess > DOUBT * hypot(*errors)
