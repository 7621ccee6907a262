"""Counters and histograms that are cheap to book: plain numbers, made into Prometheus' families at a scrape.

For one event loop: nothing here takes a lock. prometheus-client's own metrics cost more a request than
routing does, since each update takes a lock and walks the buckets.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class CounterFamily:
    """A counter by label values."""

    __slots__ = ("_labels", "_name", "_text", "values")

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], amount: float = 1) -> None:
        """Count `amount` more."""
        self.values[labels] = self.values.get(labels, 0) + amount

    def forget(self, label: str, value: str) -> None:
        """Drop every series whose `label` is `value`."""
        at = self._labels.index(label)
        for labels in [labels for labels in self.values if labels[at] == value]:
            del self.values[labels]

    def collect(self) -> Metric:
        """The family as it is now."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """One series of a histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class HistogramFamily:
    """A histogram by label values."""

    __slots__ = ("_bounds", "_labels", "_name", "_text", "series")

    def __init__(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> None:
        self._name, self._text, self._bounds, self._labels = name, text, bounds, labels
        self.series: dict[tuple[str, ...], Histogram] = {}

    def of(self, labels: tuple[str, ...]) -> Histogram:
        """The series with these label values."""
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = Histogram(self._bounds)
        return series

    def collect(self) -> Metric:
        """The family as it is now."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, series in self.series.items():
            family.add_metric(labels, list(_cumulative(series)), series.total)
        return family


def _cumulative(series: Histogram) -> Iterable[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(str, series.bounds), "+Inf"), series.counts, strict=True):
        total += count
        yield bound, total
