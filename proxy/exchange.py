"""The path of one request: read, understood, keyed, sent, told.

Owns nothing that outlives the request but the sketch of recent traffic. Whatever a client sends is answered
in OpenAI's shape or passed on; no exception's text ever reaches it.
"""

import asyncio
import re
from collections.abc import Coroutine
from random import Random
from time import monotonic
from typing import Any

import msgspec
import xxhash
from aiohttp import web

from proxy import bodies
from proxy.attempt import Work
from proxy.config import Settings
from proxy.connection import RELAYED_LAST, answer
from proxy.dispatch import Dispatcher
from proxy.errors import ClientGone, InternalError, ProxyError
from proxy.http1 import forwardable
from proxy.logs import RequestLog, logger
from proxy.metrics import Metrics
from proxy.pools import Pools
from proxy.prompt.parse import Endpoint, splice_model
from proxy.reader import Reader
from proxy.record import Record
from proxy.router import Router, RouteRequest
from proxy.traffic import OTHER, Seen

PRIORITIES = frozenset(("interactive", "standard", "batch"))
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_REQUEST_ID_FIELD = frozenset((b"x-request-id",))
_AUTHORIZATION = frozenset((b"authorization",))
_CODING = frozenset((b"content-encoding",))
_MODEL_FIELD = re.compile(rb'[; ]name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')


class _Named(msgspec.Struct):
    model: str | None = None


def _model_of(body: bytes, kind: str) -> str | None:
    """The model that a request names which is only passed on; None if it names none."""
    if kind == "multipart/form-data":
        field = _MODEL_FIELD.search(body)
        return None if field is None else field[1].decode("utf-8", "replace")
    if kind != "application/json":
        return None
    try:
        return msgspec.json.decode(body, type=_Named).model
    except (msgspec.MsgspecError, RecursionError):
        return None


def _renamed(body: bytes, model: str, kind: str) -> bytes:
    if kind != "multipart/form-data":
        return splice_model(body, model)
    field = _MODEL_FIELD.search(body)
    return body if field is None else body[: field.start(1)] + model.encode() + body[field.end(1) :]


