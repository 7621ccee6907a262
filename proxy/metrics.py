"""The Prometheus metrics: names and labels as promised, booked once a request from its record.

No label ever carries what a client made up. Counters first; ratios are the reader's. Children are looked up
once per combination of labels. Gauges of the fleet are read when they are scraped.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.fleet import Fleet
from proxy.index.truth import TrueIndex
from proxy.record import Record
from proxy.series import CounterFamily, Histogram, HistogramFamily

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
QUEUE_BUCKETS = (
    0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip

_ARM = ("model", "policy", "arm", "group")
_CLASS = (*_ARM, "priority")


class Metrics(Collector):
    """Every metric of this process."""

    def __init__(self, fleet: Fleet, index: TrueIndex) -> None:
        self.requests = CounterFamily(
            "warmroute_requests",
            "Requests answered, by the status sent.",
            *("model", "endpoint", "code", "priority", "group"),
        )
        self.prefix = CounterFamily(
            "warmroute_prefix_tokens",
            "Prompt tokens; those the best replica held; those the chosen replica held.",
            *(*_ARM, "stage"),
        )
        self.cached = CounterFamily(
            "warmroute_cached_tokens", "Prompt tokens that replicas reported from their cache.", *_ARM
        )
        self.cached_prompt = CounterFamily(
            "warmroute_cached_prompt_tokens",
            "Prompt tokens of exactly the requests whose reply reported cached tokens.",
            *_ARM,
        )
        self.decisions = CounterFamily(
            "warmroute_decisions", "Routing decisions.", "policy", "decision", "replica"
        )
        self.replica_cached = CounterFamily(
            "warmroute_replica_cached_tokens",
            "Prompt tokens that a replica reported from its cache.",
            "replica",
        )
        self.replica_cached_prompt = CounterFamily(
            "warmroute_replica_cached_prompt_tokens",
            "Prompt tokens of exactly the requests whose reply reported cached tokens, by replica.",
            "replica",
        )
        self.ttft = HistogramFamily(
            "warmroute_ttft_seconds",
            "From the request read to the first token of a stream.",
            TTFT_BUCKETS,
            *(*_CLASS, "decision"),
        )
        self.tpot = HistogramFamily(
            "warmroute_tpot_seconds",
            "Time per output token after the first, of a stream.",
            TPOT_BUCKETS,
            *_CLASS,
        )
        self.e2e = HistogramFamily(
            "warmroute_e2e_seconds", "From the request read to the end of its answer.", E2E_BUCKETS, *_CLASS
        )
        self.queue = HistogramFamily(
            "warmroute_queue_seconds", "Time waited in the proxy's queue.", QUEUE_BUCKETS, *_CLASS
        )
        self.overhead = HistogramFamily(
            "warmroute_overhead_seconds",
            "From the request read to its dispatch, without the queue.",
            OVERHEAD_BUCKETS,
            *_CLASS,
        )
        self.retries = CounterFamily("warmroute_retries", "Requests sent to another replica.", "reason")
        self.load_only = CounterFamily(
            "warmroute_load_only_requests",
            "Requests routed by load only, since their prompt could not be keyed.",
            "reason",
        )
        self.failures = CounterFamily(
            "warmroute_replica_failures", "Exchanges that a replica failed.", "replica", "reason"
        )
        self.over_budget = CounterFamily(
            "warmroute_tokenize_over_budget", "Prompts whose keys were not all there when the budget ended."
        )
        self.over_budget.add((), 0)
        self.tokenizer_mode: dict[str, str] = {}
        """Model to `exact`, `engine`, `bytes` or `loading`; kept by the pools."""
        self._classes: dict[tuple[str, ...], _Class] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._registry.register(_FleetGauges(fleet, index, self.tokenizer_mode))

    def register(self, collector: Collector) -> None:
        """Add the families of another collector to the page."""
        self._registry.register(collector)

    def book(self, record: Record) -> None:
        """Count a request that has ended."""
        self.requests.add((record.model, record.endpoint, str(record.status), record.priority, record.group))
        if not record.replica:
            return
        key = (record.model, record.policy, record.arm, record.group, record.priority)
        series = self._classes.get(key)
        if series is None:
            series = self._classes[key] = _Class(self, key)
        series.book(record)
        self.decisions.add((record.policy, record.decision, record.replica))
        if record.reported_cached is not None:
            self.replica_cached.add((record.replica,), record.reported_cached)
            if record.reported_prompt is not None:
                self.replica_cached_prompt.add((record.replica,), record.reported_prompt)

    def forget(self, replica: str) -> None:
        """Drop the series of a replica that is gone for good."""
        for family in (self.decisions, self.replica_cached, self.replica_cached_prompt, self.failures):
            family.forget("replica", replica)

    def collect(self) -> Iterable[Metric]:
        """Every family but the gauges of the fleet."""
        families = (
            value for value in vars(self).values() if isinstance(value, CounterFamily | HistogramFamily)
        )
        return [family.collect() for family in families]

    def families(self) -> Iterable[Metric]:
        """Every family there is, those of registered collectors too."""
        return self._registry.collect()

    def page(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)


class _Class:
    """The series of one combination of labels, looked up once."""

    __slots__ = ("_arm", "_e2e", "_key", "_metrics", "_overhead", "_queue", "_stages", "_tpot", "_ttft")

    def __init__(self, metrics: Metrics, key: tuple[str, ...]) -> None:
        self._metrics = metrics
        self._key = key
        self._arm = key[:4]
        self._stages = tuple((*self._arm, stage) for stage in ("prompt", "available", "routed"))
        self._ttft: dict[str, Histogram] = {}
        self._tpot = metrics.tpot.of(key)
        self._e2e = metrics.e2e.of(key)
        self._queue = metrics.queue.of(key)
        self._overhead = metrics.overhead.of(key)

    def book(self, record: Record) -> None:
        metrics = self._metrics
        if record.prompt_tokens:
            prompt, available, routed = self._stages
            metrics.prefix.add(prompt, record.prompt_tokens)
            metrics.prefix.add(available, record.available_tokens)
            metrics.prefix.add(routed, record.routed_tokens)
        if record.reported_cached is not None and record.reported_prompt is not None:
            metrics.cached.add(self._arm, record.reported_cached)
            metrics.cached_prompt.add(self._arm, record.reported_prompt)
        if record.ttft is not None:
            ttft = self._ttft.get(record.decision)
            if ttft is None:
                ttft = self._ttft[record.decision] = metrics.ttft.of((*self._key, record.decision))
            ttft.observe(record.ttft)
        if record.tpot is not None:
            self._tpot.observe(record.tpot)
        if record.overhead is not None:
            self._overhead.observe(record.overhead)
        self._queue.observe(record.queue)
        self._e2e.observe(record.e2e)


class _FleetGauges(Collector):
    """The fleet and the index as they are at the moment of a scrape."""

    def __init__(self, fleet: Fleet, index: TrueIndex, tokenizer_mode: dict[str, str]) -> None:
        self._fleet = fleet
        self._index = index
        self._tokenizer_mode = tokenizer_mode

    def collect(self) -> Iterable[Metric]:
        def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"warmroute_{name}", text, labels=labels)

        inflight = gauge("replica_inflight", "Sequences that this proxy has in flight.", "replica")
        queued = gauge(
            "replica_queued_tokens",
            "Uncached prompt tokens of this proxy's before their first token.",
            "replica",
        )
        up = gauge("replica_up", "1 while the replica takes traffic.", "replica")
        breaker = gauge(
            "replica_breaker_state",
            "0: closed; 1: half-open, one request is on trial; 2: open, others are preferred.",
            "replica",
        )
        suspect = gauge("replica_suspect", "1 from a missed probe until an answered one.", "replica")
        blocks = gauge("replica_cache_blocks", "Blocks that the index believes it holds.", "replica")
        rate = gauge("replica_prefill_tokens_per_second", "Learned prefill rate.", "replica")
        mode = gauge("replica_index_mode", "1 for the mode the replica's index is in.", "replica", "mode")
        for replica in self._fleet.replicas.values():
            name = [replica.name]
            load = replica.load
            inflight.add_metric(name, load.in_flight)
            queued.add_metric(name, load.queued_tokens)
            up.add_metric(name, int(replica.up))
            breaker.add_metric(name, replica.breaker.state)
            suspect.add_metric(name, int(replica.caution.suspect))
            blocks.add_metric(name, self._index.blocks(replica.name))
            rate.add_metric(name, replica.view.prefill_rate)
            modes = {self._tokenizer_mode.get(model) for model in replica.description.models}
            how: str = (
                "slots" if self._index.slots(replica.name) is not None else self._index.mode(replica.name)
            )
            mode.add_metric([*name, "bytes" if "bytes" in modes else how], 1)
        total = gauge("index_blocks", "Blocks in the index, each counted once per replica that holds it.")
        total.add_metric([], sum(self._index.blocks(name) for name in self._fleet.replicas))
        tokenizer = gauge("tokenizer_mode", "1 for how prompts of the model are tokenised.", "model", "mode")
        for model, how in self._tokenizer_mode.items():
            tokenizer.add_metric([model, how], 1)
        return [inflight, queued, up, breaker, suspect, blocks, rate, mode, total, tokenizer]
