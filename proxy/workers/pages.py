"""Metrics of several workers as one page: plain numbers, added up where they count something.

What a worker has counted outlives it: `Pages` keeps the counters of those that have ended, so that no sum
goes back. Gauges are of those that live. Where all look at the same thing, the word that an operator should
hear counts: the least for what says that something is up, else the greatest. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

SUMMED = frozenset(
    f"warmroute_{name}"
    for name in (
        *("replica_inflight", "replica_queued_tokens", "queue_length"),
        *("breaks_tokens_per_day", "saved_gpu_seconds", "saved_money"),
    )
)
"""Gauges of what each worker has for itself."""
COUNTED = frozenset(("counter", "histogram", "summary"))

Labels = tuple[tuple[str, str], ...]
Page = list[tuple[str, str, str, list[tuple[str, Labels, float]]]]
"""Families: name, text, type, samples; a sample: name, labels, value."""


def page_of(families: Iterable[Metric]) -> Page:
    """What a worker tells."""
    return [
        (f.name, f.documentation, f.type, [(s.name, tuple(s.labels.items()), s.value) for s in f.samples])
        for f in families
    ]


class Pages:
    """What all workers tell, as one."""

    def __init__(self) -> None:
        self._ended: Page = []

    def end(self, page: Page) -> None:
        """A worker has ended, and this is what it told last."""
        counted = [family for family in page if family[2] in COUNTED]
        self._ended = merged([self._ended, counted])

    def know(self, replicas: Iterable[str]) -> None:
        """These replicas there are: what was counted of others is forgotten, as the workers have."""
        known = {"", *replicas}  # what is of no replica stays
        self._ended = [
            (name, text, kind, [each for each in samples if dict(each[1]).get("replica", "") in known])
            for name, text, kind, samples in self._ended
        ]

    def text(self, pages: Sequence[Page], *more: Metric) -> bytes:
        """The exposition: of those that live, with what was counted by those that have ended."""
        registry = CollectorRegistry()
        registry.register(_Told([*map(_metric, merged([*pages, self._ended])), *more]))
        return generate_latest(registry)


def merged(pages: Iterable[Page]) -> Page:
    """One page of several."""
    found: dict[str, tuple[str, str, dict[tuple[str, Labels], float]]] = {}
    for page in pages:
        for name, text, kind, samples in page:
            _, _, values = found.setdefault(name, (text, kind, {}))
            for what, labels, value in samples:
                key = (what, tuple((label, of) for label, of in labels))
                before = values.get(key)
                values[key] = value if before is None else _joined(name, kind, before, value)
    return [
        (name, text, kind, [(what, labels, value) for (what, labels), value in values.items()])
        for name, (text, kind, values) in found.items()
    ]


def _joined(name: str, kind: str, one: float, other: float) -> float:
    if kind in COUNTED or name in SUMMED:
        return one + other
    return min(one, other) if name.endswith("_up") else max(one, other)


def _metric(family: tuple[str, str, str, list[tuple[str, Labels, float]]]) -> Metric:
    name, text, kind, samples = family
    metric = Metric(name, text, kind)
    metric.samples = [Sample(what, dict(labels), value) for what, labels, value in samples]
    return metric


class _Told(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Any:
        return self._families
