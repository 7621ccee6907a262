"""The path of one request: read, understood, keyed, sent, told.

Owns nothing that outlives the request but the sketch of recent traffic. Whatever a client sends is answered
in OpenAI's shape or passed on; no exception's text ever reaches it.
"""

import asyncio
import re
from collections.abc import Callable
from random import Random
from time import monotonic, time

import msgspec
import xxhash
from aiohttp import web

from proxy import bodies, engine_priority, ranks, request_head, traceparent
from proxy.answers import RELAYED_LAST, answer
from proxy.attempt import Work
from proxy.callers import Caller
from proxy.config import Settings
from proxy.dispatch import Dispatcher
from proxy.errors import BadRequest, ClientGone, InternalError, NoReplica, ProxyError
from proxy.gate import Gate
from proxy.ledger import Ledger
from proxy.logs import logger
from proxy.metrics import Metrics
from proxy.model_pool import ModelPool
from proxy.pools import Pools
from proxy.prompt.keying import Keying
from proxy.prompt.parse import Endpoint, Parsed, parse, splice_model
from proxy.reader import INLINE_CHARACTERS, LARGE_BODY, Reader
from proxy.record import Record
from proxy.request import Request
from proxy.router import Router, RouteRequest
from proxy.traffic import OTHER, Seen

