"""Sends a request to a replica, and to another one where that is safe and affordable.

Between `router.route` and the bytes leaving for the replica there is no await when a connection is idle.
"""

from time import monotonic

from aiohttp import web

from proxy.attempt import Attempt, Hop, Work
from proxy.errors import NoReplica, ProxyError
from proxy.relay import Ending
from proxy.upstream import UpstreamConnection


class Dispatcher:
    """Attempts, one after the other."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop

    async def send(self, work: Work) -> web.StreamResponse:
        """Relay the request's answer. Raises ProxyError if the client has been sent nothing of one."""
        self._hop.budget.request(work.record.started)
        tried: set[str] = set()
        failure: ProxyError | None = None
        while True:
            try:
                lease = work.router.route(work.route, exclude=tried)
            except NoReplica as error:
                raise failure or error from None
            attempt = Attempt(self._hop, work, lease, tried)
            try:
                result = attempt.pool.take() or await attempt.connect()
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
            self._hop.metrics.retries.add((failure.code,))

    async def idle(self) -> None:
        """Wait until nothing is being relayed."""
        await self._hop.idle.wait()

    def sweep(self) -> None:
        """End the exchanges that have been silent for too long."""
        now = monotonic()
        for relay in list(self._hop.relays):
            relay.check(now)
