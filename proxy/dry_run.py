"""POST /admin/route: the decision on a request that is not sent.

The body is read, keyed and decided on as a client's is, by the same code but for the step of routing: nothing
is reserved, predicted or counted, no class is seen to have had a request, and the policy's own state and
randomness stay as they are. What stays behind is the prompt's place among the texts that are kept ready for
keying, within its bounds. Only where an engine tokenises is one asked, as for any request. The answer holds
names and figures, nothing of the prompt.
"""

from collections.abc import Callable, Sequence
from time import monotonic

import msgspec
import xxhash
from aiohttp import web

from policies import base, registry
from proxy import bodies
from proxy.admission import Admission
from proxy.concurrency import has_room
from proxy.config import Settings
from proxy.errors import BadRequest, NotFound
from proxy.fleet import Fleet
from proxy.gate import Gate
from proxy.index.truth import TrueIndex
from proxy.model_pool import ModelPool
from proxy.pools import Pools
from proxy.prompt.keying import Keying
from proxy.prompt.parse import Endpoint, Parsed
from proxy.reader import Reader
from proxy.reasons import Reasons
from proxy.replica import Replica
from proxy.router import Lease, Router, RouteRequest, classify

_FIELDS = {
    "messages": Endpoint.CHAT,
    "prompt": Endpoint.COMPLETIONS,
    "input": Endpoint.RESPONSES,
    "documents": Endpoint.RERANK,
    "text": Endpoint.GENERATE,
    "input_ids": Endpoint.GENERATE,
}
"""What a body is for, by a field that it has, where `endpoint` does not say."""


