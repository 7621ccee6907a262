"""Lets a request in, sends it to a replica, and to another one where that is safe and affordable.

Between `router.route` and the bytes leaving for the replica there is no await when a connection is idle; one
that had to wait is routed, and counted, at the moment it is let in. While there is room nothing here waits.
"""

import asyncio
from time import monotonic

from aiohttp import web

from proxy.attempt import Attempt, Hop, Work
from proxy.concurrency import Allowance
from proxy.errors import NoReplica, ProxyError
from proxy.relay import Ending
from proxy.router import Lease
from proxy.upstream import UpstreamConnection


class Dispatcher:
    """Attempts, one after the other."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def send(self, work: Work) -> web.StreamResponse:
        """Relay the request's answer. Raises ProxyError if the client has been sent nothing of one."""
        hop, route = self._hop, work.route
        admission, started = hop.admission, work.record.started
        hop.budget.request(started)
        tried: set[str] = set()
        failure: ProxyError | None = None
        self._open += 1
        if self._open == 1:
            self._idle.clear()
        try:
            route.allowed = admission.allowed(work.rank, started, route.model)
            route.urgency = admission.classes[work.rank].urgency
            lease: Lease | None = None
            if not admission.passes(route.model, route.sequences, route.allowed):
                lease = await self._wait(work)
            while True:
                if lease is None:
                    try:
                        lease = work.router.route(route, exclude=tried)
                    except NoReplica as error:
                        raise failure or error from None
                if admission.reserve.watched:
                    uncached = lease.reservation.uncached * route.sequences
                    admission.sent(route.model, work.rank, uncached, route.sequences)
                attempt, lease = Attempt(hop, work, lease, tried), None
                try:
                    result = (None if work.resent else attempt.pool.take()) or await attempt.connect()
                    if isinstance(result, UpstreamConnection):
                        relay = attempt.start(result)
                        ending = await relay.done
                        if ending is Ending.COMPLETE:
                            return attempt.complete(relay)
                        answer = await attempt.failed(ending)
                        if isinstance(answer, web.StreamResponse):
                            return answer
                        result = answer
                finally:
                    attempt.close()
                failure = result
                hop.metrics.retries.add((failure.code,))
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _wait(self, work: Work) -> Lease:
        """Wait for room, and take it the moment it is given. Raises ProxyError if it is not given in time."""
        hop, route, record = self._hop, work.route, work.record
        admission = hop.admission
        turn: asyncio.Future[Lease] = hop.loop.create_future()

        def ready(allowed: Allowance | None) -> None:
            if turn.done():  # the client has just left
                return
            if allowed is None:
                turn.set_exception(admission.late(work.rank))
                return
            route.allowed = allowed
            try:
                turn.set_result(work.router.route(route))
            except Exception as error:  # noqa: BLE001 - it is this request's, not of the one that made room
                turn.set_exception(error)

        uncached = route.tokens - max(work.router.matches(route).values(), default=0)
        entered = monotonic()
        ticket = admission.enter(
            route.model,
            work.rank,
            work.caller or _address(work),
            uncached * route.sequences,
            route.sequences,
            ready,
        )
        try:
            lease = turn.result() if turn.done() else await turn
        except asyncio.CancelledError:
            admission.leave(ticket)
            if not turn.cancelled() and turn.exception() is None:
                turn.result().close(answered=False)
            raise
        finally:
            record.queue = monotonic() - entered
        admission.settle(ticket, lease.reservation.uncached * route.sequences)
        return lease

    async def idle(self) -> None:
        """Wait until nothing is being answered."""
        await self._idle.wait()

    def sweep(self) -> None:
        """End the exchanges that have been silent, and the waits that have lasted, for too long."""
        now = monotonic()
        for relay in list(self._hop.relays):
            relay.check(now)
        self._hop.admission.expire()


def _address(work: Work) -> str:
    transport = work.request.client.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""
