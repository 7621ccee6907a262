"""What is known of one measured request, and the few figures that are made of many. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One request of a run. Seconds; latencies count from the time it was due."""

    group: str
    due: float
    lag: float
    """How late it was sent: the load generator's own failing."""
    number: int = 0
    """Its place in the plan, by which two runs of one plan are paired."""
    expected_tokens: int = 0
    """Prompt tokens, as counted beforehand."""
    status: int | None = None
    error: str | None = None
    """What went wrong: its kind, then `:` and more about it."""
    shed: bool = False
    """Turned away with 429, or with 503 and a time to come back."""
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    gaps: list[float] = field(default_factory=list)
    """From each token to the next."""
    queue: float | None = None
    """In the proxy, as it says itself."""
    overhead: float | None = None
    """The proxy's own, as it says itself."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """None where the replica did not say."""
    predicted_tokens: int | None = None
    """Of the prompt, what the proxy believed the chosen replica to hold."""
    output_tokens: int | None = None
    replica: str | None = None
    decision: str | None = None

    @property
    def kind(self) -> str | None:
        """Of its error."""
        return None if self.error is None else self.error.partition(":")[0]


def hit_rate(records: Iterable[Record]) -> float | None:
    """Cached over prompt tokens of the requests whose replica reported them; None if none did."""
    cached = tokens = 0
    for record in records:
        if record.cached_tokens is not None and record.prompt_tokens is not None:
            cached += record.cached_tokens
            tokens += record.prompt_tokens
    return cached / tokens if tokens else None


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed, interpolated between neighbours."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """P50, P95, P99 and mean of what is there; None if nothing is."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    named = {f"p{round(share * 100)}": quantile(present, share) for share in (0.5, 0.95, 0.99)}
    return {**named, "mean": sum(present) / len(present)}


def groups_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every group of some runs, `shared` first."""
    return sorted({group for run in runs for group in run["groups"]}, reverse=True)