class Exchanges:
    """Carries requests from clients to replicas."""

    def __init__(
        self,
        settings: Settings,
        pools: Pools,
        by_policy: Router,
        by_load: Router,
        dispatcher: Dispatcher,
        metrics: Metrics,
        log: RequestLog,
        reader: Reader,
    ) -> None:
        self._pools = pools
        self._by_policy = by_policy
        self._by_load = by_load
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._log = log
        self._reader = reader
        self._groups = frozenset(settings.groups)
        self._policy = settings.policy
        self._seen = Seen()
        self._ids = Random()
        self._body_limit = int(settings.limits.body_bytes)
        self._ask_usage = settings.stream_usage == "auto"
        self._own_auth: list[tuple[bytes, bytes]] = []
        self._drop = _REQUEST_ID_FIELD
        if settings.replace_auth and settings.upstream_api_key is not None:
            key = settings.upstream_api_key.get_secret_value().encode()
            self._own_auth = [(b"Authorization", b"Bearer " + key)]
            self._drop |= _AUTHORIZATION

    async def generate(self, request: web.BaseRequest, endpoint: Endpoint, target: str) -> web.StreamResponse:
        """Answer a request whose prompt decides where it goes."""
        record = self._record(request, endpoint.value)
        return await self._told(request, record, self._generate(request, endpoint, target, record))

    async def passthrough(self, request: web.BaseRequest, target: str) -> web.StreamResponse:
        """Answer a request that any replica of its model may take: the least loaded one does."""
        record = self._record(request, "passthrough")
        return await self._told(request, record, self._passthrough(request, target, record))

    def _record(self, request: web.BaseRequest, endpoint: str) -> Record:
        headers = request.headers
        given = headers.get("X-Request-Id")
        if given is None or _REQUEST_ID.fullmatch(given) is None:
            given = f"{self._ids.getrandbits(128):032x}"
        record = Record(given, endpoint, monotonic())
        priority = headers.get("X-Warmroute-Priority")
        if priority is not None and (known := priority.strip().lower()) in PRIORITIES:
            record.priority = known
        return record

    async def _told(
        self, request: web.BaseRequest, record: Record, work: Coroutine[Any, Any, web.StreamResponse]
    ) -> web.StreamResponse:
        """Do the work, turn what it raises into an answer, and tell the request once it has ended."""
        try:
            return await work
        except ProxyError as error:
            record.status, record.reason = error.status, error.code
            if record.outcome == "ok":
                record.outcome = "rejected"
            return self._answer(request, error, record)
        except ClientGone:
            record.outcome, record.status = "client_closed", record.status or 499
            return RELAYED_LAST
        except asyncio.CancelledError:
            record.outcome, record.status = "client_closed", record.status or 499
            raise
        except Exception:  # noqa: BLE001 - the last resort of a request
            logger.exception("request %s failed in the proxy", record.id)
            record.status, record.outcome, record.reason = 500, "rejected", "internal_error"
            return self._answer(request, InternalError("the proxy failed; its log says why"), record)
        finally:
            record.e2e = monotonic() - record.started
            self._metrics.book(record)
            self._log.write(record)

    def _answer(self, request: web.BaseRequest, error: ProxyError, record: Record) -> web.StreamResponse:
        response = answer(error)
        if not request.content.is_eof():  # what is left of the body is not worth reading
            response.force_close()
        response.headers["x-request-id"] = record.id
        if record.attempts:
            response.headers["x-warmroute-attempts"] = str(record.attempts)
        return response

    async def _generate(
        self, request: web.BaseRequest, endpoint: Endpoint, target: str, record: Record
    ) -> web.StreamResponse:
        body = await bodies.read(request, self._body_limit)
        coding = request.headers.get("Content-Encoding")
        plain = body if coding is None else bodies.inflate(body, coding, self._body_limit)
        if plain is None:  # a coding that is not read here: the engine may know it
            self._metrics.load_only.add(("content_encoding",))
            model = self._pools.resolve(None)
            record.model = model.name
            route = RouteRequest(model.name)
            return await self._send(request, record, route, self._by_load, target, body)
        parsed = await self._reader.parse(endpoint, plain)
        model = self._pools.resolve(parsed.model)
        record.model = model.name
        record.stream = parsed.stream
        drop = self._drop
        if model.alias:
            body = splice_model(plain, model.name)
            if coding is not None:  # the rewritten body goes as it is
                drop |= _CODING
        parsed.lora = model.lora
        route = RouteRequest(
            model.name,
            session=_session(request),
            sequences=parsed.sequences,
            stream=parsed.stream,
            cache_read=parsed.cache_read,
        )
        keying = None
        if parsed.prompt is None:
            self._metrics.load_only.add(("prompt",))
        elif model.pool.keyer is None:
            self._metrics.load_only.add(("tokenizer",))
        else:
            keying = await self._reader.key(endpoint, plain, parsed, model.pool)
            if keying is not None:
                route.keys = keying.keys
                route.tokens = keying.tokens
                route.block_tokens = model.pool.block_tokens(keying)
                route.exact = keying.counts_exactly
                route.affinity = keying.affinity
        record.group = self._group(request, route)
        record.prompt_tokens = route.tokens
        ask_usage = self._ask_usage and parsed.usage_splice and (coding is None or model.alias)
        return await self._send(
            request,
            record,
            route,
            self._by_policy,
            target,
            body,
            drop=drop,
            keying=keying,
            pool=model.pool,
            ask_usage=ask_usage,
        )

    async def _passthrough(self, request: web.BaseRequest, target: str, record: Record) -> web.StreamResponse:
        body = await bodies.read(request, self._body_limit)
        name = ""
        asked = _model_of(body, request.content_type)
        if asked is not None:
            model = self._pools.resolve(asked)
            name = record.model = model.name
            if model.alias:
                body = _renamed(body, name, request.content_type)
        return await self._send(request, record, RouteRequest(name), self._by_load, target, body)

    async def _send(
        self,
        request: web.BaseRequest,
        record: Record,
        route: RouteRequest,
        router: Router,
        target: str,
        body: bytes,
        *,
        drop: frozenset[bytes] | None = None,
        **more: Any,
    ) -> web.StreamResponse:
        record.policy = self._policy if router is self._by_policy else "least_load"
        fields = forwardable(request.raw_headers, self._drop if drop is None else drop)
        fields += self._own_auth
        fields.append((b"X-Request-Id", record.id.encode()))
        has_body = bool(body) or request.method in ("POST", "PUT", "PATCH")
        work = Work(
            request,
            record,
            route,
            router,
            target.encode("utf-8", "surrogateescape"),
            fields,
            body,
            has_body,
            **more,
        )
        return await self._dispatcher.send(work)

    def _group(self, request: web.BaseRequest, route: RouteRequest) -> str:
        classed = self._seen.group(route.keys, route.block_tokens)
        named = request.headers.get("X-Warmroute-Group")
        if named is None:
            return classed
        return named if named in self._groups else OTHER


def _session(request: web.BaseRequest) -> str | None:
    """The client's affinity key, as a hash: whatever bytes it is of, it is bounded and safe to compare."""
    given = request.headers.get("X-Session-Id")
    return xxhash.xxh3_64_hexdigest(given.encode("utf-8", "surrogateescape")) if given else None
