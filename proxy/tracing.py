"""OpenTelemetry spans of requests, made after the fact, from the times that a record has anyway.

    request   from being read to the end of its answer; the others are its children
      tokenise  understood, rendered, keyed
      queue     waited for room, if it did
      match     from there to its dispatch: index, policy, and earlier attempts, if there were any
      upstream  from its dispatch to the end
        stream  from the first token on

Only sampled requests get any: those whose `traceparent` says so, and of those that come without one a share.
The ids that the replica is told are those of the request's own span, where it was made here, so that an
engine's spans hang below it. At most `MOST` requests of a batch are told of, so that nothing waits for long;
exporting is done by the SDK's own thread, which drops what it cannot get rid of.

Never holds anything of a prompt or an answer. The package `opentelemetry` is imported when this is built.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from proxy import traceparent
from proxy.record import Record
from proxy.series import CounterFamily

MOST = 32
"""Requests of one batch."""
EXPORT_SECONDS = 5.0
"""That one export may take."""
END_SECONDS = 3.0
"""That the end of the process waits for what is left."""
_SECOND = 1_000_000_000
_FAILED = frozenset(("failed", "broken"))


class Tracing(Collector):
    """Makes the spans."""

    def __init__(self, endpoint: str, exporter: SpanExporter | None = None) -> None:
        """`endpoint`: of a collector that speaks OTLP over HTTP; `exporter`: instead of it."""
        self.requests = CounterFamily(
            "warmroute_traced_requests",
            "Sampled requests: told of, or dropped as too many at once.",
            "result",
        )
        for result in ("told", "dropped"):
            self.requests.add((result,), 0)
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "warmroute"}),
            sampler=ALWAYS_ON,  # who is sampled was decided when the request came
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter or OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
            )
        )
        self._tracer = self._provider.get_tracer("warmroute")

    def read(self, records: Sequence[Record]) -> None:
        """Take in requests that have ended."""
        told = 0
        for record in records:
            field = record.traceparent
            if field and traceparent.is_sampled(field):
                if told < MOST:
                    told += 1
                    self._tell(record)
                else:
                    self.requests.add(("dropped",))
        if told:
            self.requests.add(("told",), told)

    def close(self) -> None:
        """Export what is left, unless that takes too long."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(END_SECONDS)

    def collect(self) -> Iterable[Metric]:
        """The counter."""
        return [self.requests.collect()]

    def _tell(self, record: Record) -> None:
        trace_id, parent_id = traceparent.ids(record.traceparent)
        began = round((record.ended - record.e2e) * _SECOND)
        ended = began + round(record.e2e * _SECOND)
        context = Context()
        if record.is_root:
            self._ids.given = trace_id, parent_id
        else:
            remote = SpanContext(trace_id, parent_id, is_remote=True, trace_flags=TraceFlags.get_default())
            context = trace.set_span_in_context(NonRecordingSpan(remote), context)
        request = self._tracer.start_span(
            f"POST {record.endpoint}" if record.endpoint != "passthrough" else record.endpoint,
            context,
            SpanKind.SERVER,
            _attributes(record),
            start_time=began,
        )
        parents: dict[str, Span] = {"": request}
        for name, below, kind, start, end in _parts(record):
            span = self._tracer.start_span(
                name,
                trace.set_span_in_context(parents[below], Context()),
                kind,
                start_time=began + round(start * _SECOND),
            )
            parents[name] = span
            span.end(min(began + round(end * _SECOND), ended))
        if record.outcome in _FAILED or record.status >= 500:
            request.set_status(Status(StatusCode.ERROR, record.reason))
        request.end(ended)


class _Ids(IdGenerator):
    """Random ids, but for a span whose ids were told to a replica already."""

    def __init__(self) -> None:
        self.given: tuple[int, int] | None = None
        """Trace and span id of the next span."""
        self._random = RandomIdGenerator()

    def generate_span_id(self) -> int:
        if self.given is None:
            return int(self._random.generate_span_id())
        (_, span), self.given = self.given, None
        return span

    def generate_trace_id(self) -> int:
        return int(self._random.generate_trace_id()) if self.given is None else self.given[0]


def _parts(record: Record) -> Iterator[tuple[str, str, SpanKind, float, float]]:
    """Name, parent, kind, and seconds from the request being read to the part's start and end."""
    if not record.keyed:
        return
    keyed = record.keyed - record.started
    yield "tokenise", "", SpanKind.INTERNAL, 0.0, keyed
    if record.queue:
        yield "queue", "", SpanKind.INTERNAL, keyed, keyed + record.queue
    if record.overhead is None:
        return
    sent = record.overhead + record.queue
    yield "match", "", SpanKind.INTERNAL, min(keyed + record.queue, sent), sent
    yield "upstream", "", SpanKind.CLIENT, sent, record.e2e
    if record.ttft is not None:
        yield "stream", "upstream", SpanKind.INTERNAL, record.ttft, record.e2e


def _attributes(record: Record) -> Mapping[str, Any]:
    """What is told of a request: OpenTelemetry's names where it has them."""
    found = {
        "http.request.method": "POST",
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model,
        "gen_ai.usage.input_tokens": record.reported_prompt,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.reported_cached,
        "warmroute.request_id": record.id,
        "warmroute.endpoint": record.endpoint,
        "warmroute.replica": record.replica,
        "warmroute.policy": record.policy,
        "warmroute.arm": record.arm,
        "warmroute.decision": record.decision,
        "warmroute.group": record.group,
        "warmroute.priority": record.priority,
        "warmroute.outcome": record.outcome,
        "warmroute.attempts": record.attempts,
        "warmroute.prompt_tokens": record.prompt_tokens,
        "warmroute.available_tokens": record.available_tokens,
        "warmroute.predicted_cached_tokens": record.routed_tokens,
    }
    return {name: value for name, value in found.items() if value not in (None, "")}
