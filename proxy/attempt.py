"""One request at one replica: sent, relayed, and whether another replica may be asked.

A lease is closed exactly once, by the attempt that holds it, however the attempt ends. A request is sent
again only while not a byte of an answer has come, and:

1. the connection was refused or could not be opened: nothing was sent;
2. the replica answered 503 or 429: it did not take the request;
3. a reused connection died at once: the replica had closed it before the request came;
4. a connection died, and the replica now refuses new ones: it is gone, and with it what it may have begun.
   A live replica may be generating, so there the client is told. Once only: a request that kills whoever
   takes it must not kill them all.

Where nothing can have been begun, in 1 and 4, it costs nothing of the budget for retries: a replica that dies
under load loses nobody, and as each death is noticed once and rescues each request once, no storm comes of
it. A timeout is never followed by another attempt.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from aiohttp import web

from proxy import http1, request_head
from proxy.admission import Admission
from proxy.answers import RELAYED, RELAYED_LAST
from proxy.config import Settings
from proxy.drift import Drift
from proxy.engine_priority import EnginePriority
from proxy.errors import NoReplica, ProxyError, UpstreamFailed, UpstreamTimeout
from proxy.fleet import Fleet
from proxy.metrics import Metrics
from proxy.model_pool import ModelPool
from proxy.pools import Pools
from proxy.prompt.keying import Keying
from proxy.prompt.parse import Endpoint, splice_stream_usage
from proxy.prompt.splice import splice_priority
from proxy.record import Record
from proxy.relay import Ending, Limits, Relay
from proxy.replica import Replica
from proxy.request import Request
from proxy.retries import RetryBudget
from proxy.router import Lease, Router, RouteRequest
from proxy.salts import Salt
from proxy.sse import Tap
from proxy.upstream import Pool, UpstreamConnection

STALE_SECONDS = 1.0
"""A reused connection that dies this soon without a byte had been closed by the replica all along."""
LAST_BREATH = 0.05
"""Seconds in which a process that was killed closes what it had open: its listener perhaps the last."""
BACKPRESSURE = frozenset((429, 503))
NOT_ITS_FAULT = frozenset((501, 503, 505))
"""Statuses of 500 and above that say nothing bad of the replica."""
USAGE_ENGINES = frozenset(("vllm", "sglang"))
"""Those that tell of a stream's cached tokens only if they are asked to; llama.cpp tells in every answer."""


@dataclass(slots=True)
class Work:
    """A request that is ready to be sent."""

    request: Request
    record: Record
    router: Router
    lines: bytes
    """The fields that replicas get, as they are written."""
    body: bytes
    has_body: bool
    route: RouteRequest = field(default_factory=RouteRequest)
    keying: Keying | None = None
    pool: ModelPool | None = None
    ask_usage: bool = False
    """Whether the stream may be asked for usage on the client's behalf."""
    endpoint: Endpoint | None = None
    """None if the body is not to be touched for the sake of an engine's priority."""
    rank: int = 0
    """Of its class: 0 goes first."""
    rescued: bool = False
    """Whether it was at a replica that died."""
    resent: bool = False
    """Whether a kept connection had been closed under it: then it is sent on fresh ones only."""
    caller: str = ""
    """Who shares a class fairly with others; empty: the client's address."""
    sees_cache: bool = True
    """Whether the caller is told what is cached."""
    salt: Salt | None = None
    """Of the caller's own cache."""
    charged: float = 0.0
    """Tokens that the caller was charged when the request was let in."""


