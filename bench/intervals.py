"""How sure a figure is: bootstrap intervals of one run's figures, and of the difference of two runs.

Pure; equal input gives equal output. Latencies that follow each other are alike (a queue that is long stays
long for a while), so what is drawn again are stretches of consecutive requests, not single ones: a
moving-block bootstrap (Künsch 1989) with stretches of n^(1/3), the rate that Hall, Horowitz and Jing (1995)
give for variances. What it cannot know is how another run on another day would differ: repeats tell that
(`paired_mean`).
"""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import mean, stdev
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""From drawn samples, one a row (pairs: a row of pairs), to one figure a row."""

DRAWS = 500
LEVEL = 0.95
SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
LEAST = 8
"""Requests below which no interval is given: a stretch would be the whole sample."""

_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t at 97.5 % for 1 to 15 degrees of freedom; beyond, 1.96 to 2.12."""


def stretches(n: int, draws: int = DRAWS, seed: int = 1) -> NDArray[np.int64]:
    """Indices of `draws` samples of n requests, drawn in stretches of consecutive ones (round the end)."""
    length = max(1, round(n ** (1 / 3)))
    starts = np.random.default_rng(seed).integers(0, n, size=(draws, -(-n // length)))
    inside = starts[:, :, None] + np.arange(length)
    return (inside.reshape(draws, -1)[:, :n] % n).astype(np.int64)


def statistic(name: str) -> Statistic:
    """`mean` or `p50`, `p99` and so on, of rows."""
    if name == "mean":
        return lambda rows: rows.mean(axis=1)
    share = float(name.removeprefix("p")) / 100
    return lambda rows: np.asarray(np.quantile(rows, share, axis=1), dtype=np.float64)


def latency(values: Sequence[float | None]) -> dict[str, Any] | None:
    """P50, P90, P95, P99, mean and count of what is there, in order of time, each with its interval.

    None where nothing is there.
    """
    present = np.array([value for value in values if value is not None], dtype=np.float64)
    if not len(present):
        return None
    names = (*SHARES, "mean")
    figures: dict[str, Any] = {name: float(statistic(name)(present[None, :])[0]) for name in names}
    figures["count"] = len(present)
    if len(present) >= LEAST:
        drawn = present[stretches(len(present), _draws(len(present)))]
        figures["intervals"] = {name: _between(statistic(name)(drawn)) for name in names}
    return figures


def pooled(clusters: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    """As `latency`, of many values a request: whole requests are drawn, with all of theirs."""
    filled = [np.asarray(cluster, dtype=np.float64) for cluster in clusters if len(cluster)]
    if not filled:
        return None
    everything = np.concatenate(filled)
    names = (*SHARES, "mean")
    figures: dict[str, Any] = {name: float(statistic(name)(everything[None, :])[0]) for name in names}
    figures["count"] = len(everything)
    if len(filled) >= LEAST:
        drawn: dict[str, list[float]] = {name: [] for name in names}
        for indices in stretches(len(filled), draws=_draws(len(everything))):
            sample = np.concatenate([filled[i] for i in indices])[None, :]
            for name in names:
                drawn[name].append(float(statistic(name)(sample)[0]))
        figures["intervals"] = {name: _between(np.array(values)) for name, values in drawn.items()}
    return figures


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> list[float] | None:
    """The interval of sum(parts) / sum(wholes), request by request in order of time; None for too few."""
    if len(parts) < LEAST:
        return None
    return _between(_ratios(np.column_stack([parts, wholes])[stretches(len(parts))]))


def _ratios(rows: NDArray[np.float64]) -> Values:
    sums = rows.sum(axis=1)
    return np.asarray(sums[:, 0] / np.maximum(sums[:, 1], 1e-12), dtype=np.float64)


def change(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    figure: Callable[[NDArray[np.float64]], Values],
    *,
    relative: bool,
) -> tuple[float, list[float] | None]:
    """How much higher `figure` is in b than in a, and the interval; `relative`: as a share of a's.

    a and b are one row a request. Where they are as long as each other, they are taken to be the same
    requests in the same order, and the same ones are drawn in both: what a request has in common in both
    runs then cancels.
    """

    def of(before: Values, after: Values) -> Values:
        difference = after - before
        return difference / np.where(before == 0, np.nan, before) if relative else difference

    point = float(of(figure(a[None, ...]), figure(b[None, ...]))[0])
    if min(len(a), len(b)) < LEAST:
        return point, None
    draws = _draws(max(len(a), len(b)))
    ours = stretches(len(a), draws)
    theirs = ours if len(a) == len(b) else stretches(len(b), draws, seed=2)
    drawn = of(figure(a[ours]), figure(b[theirs]))
    drawn = drawn[~np.isnan(drawn)]
    return point, _between(drawn) if len(drawn) else None


ratios = _ratios
"""For `change`: rows of pairs to the ratio of their sums."""


def paired_mean(differences: Sequence[float]) -> tuple[float, list[float] | None]:
    """The mean of repeats' differences and its 95 % interval (Student's t); None for one repeat alone."""
    middle, n = mean(differences), len(differences)
    if n < 2:
        return middle, None
    t = _T[n - 2] if n - 2 < len(_T) else 1.96 + 2.4 / (n - 1)
    half = t * stdev(differences) / sqrt(n)
    return middle, [middle - half, middle + half]


def _draws(n: int) -> int:
    """Fewer for very many values: each draw is then nearly the same anyway, and takes its time."""
    return DRAWS if n <= 10_000 else 200


def _between(drawn: Values) -> list[float]:
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [outside, 1 - outside])
    return [float(low), float(high)]
