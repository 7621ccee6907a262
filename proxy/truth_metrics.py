"""The metrics of what the index is told: by engines' events, and by other proxies through Redis."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.drift import Drift
from proxy.ingest import Ingest
from proxy.sharing import Sharing


class TruthMetrics(Collector):
    """Read when they are scraped."""

    def __init__(self, ingest: Ingest, sharing: Sharing, drift: Drift) -> None:
        self._drift = drift
        self._ingest = ingest
        self._sharing = sharing

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        return [*self._of_events(), *self._of_redis()]

    def _of_events(self) -> Iterable[Metric]:
        counts = self._ingest.counts
        events = CounterMetricFamily(
            "warmroute_index_events", "KV events of engines applied, by kind.", labels=["kind"]
        )
        for kind in ("Stored", "Removed", "Cleared"):
            events.add_metric([kind.lower()], counts.events[kind])
        yield events
        for name, text, value in (
            ("index_gaps", "Times that KV events were missing and had to be asked for again.", counts.gaps),
            ("index_gaps_lost", "Times that missing KV events could not be had any more.", counts.lost),
            ("index_events_skipped", "KV events that were not understood.", counts.skipped),
            ("index_blocks_unkeyed", "Blocks that engines stored and that have no key here.", counts.unkeyed),
            ("index_feeds_silent", "Times that a replica did not publish what it should.", counts.silent),
        ):
            yield CounterMetricFamily(f"warmroute_{name}", text, value)
        yield GaugeMetricFamily(
            "warmroute_index_lag_seconds", "From an engine's event to its being applied, lately.", counts.lag
        )

        drift = GaugeMetricFamily(
            "warmroute_index_drift_ratio",
            "Share of the tokens predicted or reported that was misjudged, in the last 200 requests.",
            labels=["replica"],
        )
        for replica, share in self._drift.shares().items():
            drift.add_metric([replica], share)
        yield drift

    def _of_redis(self) -> Iterable[Metric]:
        link, pools = self._sharing.link, self._sharing.pools().values()
        up = GaugeMetricFamily("warmroute_redis_up", "1 while Redis answers; absent without Redis.")
        lag = GaugeMetricFamily(
            "warmroute_redis_lag_seconds", "From a word told to its being readable by other proxies, lately."
        )
        if link is not None:
            up.add_metric([], int(link.up))
            lag.add_metric([], max((pool.lag for pool in pools), default=0.0))
        yield up
        yield lag
        counts = [pool.counts for pool in pools]
        for name, text, value in (
            ("published", "Placements told to other proxies.", sum(each.published for each in counts)),
            ("received", "Messages of other proxies.", sum(each.received for each in counts)),
            (
                "dropped",
                "Messages and batches of events that never reached Redis.",
                sum(each.publications_dropped + each.commits_dropped for each in counts),
            ),
            ("gaps", "Times that other proxies' messages were missed.", sum(each.gaps for each in counts)),
        ):
            yield CounterMetricFamily(f"warmroute_shared_{name}", text, value)