class Hop:
    """What all attempts share: the way to the replicas, and what retrying may cost."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        upstreams: dict[Replica, Pool],
        metrics: Metrics,
        pools: Pools,
        admission: Admission,
        *,
        unreachable: Callable[[Replica, OSError], None],
        served: Callable[[str, int], None],
        resync: Callable[[str, str], None],
    ) -> None:
        self.fleet = fleet
        self.upstreams = upstreams
        self.metrics = metrics
        self.pools = pools
        self.unreachable = unreachable
        """Told of a replica to which no connection could be opened, and why."""
        self.served = served
        """Told the name of a replica that has answered, and how many tokens it computed for that."""
        self.resync = resync
        """Told the name of a replica whose index does not agree with what it reports, and how far."""
        self.drift = Drift()
        self.limits = Limits(
            settings.timeouts.first_byte, settings.timeouts.idle, int(settings.limits.header_bytes)
        )
        self.budget = RetryBudget(settings.limits.retry_budget)
        self.admission = admission
        self.priority = EnginePriority(len(settings.priority.classes))
        self.loop = asyncio.get_running_loop()  # asked once: it costs a system call each time
        self.relays: set[Relay] = set()
        self._attempts = settings.limits.attempts

    def may_retry(self, work: Work, tried: set[str], *, free: bool = False) -> bool:
        """Whether another replica may have the request. Takes from the budget unless `free`."""
        if work.record.attempts >= self._attempts:
            return False
        if all(view.name in tried for view in self.fleet.candidates(work.route.model)):
            return False
        return free or self.budget.take(monotonic())


class Attempt:
    """One request at one replica."""

    def __init__(self, hop: Hop, work: Work, lease: Lease, tried: set[str]) -> None:
        self._hop = hop
        self._work = work
        self._lease = lease
        self._replica: Replica = lease.replica
        self.pool = hop.upstreams[lease.replica]
        self._tried = tried
        self._relay: Relay | None = None
        self._asked_usage = False
        self._answered = False
        tried.add(lease.replica.name)
        record = work.record
        record.attempts += 1
        record.reason = ""
        record.replica = lease.replica.name
        record.lease = lease
        record.decision = lease.decision
        record.available_tokens = lease.available
        record.routed_tokens = lease.matched

    async def connect(self) -> UpstreamConnection | ProxyError:
        """A new connection, or why another replica should be asked. Raises ProxyError if none should."""
        try:
            return await self.pool.connect()
        except OSError as error:
            return self._unreachable(error)

    async def failed(self, ending: Ending) -> web.StreamResponse | ProxyError:
        """What an answer that did not complete ends in, as `connect` gives it."""
        if ending is Ending.REFUSED:
            self._lease.reservation.pressed()
            return NoReplica(f"replica {self._replica.name} is overloaded", retry_after=1.0)
        assert self._relay is not None
        return await self._failed(ending, self._relay, self.pool)

    def close(self) -> None:
        """Leave nothing behind: no connection that computes for nobody, no load, no relay that is watched."""
        relay, answered = self._relay, self._answered
        reported = held = None
        try:
            if relay is not None:
                relay.abandon()
                self._hop.relays.discard(relay)
                tap = relay.tap
                if tap is not None and answered:
                    answered = not tap.error
                    if answered:
                        reported = tap.usage.cached
                        held = self._learn(tap)
        finally:  # whatever fails, the load goes back
            self._lease.close(answered=answered, reported=reported, held=held)

    def start(self, connection: UpstreamConnection) -> Relay:
        """Send the request; the relay's `done` tells how it ends."""
        hop, work = self._hop, self._work
        record, request, body = work.record, work.request, work.body
        if work.salt is not None:
            body = work.salt.into(body, self._replica.description.engine)
        if work.endpoint is not None:
            sequences = work.route.sequences
            body = splice_priority(
                body, hop.priority.value(self._replica.name, work.endpoint, work.rank, sequences)
            )
        if work.ask_usage and self._replica.reports_cached is not False:
            self._asked_usage = self._replica.description.engine in USAGE_ENGINES
            if self._asked_usage:
                body = splice_stream_usage(body)
        head = request_head.request_head(
            request.method.encode(),
            request.target,
            self.pool.host,
            work.lines + self._replica.lines,
            len(body) if work.has_body else None,
        )
        relay = self._relay = Relay(
            connection,
            request.client,
            hop.limits,
            hop.loop,
            respond=self._respond,
            on_first_token=self._lease.first_token,
            is_head=request.method == "HEAD",
            http10=request.http10,
            hide_usage=self._asked_usage,
            client_keep_alive=request.keep_alive,
        )
        hop.relays.add(relay)
        record.overhead = monotonic() - record.started - record.queue
        relay.start(head, body)
        return relay

    def _respond(self, head: http1.ResponseHead) -> list[bytes] | None:
        """The head to send to the client, without framing; None to ask another replica instead."""
        if head.status in BACKPRESSURE and self._hop.may_retry(self._work, self._tried):
            return None
        record = self._work.record
        record.status = head.status
        self._answered = head.status == web.HTTPOk.status_code
        lines = [head.lines]
        lines.append(
            (
                f"x-request-id: {record.id}\r\n"
                f"x-warmroute-policy: {record.policy}\r\nx-warmroute-arm: {record.arm}\r\n"
                f"x-warmroute-prompt-tokens: {record.prompt_tokens}\r\n"
                f"x-warmroute-queue-ms: {record.queue * 1000:.3f}\r\n"
                f"x-warmroute-overhead-ms: {(record.overhead or 0.0) * 1000:.3f}\r\n"
                f"x-warmroute-attempts: {record.attempts}\r\n"
            ).encode("ascii")
        )
        if self._work.sees_cache:  # these would let one tenant probe another's prompts
            lines.append(
                (
                    f"x-warmroute-replica: {record.replica}\r\n"
                    f"x-warmroute-decision: {record.decision}\r\n"
                    f"x-warmroute-predicted-cached-tokens: {record.routed_tokens}\r\n"
                ).encode("ascii")
            )
        return lines

    def complete(self, relay: Relay) -> web.StreamResponse:
        """The answer that was relayed to its end."""
        record, tap = self._work.record, relay.tap
        if tap is not None:
            if tap.error and record.status < web.HTTPBadRequest.status_code:
                record.outcome, record.reason = "failed", "error_in_stream"
            if tap.first is not None and tap.last is not None:
                record.ttft = tap.first - record.started
                tokens = tap.usage.completion or tap.events
                if tokens > 1:
                    record.tpot = (tap.last - tap.first) / (tokens - 1)
            record.output_tokens = tap.usage.completion
        status = record.status
        if status < web.HTTPBadRequest.status_code:
            if record.outcome == "ok":  # an error within a stream is the request's, or nobody knows whose
                self._lease.reservation.judge(healthy=True)
        elif status >= web.HTTPInternalServerError.status_code:
            record.outcome, record.reason = "failed", "status"
            if status not in NOT_ITS_FAULT:
                self._lease.reservation.judge(healthy=False)
        if status in BACKPRESSURE:
            self._lease.reservation.pressed()
        return RELAYED if relay.client_keep_alive else RELAYED_LAST

    async def _failed(self, ending: Ending, relay: Relay, pool: Pool) -> web.StreamResponse | ProxyError:
        record, name = self._work.record, self._replica.name
        record.reason = ending.value
        if ending is Ending.CLIENT_STUCK:
            record.outcome = "client_closed"
            return self._cut()
        self._hop.metrics.failures.add((name, ending.value))
        if ending is not Ending.LOST:  # that one may only have been an old connection
            self._lease.reservation.judge(healthy=False)
        record.outcome = "broken" if relay.sent else "failed"
        if relay.sent:
            return self._cut()
        if ending is Ending.LOST:
            error = UpstreamFailed(f"replica {name} closed the connection before it answered")
            if not await self._can_resend(relay, pool):
                raise error
            record.outcome = "ok"
            return error
        if ending is Ending.MALFORMED:
            raise UpstreamFailed(f"replica {name} sent an answer that is not HTTP/1.1, or too large a head")
        if ending is Ending.BROKEN:
            raise UpstreamFailed(f"replica {name} broke off its answer")
        raise UpstreamTimeout(f"replica {name} was silent for too long; see WARMROUTE_TIMEOUTS__*")

    async def _can_resend(self, relay: Relay, pool: Pool) -> bool:
        hop, work = self._hop, self._work
        if not relay.fresh and relay.age() < STALE_SECONDS:
            again, work.resent = not work.resent, True
            if hop.may_retry(work, self._tried, free=again):  # once: nobody failed, so it costs nothing
                return True
            alone = all(view.name in self._tried for view in hop.fleet.candidates(work.route.model))
            if alone and again:  # a fleet of one: the request never reached it
                self._tried.discard(self._replica.name)
                return True
        else:
            self._lease.reservation.judge(healthy=False)
        if work.rescued:
            return False
        try:
            connection = await pool.connect()
            await asyncio.sleep(LAST_BREATH)
            if connection.transport.is_closing():
                connection = await pool.connect()
        except ConnectionRefusedError as error:
            hop.unreachable(self._replica, error)
            work.rescued = True
            return hop.may_retry(work, self._tried, free=True)
        except OSError:
            return False
        pool.keep(connection)
        return False

    def _unreachable(self, error: OSError) -> ProxyError:
        """Nothing was sent. Raises if no other replica can be asked."""
        hop, name = self._hop, self._replica.name
        record = self._work.record
        reason = "refused" if isinstance(error, ConnectionRefusedError) else "connect"
        hop.metrics.failures.add((name, reason))
        self._lease.reservation.judge(healthy=False)
        hop.unreachable(self._replica, error)
        failure = UpstreamFailed(f"replica {name} cannot be reached ({type(error).__name__})")
        if hop.may_retry(self._work, self._tried, free=True):
            return failure
        record.outcome, record.reason = "failed", reason
        raise failure

    def _cut(self) -> web.StreamResponse:
        """Part of an answer was sent and the rest will not come: the client must not take it for whole."""
        self._work.request.client.reset()
        return RELAYED_LAST

    def _judge(self, lease: Lease, reported: int, tolerance: int) -> None:
        drift, name = self._hop.drift, self._replica.name
        if drift.observe(name, lease.matched, reported, tolerance):
            far = f"of the tokens predicted or reported lately, {drift.share(name):.0%} were misjudged"
            self._hop.resync(name, far)

    def _learn(self, tap: Tap) -> array[int] | None:
        """Let pool and replica learn from an answer; the keys of prompt and answer together, if known."""
        work, record, usage = self._work, self._work.record, tap.usage
        record.reported_prompt, record.reported_cached = usage.prompt, usage.cached
        pool = work.pool
        if self._replica.gone or pool is None or work.keying is None:
            return None
        if usage.prompt is not None:
            if pool.learn(work.keying, usage.prompt, work.route.sequences):
                self._hop.pools.give_up_tokenizer(pool)
            self._replica.saw_usage(cached=usage.cached is not None, denied=not usage.tells_cached)
            computed = usage.prompt - (usage.cached or 0) + (usage.completion or 0)
            self._hop.served(self._replica.name, computed)
            if usage.cached is not None and self._lease.foretold:
                self._judge(self._lease, usage.cached, pool.block_size)
        return pool.extend(work.keying, tap) if work.route.sequences == 1 else None
