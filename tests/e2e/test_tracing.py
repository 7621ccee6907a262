"""Traces: `traceparent` kept or made, and spans told to a collector."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from proxy import traceparent
from tests.support import dialect
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import counts, idle, serving, total
from tests.support.upstream import Upstream

CHAT = "/v1/chat/completions"
GIVEN = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def sent(upstream: Upstream, proxy: Any, *headers: tuple[str, str], path: str = CHAT) -> bytes:
    """The traceparent that reaches the replica."""
    response = await exchange(proxy.port, "POST", path, dialect.chat(), headers)
    assert response.status == 200
    field = upstream.last.one("traceparent")
    assert field is not None
    return field


@pytest.mark.parametrize("field", [GIVEN, GIVEN[:-1] + b"0", b"cc" + GIVEN[2:] + b"-more"])
async def test_a_traceparent_is_kept(upstream, proxy_factory, field):
    proxy = await proxy_factory(upstream)
    assert await sent(upstream, proxy, ("TraceParent", field.decode()), ("tracestate", "a=1")) == field
    assert upstream.last.one("tracestate") == b"a=1"


async def test_one_is_made_where_there_is_none(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    made = {await sent(upstream, proxy) for _ in range(3)}
    assert len(made) == 3
    assert all(traceparent.is_valid(each) and not traceparent.is_sampled(each) for each in made)


@pytest.mark.parametrize("field", ["", "x", GIVEN.decode().upper(), "00-" + "0" * 32 + GIVEN.decode()[35:]])
async def test_what_is_none_begins_anew(upstream, proxy_factory, field):
    proxy = await proxy_factory(upstream)
    made = await sent(upstream, proxy, ("traceparent", field))
    assert traceparent.is_valid(made)
    assert made[3:35] != GIVEN[3:35]


async def test_what_is_passed_on_has_one_too(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    await exchange(proxy.port, "POST", "/tokenize", dialect.body(prompt="x"))
    assert traceparent.is_valid(upstream.last.one("traceparent"))


class Collector:
    """A collector that speaks OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.url = ""
        self.answer = 200

    async def take(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        told = trace_service_pb2.ExportTraceServiceRequest()
        told.ParseFromString(body)
        for resource in told.resource_spans:
            for scope in resource.scope_spans:
                self.spans |= {span.name: span for span in scope.spans}
        return web.Response(status=self.answer)


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    pytest.importorskip("opentelemetry.sdk")
    taker = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", taker.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    taker.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    yield taker
    await runner.cleanup()


@asynccontextmanager
async def traced(collector: Collector, upstream: Upstream, **settings: Any) -> AsyncIterator[Any]:
    tracing = {"endpoint": collector.url, **settings.pop("tracing", {})}
    async with serving(upstream, tracing=tracing, **settings) as proxy:
        yield proxy


async def stream(exchange: Any) -> None:
    await exchange.open_stream()
    await exchange.event(dialect.delta("a"))
    await asyncio.sleep(0.02)
    await exchange.event(dialect.delta("b"), dialect.usage_event(), dialect.DONE)
    await exchange.end_stream()


async def test_spans_of_a_request_are_told_below_its_parent(collector, upstream):
    upstream.behaviour = stream
    async with traced(collector, upstream) as proxy:
        body = dialect.chat(stream=True, stream_options={"include_usage": True})
        headers = [("traceparent", GIVEN.decode()), ("X-Request-Id", "mine")]
        assert (await exchange(proxy.port, "POST", CHAT, body, headers)).status == 200
        await idle(proxy)
    spans = collector.spans
    assert spans.keys() == {f"POST {CHAT}", "tokenise", "match", "upstream", "stream"}
    request = spans[f"POST {CHAT}"]
    assert {span.trace_id.hex() for span in spans.values()} == {GIVEN[3:35].decode()}
    assert request.parent_span_id.hex() == GIVEN[36:52].decode()
    assert spans["stream"].parent_span_id == spans["upstream"].span_id
    assert {spans[name].parent_span_id for name in ("tokenise", "match", "upstream")} == {request.span_id}
    at = {name: (span.start_time_unix_nano, span.end_time_unix_nano) for name, span in spans.items()}
    assert at[f"POST {CHAT}"][0] == at["tokenise"][0] < at["tokenise"][1] <= at["match"][0]
    assert at["match"][1] == at["upstream"][0] < at["stream"][0] < at["stream"][1]
    assert at["stream"][1] == at["upstream"][1] == at[f"POST {CHAT}"][1]
    assert at["stream"][1] - at["stream"][0] >= 15_000_000
    told = {each.key: each.value for each in request.attributes}
    assert told["warmroute.request_id"].string_value == "mine"
    assert told["http.response.status_code"].int_value == 200
    assert told["gen_ai.usage.cache_read.input_tokens"].int_value == 16
    assert "one word" not in str(spans)  # the prompt


async def test_what_the_replica_is_told_is_the_span_of_a_trace_that_begins_here(collector, upstream):
    async with traced(collector, upstream, tracing={"sample": 1.0}) as proxy:
        made = await sent(upstream, proxy)
        assert traceparent.is_sampled(made)
    request = collector.spans[f"POST {CHAT}"]
    assert (request.trace_id.hex(), request.span_id.hex()) == (made[3:35].decode(), made[36:52].decode())
    assert request.parent_span_id == b""
    assert "stream" not in collector.spans


@pytest.mark.parametrize("headers", [[], [("traceparent", GIVEN[:-1].decode() + "0")]])
async def test_who_is_not_sampled_is_not_told_of(collector, upstream, headers):
    async with traced(collector, upstream, tracing={"sample": 0.0}) as proxy:
        assert not traceparent.is_sampled(await sent(upstream, proxy, *headers))
        await counts(proxy, "warmroute_requests_total", 1)
        assert await total(proxy, "warmroute_traced_requests_total") == 0
    assert collector.spans == {}


async def test_a_failure_is_told_as_one(collector, upstream):
    async def die(exchange: Any) -> None:
        exchange.reset()

    upstream.behaviour = die
    async with traced(collector, upstream) as proxy:
        response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), [("traceparent", GIVEN.decode())])
        assert response.status == 502
        await counts(proxy, "warmroute_requests_total", 1)
    assert collector.spans[f"POST {CHAT}"].status.code == 2


