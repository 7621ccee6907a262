"""The figures of a run, from what became of its requests. Pure; seconds, tokens, shares of prompt tokens."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.simulation import Job, Outcome, Run

PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of `values`, sorted, does not exceed."""
    return values[min(len(values) - 1, max(0, -int(-share * len(values) // 1) - 1))]


def latency(values: Iterable[float]) -> dict[str, float]:
    """Mean and percentiles; empty for no values."""
    ordered = sorted(values)
    if not ordered:
        return {}
    named = {name: quantile(ordered, share) for name, share in PERCENTILES.items()}
    return {**named, "mean": sum(ordered) / len(ordered)}


def spread(values: Iterable[float]) -> float:
    """The largest over the mean: 1 is even."""
    values = list(values)
    return max(values) * len(values) / sum(values) if sum(values) else 1.0


def jain(values: Iterable[float]) -> float:
    """Jain's index of fairness: 1 is even, 1/n is one for all."""
    values = list(values)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def group_figures(outcomes: Sequence[Outcome], ceiling: float) -> dict[str, Any]:
    """One group's entry in a result file."""
    decoding = [(o.e2e - o.ttft) / (o.output_tokens - 1) for o in outcomes if o.output_tokens > 1]
    return {
        "requests": len(outcomes),
        "errors": 0,
        "hit_rate": sum(o.cached for o in outcomes) / max(1, sum(o.tokens for o in outcomes)),
        "ceiling": ceiling,
        "ttft": latency(o.ttft for o in outcomes),
        "tpot": latency(decoding),
        "e2e": latency(o.e2e for o in outcomes),
    }


def figures(policy: str, run: Run, ceilings: Mapping[str, float]) -> dict[str, Any]:
    """One policy's entry in a result file; the group `all` is every request."""
    groups = {name: [o for o in run.outcomes if name in ("all", o.group)] for name in ceilings}
    return {
        "policy": policy,
        "groups": {name: group_figures(outcomes, ceilings[name]) for name, outcomes in groups.items()},
        "throughput": len(run.outcomes) / run.seconds if run.seconds else 0.0,
        "replicas": run.requests,
        "uncached_spread": spread(run.uncached.values()),
        "uncached_jain": jain(run.uncached.values()),
        "decisions": run.decisions,
    }


def ceilings(jobs: Sequence[Job], hits: Sequence[int]) -> dict[str, float]:
    """Per group, the hit rate of a perfect cache; `hits` are its tokens, job by job."""
    out: dict[str, float] = {}
    for group in ["all", *sorted({job.arrival.group for job in jobs})]:
        chosen = [
            (job, hit) for job, hit in zip(jobs, hits, strict=True) if group in ("all", job.arrival.group)
        ]
        out[group] = sum(hit for _, hit in chosen) / max(1, sum(job.tokens for job, _ in chosen))
    return out
