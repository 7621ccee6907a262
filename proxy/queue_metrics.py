"""The metrics of the queue before routing: who waits, and who was turned away."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.admission import Admission


class QueueMetrics(Collector):
    """Read when they are scraped."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        length = GaugeMetricFamily(
            "warmroute_queue_length", "Requests that wait for room, by class.", labels=["priority"]
        )
        for name, waiting in self._admission.queued().items():
            length.add_metric([name], waiting)
        shed = CounterMetricFamily(
            "warmroute_shed",
            "Requests turned away: their class's queue was full, or they had waited too long.",
            labels=["priority", "reason"],
        )
        for labels, count in self._admission.shed.items():
            shed.add_metric(list(labels), count)
        return [length, shed]
