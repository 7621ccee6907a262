"""The Prometheus metrics: names and labels as promised, booked once a request from its record.

No label ever carries what a client made up. Counters first; ratios are the reader's. Children are looked up
once per combination of labels. Gauges of the fleet are read when they are scraped.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.fleet import Fleet
from proxy.index.base import PrefixIndex
from proxy.record import Record

# vLLM's own buckets, so that quantiles can be laid side by side with the engines'.
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TPOT_BUCKETS = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
E2E_BUCKETS = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
    240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
OVERHEAD_BUCKETS = (
    0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip

_ARM = ("model", "policy", "arm", "group")
_CLASS = (*_ARM, "priority")


class Metrics:
    """Every metric of this process."""

    def __init__(self, fleet: Fleet, index: PrefixIndex) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter(
            "warmroute_requests",
            "Requests answered, by the status sent.",
            ("model", "endpoint", "code", "priority", "group"),
            registry=registry,
        )
        self._prefix = Counter(
            "warmroute_prefix_tokens",
            "Prompt tokens; those the best replica held; those the chosen replica held.",
            (*_ARM, "stage"),
            registry=registry,
        )
        self._cached = Counter(
            "warmroute_cached_tokens",
            "Prompt tokens that replicas reported from their cache.",
            _ARM,
            registry=registry,
        )
        self._cached_prompt = Counter(
            "warmroute_cached_prompt_tokens",
            "Prompt tokens of exactly the requests whose reply reported cached tokens.",
            _ARM,
            registry=registry,
        )
        self._decisions = Counter(
            "warmroute_decisions",
            "Routing decisions.",
            ("policy", "decision", "replica"),
            registry=registry,
        )
        self._replica_cached = Counter(
            "warmroute_replica_cached_tokens",
            "Prompt tokens that a replica reported from its cache.",
            ("replica",),
            registry=registry,
        )
        self._ttft = Histogram(
            "warmroute_ttft_seconds",
            "From the request read to the first token of a stream.",
            (*_CLASS, "decision"),
            buckets=TTFT_BUCKETS,
            registry=registry,
        )
        self._tpot = Histogram(
            "warmroute_tpot_seconds",
            "Time per output token after the first, of a stream.",
            _CLASS,
            buckets=TPOT_BUCKETS,
            registry=registry,
        )
        self._e2e = Histogram(
            "warmroute_e2e_seconds",
            "From the request read to the end of its answer.",
            _CLASS,
            buckets=E2E_BUCKETS,
            registry=registry,
        )
        self._queue = Histogram(
            "warmroute_queue_seconds",
            "Time waited in the proxy's queue.",
            _CLASS,
            buckets=OVERHEAD_BUCKETS,
            registry=registry,
        )
        self._overhead = Histogram(
            "warmroute_overhead_seconds",
            "From the request read to its dispatch, without the queue.",
            _CLASS,
            buckets=OVERHEAD_BUCKETS,
            registry=registry,
        )
        self.retries = Counter(
            "warmroute_retries", "Requests sent to another replica.", ("reason",), registry=registry
        )
        self.load_only = Counter(
            "warmroute_load_only_requests",
            "Requests routed by load only, since their prompt could not be keyed.",
            ("reason",),
            registry=registry,
        )
        self.failures = Counter(
            "warmroute_replica_failures",
            "Exchanges that a replica failed.",
            ("replica", "reason"),
            registry=registry,
        )
        self.over_budget = Counter(
            "warmroute_tokenize_over_budget",
            "Prompts whose keys were not all there when the budget ended.",
            registry=registry,
        )
        self.tokenizer_mode: dict[str, str] = {}
        """Model to `exact`, `engine`, `bytes` or `loading`; kept by the pools."""
        self._classes: dict[tuple[str, ...], _Class] = {}
        registry.register(_FleetGauges(fleet, index, self.tokenizer_mode))

    def book(self, record: Record) -> None:
        """Count a request that has ended."""
        self._requests.labels(
            record.model, record.endpoint, str(record.status), record.priority, record.group
        ).inc()
        if not record.replica:
            return
        key = (record.model, record.policy, record.arm, record.group, record.priority)
        series = self._classes.get(key)
        if series is None:
            series = self._classes[key] = _Class(self, key)
        series.book(record)
        self._decisions.labels(record.policy, record.decision, record.replica).inc()
        if record.reported_cached is not None:
            self._replica_cached.labels(record.replica).inc(record.reported_cached)

    def forget(self, replica: str) -> None:
        """Drop the series of a replica that is gone for good."""
        for metric in (self._decisions, self._replica_cached, self.failures):
            metric.remove_by_labels({"replica": replica})

    def page(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self.registry)


class _Class:
    """The children of one combination of labels."""

    def __init__(self, metrics: Metrics, key: tuple[str, ...]) -> None:
        arm = key[:4]
        prefix = metrics._prefix  # noqa: SLF001 - the two classes are one
        self._prompt, self._available, self._routed = (
            prefix.labels(*arm, stage) for stage in ("prompt", "available", "routed")
        )
        self._cached = metrics._cached.labels(*arm)  # noqa: SLF001
        self._cached_prompt = metrics._cached_prompt.labels(*arm)  # noqa: SLF001
        self._ttft_family, self._key = metrics._ttft, key  # noqa: SLF001
        self._ttft: dict[str, Histogram] = {}
        self._tpot = metrics._tpot.labels(*key)  # noqa: SLF001
        self._e2e = metrics._e2e.labels(*key)  # noqa: SLF001
        self._queue = metrics._queue.labels(*key)  # noqa: SLF001
        self._overhead = metrics._overhead.labels(*key)  # noqa: SLF001

    def book(self, record: Record) -> None:
        if record.prompt_tokens:
            self._prompt.inc(record.prompt_tokens)
            self._available.inc(record.available_tokens)
            self._routed.inc(record.routed_tokens)
        if record.reported_cached is not None and record.reported_prompt is not None:
            self._cached.inc(record.reported_cached)
            self._cached_prompt.inc(record.reported_prompt)
        if record.ttft is not None:
            ttft = self._ttft.get(record.decision)
            if ttft is None:
                ttft = self._ttft[record.decision] = self._ttft_family.labels(*self._key, record.decision)
            ttft.observe(record.ttft)
        if record.tpot is not None:
            self._tpot.observe(record.tpot)
        if record.overhead is not None:
            self._overhead.observe(record.overhead)
        self._queue.observe(record.queue)
        self._e2e.observe(record.e2e)


class _FleetGauges(Collector):
    """The fleet and the index as they are at the moment of a scrape."""

    def __init__(self, fleet: Fleet, index: PrefixIndex, tokenizer_mode: dict[str, str]) -> None:
        self._fleet = fleet
        self._index = index
        self._tokenizer_mode = tokenizer_mode

    def collect(self) -> Iterable[Metric]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"warmroute_{name}", text, labels=labels)

        inflight = gauge("replica_inflight", "Sequences in flight.", "replica")
        queued = gauge("replica_queued_tokens", "Uncached prompt tokens before their first token.", "replica")
        up = gauge("replica_up", "1 while the replica takes traffic.", "replica")
        blocks = gauge("replica_cache_blocks", "Blocks that the index believes it holds.", "replica")
        rate = gauge("replica_prefill_tokens_per_second", "Learned prefill rate.", "replica")
        mode = gauge("replica_index_mode", "1 for the mode the replica's index is in.", "replica", "mode")
        for replica in self._fleet.replicas.values():
            name = [replica.name]
            inflight.add_metric(name, replica.view.in_flight)
            queued.add_metric(name, replica.view.queued_tokens)
            up.add_metric(name, int(replica.up))
            blocks.add_metric(name, self._index.blocks(replica.name))
            rate.add_metric(name, replica.view.prefill_rate)
            modes = {self._tokenizer_mode.get(model) for model in replica.description.models}
            mode.add_metric([*name, "bytes" if "bytes" in modes else "learned"], 1)
        total = gauge("index_blocks", "Blocks in the index, each counted once per replica that holds it.")
        total.add_metric([], sum(self._index.blocks(name) for name in self._fleet.replicas))
        tokenizer = gauge("tokenizer_mode", "1 for how prompts of the model are tokenised.", "model", "mode")
        for model, how in self._tokenizer_mode.items():
            tokenizer.add_metric([model, how], 1)
        return [inflight, queued, up, blocks, rate, mode, total, tokenizer]