async def test_what_was_refused_has_no_parts(collector, upstream):
    async with traced(collector, upstream) as proxy:
        body, headers = b'{"model": "nobody"}', [("traceparent", GIVEN.decode())]
        assert (await exchange(proxy.port, "POST", CHAT, body, headers)).status == 404
        await counts(proxy, "warmroute_requests_total", 1)
    assert collector.spans.keys() == {f"POST {CHAT}"}


async def test_too_many_at_once_are_counted_and_dropped(collector, upstream, monkeypatch):
    from proxy import tracing

    monkeypatch.setattr(tracing, "MOST", 1)
    async with traced(collector, upstream) as proxy:
        monkeypatch.setattr(proxy.ledger, "flush", lambda: None)
        for _ in range(3):
            await sent(upstream, proxy, ("traceparent", GIVEN.decode()))
        monkeypatch.undo()
        monkeypatch.setattr(tracing, "MOST", 1)
        await counts(proxy, "warmroute_traced_requests_total", 2, result="dropped")
        await counts(proxy, "warmroute_traced_requests_total", 1, result="told")


async def test_a_collector_that_is_away_harms_nothing(upstream, monkeypatch):
    pytest.importorskip("opentelemetry.sdk")
    from proxy import tracing

    monkeypatch.setattr(tracing, "END_SECONDS", 0.2)
    async with serving(upstream, tracing={"endpoint": "http://127.0.0.1:9", "sample": 1.0}) as proxy:
        await sent(upstream, proxy)
        await eventually(lambda: not proxy.in_flight)