class DryRun:
    """Decides, and tells why."""

    def __init__(
        self,
        settings: Settings,
        router_of: Callable[[RouteRequest], Router],
        index: TrueIndex,
        pools: Pools,
        reader: Reader,
        gate: Gate,
        admission: Admission,
    ) -> None:
        """`router_of` tells who would route a request."""
        self._settings = settings
        self._router_of = router_of
        self._index = index
        self._pools = pools
        self._reader = reader
        self._gate = gate
        self._admission = admission

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a body as clients send it.

        In the query: `endpoint`, where the body does not tell it; `caller`, whose cache it would use where
        keys have caches of their own. X-Warmroute-Priority and X-Session-Id count as they do for clients.
        Raises ProxyError.
        """
        settings, query = self._settings, request.rel_url.query
        body = await bodies.read(request, int(settings.limits.body_bytes), settings.timeouts.request)
        coding = request.headers.get("Content-Encoding")
        if coding is not None:
            plain = bodies.inflate(body, coding.encode("ascii", "replace"), int(settings.limits.body_bytes))
            if plain is None:
                raise BadRequest(f"the content coding {coding[:40]!r} is not read here")
            body = plain
        endpoint = _endpoint(query.get("endpoint"), body)
        route, pool, keying = await self._understood(endpoint, body, query.get("caller"))
        session = request.headers.get("X-Session-Id")
        if session:
            route.session = xxhash.xxh3_64_hexdigest(session.encode("utf-8", "surrogateescape"))
        rank = self._rank(request.headers.get("X-Warmroute-Priority"))
        return web.Response(
            body=msgspec.json.encode(
                {
                    "endpoint": endpoint.value,
                    "model": route.model,
                    "priority": settings.priority.classes[rank],
                    "prompt": {
                        "tokens": route.tokens,
                        "counted": "exactly" if route.exact and keying is not None else "by estimate",
                        "blocks": len(route.keys),
                        "block_tokens": round(route.block_tokens, 2),
                        "keyed": "none" if keying is None else "whole" if keying.done else "in part",
                        "tokenizer": pool.mode,
                    },
                    **self._decided(route, rank),
                }
            ),
            content_type="application/json",
        )

    async def _understood(
        self, endpoint: Endpoint, body: bytes, caller: str | None
    ) -> tuple[RouteRequest, ModelPool, Keying | None]:
        """What routing is told of the request."""
        parsed = await self._reader.parse(endpoint, body)
        target = self._pools.resolve(parsed.model)
        if self._gate.salts is not None:
            if caller is None:
                raise BadRequest("each key has a cache of its own: say whose, ?caller=NAME", param="caller")
            self._gate.salts.apply(parsed, caller)
        parsed.lora = target.lora or parsed.lora
        route = RouteRequest(
            model=target.name,
            sequences=parsed.sequences,
            stream=parsed.stream,
            cache_read=parsed.cache_read,
        )
        keying = await self._keyed(endpoint, body, parsed, target.pool)
        if keying is not None:
            route.keys, route.tokens, route.affinity = keying.keys, keying.tokens, keying.affinity
            route.block_tokens = target.pool.block_tokens(keying)
            route.exact = keying.counts_exactly
        return route, target.pool, keying

    async def _keyed(self, endpoint: Endpoint, body: bytes, parsed: Parsed, pool: ModelPool) -> Keying | None:
        if parsed.prompt is None or pool.keyer is None:
            return None
        keying = await self._reader.begin(endpoint, body, parsed, pool)
        if keying is None or not keying.is_understood:
            return None
        if not keying.done:
            await self._reader.finish(keying)
        return keying

    def _rank(self, named: str | None) -> int:
        priority = self._settings.priority
        name = (named or "").strip().lower()
        return priority.classes.index(name if name in priority.classes else priority.default)

    def _decided(self, route: RouteRequest, rank: int) -> dict[str, object]:
        """The decision that `Router.route` would come to now, with all that it rests on."""
        router = self._router_of(route)
        fleet = router.fleet
        waits = self._waits(route, rank)
        asked, matched, everyone, decision = router.decide(route, rehearses=True)
        chosen = decision.replica
        lease = Lease(route, fleet.replicas[chosen.name], router.index)  # which takes nothing
        lease.matched = matched.get(chosen.name, 0)
        lease.available = max(matched.get(view.name, 0) for view in everyone)
        kind = classify(route, lease, by_session=decision.by_session)
        reasons = Reasons(
            policy=router.name,
            unit=registry.unit(router.name),
            tokens=route.tokens,
            matched={view.name: matched[view.name] for view in everyone if view.name in matched},
            chosen=chosen.name,
            decision=kind,
            compared=[view.name for view in decision.compared],
            scores=decision.scores,
            terms=base.terms(router.policy, asked, decision),
        )
        return {
            "policy": router.name,
            "arm": router.arm,
            "replica": chosen.name,
            "decision": kind,
            "predicted_cached_tokens": lease.matched,
            "wait": waits,
            **reasons.told(),
            "fleet": self._fleet(fleet, route, everyone),
        }

    def _waits(self, route: RouteRequest, rank: int) -> dict[str, object]:
        """Whether it would wait for room; settles what its class may take."""
        admission = self._admission
        mine = admission.classes[rank]
        seen = mine.seen
        route.allowed = admission.allowed(rank, monotonic(), route.model)
        mine.seen = seen  # it was not here
        route.urgency = mine.urgency
        passes = admission.passes(route.model, route.sequences, route.allowed)
        return {"would_wait": not passes, "waiting": admission.queued(), "at_most_seconds": mine.wait}

    def _fleet(
        self, fleet: Fleet, route: RouteRequest, candidates: Sequence[base.Replica]
    ) -> list[dict[str, object]]:
        """Every replica as the decision saw it, and why those that were none were no candidates."""
        confirmed = self._index.confirmed(route.keys)
        held = self._index.match(route.keys)
        rows: list[dict[str, object]] = []
        for name, replica in fleet.replicas.items():
            view = replica.view
            is_candidate = any(view is each for each in candidates)
            rows.append(
                {
                    "replica": name,
                    "candidate": is_candidate,
                    **({} if is_candidate else {"why_not": _why_not(replica, route.model)}),
                    "index_mode": self._index.mode(name),
                    "matched_blocks": held.get(name, 0),
                    "predicted_blocks": held.get(name, 0) - min(confirmed.get(name, 0), held.get(name, 0)),
                    "in_flight": view.in_flight,
                    "running": view.running,
                    "queued_tokens": view.queued_tokens,
                    "recent_tokens": round(view.recent_tokens),
                    "prefill_tokens_per_second": round(view.prefill_rate, 1),
                    "kv_usage": view.kv_usage,
                    "room": has_room(view, route.sequences, route.allowed)
                    and view.in_flight < view.soft_limit,
                }
            )
        return rows


def _endpoint(named: str | None, body: bytes) -> Endpoint:
    """What a body is for. Raises BadRequest, NotFound."""
    if named is not None:
        try:
            return Endpoint(named)
        except ValueError:
            known = ", ".join(each.value for each in Endpoint)
            raise NotFound(f"no such endpoint is routed; there are {known}", param="endpoint") from None
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fields = {}
    found = (endpoint for field, endpoint in _FIELDS.items() if field in fields)
    return next(found, Endpoint.CHAT)  # whose reader says what is wrong


def _why_not(replica: Replica, model: str) -> str:
    if model not in replica.description.models:
        return f"it does not serve {model}"
    if not replica.up:
        return "it is down"
    if replica.held:
        return ", ".join(sorted(replica.held))
    if replica.breaker.state:
        return f"its breaker is {replica.breaker.state.name.lower()}"
    return "it serves the other side of a canary"