_WITH_BODY = ("POST", "PUT", "PATCH")
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_ID_FIELDS = frozenset((b"x-request-id", b"traceparent"))
_CODING_LINE = re.compile(rb"(?im)^content-encoding:[^\r\n]*\r\n")
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
        ledger: Ledger,
        reader: Reader,
        gate: Gate,
    ) -> None:
        self._pools = pools
        self._by_policy = by_policy
        self._by_load = by_load
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._ledger = ledger
        self._reader = reader
        self._gate = gate
        self._groups = {name.encode(): name for name in settings.groups}
        classes = settings.priority.classes
        self._ranks = {name.encode(): (rank, name) for rank, name in enumerate(classes)}
        self._most = {name: (rank, name) for rank, name in enumerate(classes)}
        self._usual = classes.index(settings.priority.default), settings.priority.default
        self.split: Callable[[RouteRequest], Router] | None = None
        """Whose router a request gets while there is a canary."""
        self.sample: Callable[[bytes, int], None] | None = None
        """Told the bodies of prompts that were understood, and how many tokens of each no cache had."""
        self._seen = Seen()
        self._ids = Random()
        self._body_limit = int(settings.limits.body_bytes)
        self._request_seconds = settings.timeouts.request
        self._ask_usage = settings.stream_usage == "auto"
        tracing = settings.tracing
        self._traces = tracing.endpoint is not None
        self._sampled = 0 if tracing.endpoint is None else round(tracing.sample * 2**64)
        """Share of the traces that begin here to be recorded, out of 2**64."""
        self._drop = _ID_FIELDS | gate.drop
        self._credentials = request_head.lines(gate.credentials)
        self.ending = False
        """Whether what is cancelled is so because the proxy ends."""
        self._orders = False

    def ordered(self, by_priority: bool) -> None:  # noqa: FBT001 - a callback of one argument
        """Whether some replica orders by priority: then every request's priority is the proxy's to write."""
        self._orders = by_priority
        header = engine_priority.HEADER
        self._drop = self._drop | header if by_priority else self._drop - header

    def steered(self, by_rank: bool) -> None:  # noqa: FBT001 - a callback of one argument
        """Whether some engine has ranks: then the rank is the proxy's to choose, whatever a client says."""
        self._drop = self._drop | ranks.HEADER if by_rank else self._drop - ranks.HEADER

    async def answer(self, request: Request, endpoint: Endpoint | None) -> web.StreamResponse:
        """Answer a request: routed by its prompt, or, without an endpoint, passed on by load.

        Whatever happens is turned into an answer, and told once it has ended.
        """
        gate = self._gate
        peer = None if gate.is_open else gate.peer(request.client.transport)
        lines, noted = request.fields.forwarded(self._drop, trusted=peer is not None and gate.trusts(peer))
        record = self._record(noted, endpoint)
        caller: Caller | None = None
        work: Work | None = None
        try:
            caller = gate.anybody if gate.is_open else gate.enter(peer, noted, record.started)
            asked = noted.get(b"x-warmroute-priority")
            rank, record.priority = self._rank(asked, caller)
            body = request.body
            if body is None or len(body) > self._body_limit:
                body = await bodies.whole(request, self._body_limit, self._request_seconds)
            has_body = bool(body) or request.method in _WITH_BODY
            work = Work(request, record, self._by_load, lines, body, has_body, rank=rank)
            work.caller, work.sees_cache = caller.name, caller.sees_cache
            if endpoint is None:
                self._pass_on(work, caller)
            else:
                await self._understand(work, endpoint, noted, caller)
            if self._traces:
                record.keyed = monotonic()
            work.lines += b"%bX-Request-Id: %b\r\ntraceparent: %b\r\n" % (
                self._credentials,
                record.id.encode(),
                record.traceparent,
            )
            record.policy, record.arm = work.router.name, work.router.arm
            return await self._dispatcher.send(work)
        except ProxyError as error:
            record.status, record.reason = error.status, error.code
            if record.outcome == "ok":
                record.outcome = "rejected"
            return self._refuse(request, error, record)
        except ClientGone:
            record.outcome, record.status = "client_closed", record.status or 499
            return RELAYED_LAST
        except asyncio.CancelledError:
            client = request.client.transport
            if self.ending and client is not None and not client.is_closing():  # it has got nothing yet
                record.status, record.outcome, record.reason = 503, "rejected", "stopping"
                return self._refuse(request, NoReplica("this proxy is stopping", retry_after=1.0), record)
            record.outcome = "broken" if self.ending else "client_closed"
            record.status = record.status or 499
            raise
        except Exception:  # noqa: BLE001 - the last resort of a request
            logger.exception("request %s failed in the proxy", record.id)
            record.status, record.outcome, record.reason = 500, "rejected", "internal_error"
            return self._refuse(request, InternalError("the proxy failed; its log says why"), record)
        finally:
            if caller is not None and work is not None:
                if not gate.is_open:
                    gate.leave(caller, record, work.charged, monotonic())
                if self.sample is not None and work.keying is not None:
                    self.sample(work.body, record.prompt_tokens - record.routed_tokens)
            record.e2e = monotonic() - record.started
            record.ended = time()
            self._ledger.add(record)

    def _record(self, noted: dict[bytes, bytes], endpoint: Endpoint | None) -> Record:
        given = noted.get(b"x-request-id")
        made = f"{self._ids.getrandbits(128):032x}"
        id_ = made
        if given is not None and _REQUEST_ID.fullmatch(given) is not None:
            id_ = given.decode("ascii")
        record = Record(id_, "passthrough" if endpoint is None else endpoint.value, monotonic())
        trace = noted.get(b"traceparent")
        if trace is not None and traceparent.is_valid(trace):
            record.traceparent, record.is_root = trace, False
        else:
            record.traceparent = traceparent.make(made, self._sampled)
        return record

    def _rank(self, named: bytes | None, caller: Caller) -> tuple[int, str]:
        """The class that a request asks for, or the usual one, and no higher than its key allows."""
        asked = self._usual if named is None else self._ranks.get(named.strip().lower(), self._usual)
        most = self._most[caller.most]
        return max(asked, most)

    def _refuse(self, request: Request, error: ProxyError, record: Record) -> web.StreamResponse:
        response = answer(error)
        if request.unread is not None:  # what is left of the body is not worth reading
            response.force_close()
        response.headers["x-request-id"] = record.id
        if record.attempts:
            response.headers["x-warmroute-attempts"] = str(record.attempts)
        return response

    async def _understand(
        self, work: Work, endpoint: Endpoint, noted: dict[bytes, bytes], caller: Caller
    ) -> None:
        """Read the prompt, and settle by it how the request is routed."""
        gate = self._gate
        record, route, body = work.record, work.route, work.body
        coding = noted.get(b"content-encoding")
        plain = body if coding is None else bodies.inflate(body, coding, self._body_limit)
        if plain is None:  # a coding that is not read here: the engine may know it
            if gate.salts is not None or caller.models is not None:
                raise BadRequest("this content coding is not read here, and this key's requests must be")
            self._metrics.load_only.add(("content_encoding",))
            record.model = route.model = self._pools.resolve(None).name
            return
        is_large = len(plain) >= LARGE_BODY
        parsed = await self._reader.parse(endpoint, plain) if is_large else parse(endpoint, plain)
        if caller.models is not None:
            gate.allow(caller, parsed.model, parsed.lora)
        model = self._pools.resolve(parsed.model)
        if parsed.model is None:
            gate.allow(caller, model.name)
        record.model = route.model = model.name
        record.stream = route.stream = parsed.stream
        if gate.salts is not None:
            work.salt = gate.salts.apply(parsed, caller.name)
        rewritten = model.alias or work.salt is not None
        if rewritten:
            work.body = splice_model(plain, model.name) if model.alias else plain
            if coding is not None:  # the rewritten body goes as it is
                work.lines = _CODING_LINE.sub(b"", work.lines)
        parsed.lora = model.lora or parsed.lora
        route.sequences = parsed.sequences
        route.cache_read = parsed.cache_read
        session = noted.get(b"x-session-id")
        if session:  # as a hash: whatever bytes it is of, it is bounded and safe to compare
            route.session = xxhash.xxh3_64_hexdigest(session)
        work.router, work.pool = self._by_policy, model.pool
        if self._orders and (coding is None or rewritten):
            work.endpoint = endpoint
        work.ask_usage = self._ask_usage and parsed.usage_splice and (coding is None or rewritten)
        pool = model.pool
        if is_large or pool.engine_tokens is not None:
            keying = await self._key_apart(endpoint, plain, parsed, pool)
        else:
            keying = self._begin(parsed, pool)
            if keying is not None and not keying.done:
                await self._reader.finish(keying)
        if keying is not None:
            work.keying = keying
            route.keys = keying.keys
            route.tokens = record.prompt_tokens = keying.tokens
            route.block_tokens = pool.block_tokens(keying)
            route.exact = keying.counts_exactly
            route.affinity = keying.affinity
        if self.split is not None:
            work.router = self.split(route)
        if not gate.is_open:
            gate.rates.prompt(caller, route.tokens, record.started)
            work.charged = route.tokens
        record.group = self._seen.group(route.keys, route.block_tokens)
        named = noted.get(b"x-warmroute-group")
        if named is not None:
            record.group = self._groups.get(named, OTHER)

    def _begin(self, parsed: Parsed, pool: ModelPool) -> Keying | None:
        """The keys of a prompt, all of them unless it is long; None, and counted, if it has none."""
        if parsed.prompt is None or pool.keyer is None:
            self._metrics.load_only.add(("prompt" if parsed.prompt is None else "tokenizer",))
            return None
        return self._checked(pool.keyer.begin(parsed))

    async def _key_apart(
        self, endpoint: Endpoint, body: bytes, parsed: Parsed, pool: ModelPool
    ) -> Keying | None:
        """The keys of a prompt that is not keyed on the event loop; None, and counted, if it has none."""
        if parsed.prompt is None or pool.keyer is None:
            return self._begin(parsed, pool)
        begun = await self._reader.begin(endpoint, body, parsed, pool)
        keying = None if begun is None else self._checked(begun)
        if keying is not None and not keying.done:
            await self._reader.finish(keying)
        return keying

    def _checked(self, keying: Keying) -> Keying | None:
        if not keying.is_understood:
            self._metrics.load_only.add(("template",))
            return None
        if not keying.done and keying.pending <= INLINE_CHARACTERS:
            keying.run()
        return keying

    def _pass_on(self, work: Work, caller: Caller) -> None:
        """Find the model that a request names which is only passed on."""
        kind = work.request.field(b"content-type").partition(b";")[0].strip().lower().decode("latin-1")
        asked = _model_of(work.body, kind)
        if asked is None:
            if work.body:
                self._gate.allow(caller, "")  # an engine may find one where none is found here
            return
        self._gate.allow(caller, asked)
        model = self._pools.resolve(asked)
        work.record.model = work.route.model = model.name
        if model.alias:
            work.body = _renamed(work.body, model.name, kind)
