"""The composition root: builds each piece once, starts it, and takes it down in order."""

import asyncio
import sys
from contextlib import AsyncExitStack
from time import monotonic
from types import TracebackType
from typing import Any, Self

from proxy import explained, huge_pages, redis_url
from proxy.admin import Admin
from proxy.attempt import Hop
from proxy.certificates import Contexts
from proxy.config import Settings
from proxy.deciding import Deciding
from proxy.dispatch import Dispatcher
from proxy.dry_run import DryRun
from proxy.exchange import Exchanges
from proxy.fleet import Fleet
from proxy.gate import Gate
from proxy.hot import TICK_SECONDS
from proxy.index.memory import MemoryIndex
from proxy.index.told import ToldIndex
from proxy.index.truth import TrueIndex
from proxy.ledger import FLUSH_SECONDS, Ledger
from proxy.listener import Listener
from proxy.live import Live
from proxy.logs import RequestLog, logger
from proxy.metrics import Metrics
from proxy.names import GetAddrInfo, Names
from proxy.observers import Observers
from proxy.outbox import Outbox
from proxy.overview import Overview
from proxy.parts import Parts
from proxy.prefixes import Prefixes
from proxy.queue_metrics import QueueMetrics
from proxy.reader import Reader, threads
from proxy.server import Server
from proxy.sharing import Sharing, leases_of, link_of
from proxy.tasks import Tasks
from proxy.together import Together
from proxy.truth_metrics import TruthMetrics
from proxy.upkeep import Upkeep
from proxy.watched import LOOK_SECONDS
from proxy.workers.pages import Page, page_of
from proxy.workers.siblings import Siblings

START_SECONDS = 15.0
"""How long a start waits for replicas to say what they are and for tokenizers to load."""
SWITCH_SECONDS = 0.0005
"""How long a thread that tokenises may hold the interpreter before the event loop gets its turn."""


class Proxy:
    """One proxy process, as an async context manager: it serves from enter to exit."""

    def __init__(
        self,
        settings: Settings,
        *,
        getaddrinfo: GetAddrInfo | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        """`getaddrinfo` looks up names in place of the event loop's.

        `siblings`: the other workers, where it is one of several.
        """
        self._settings = settings
        self._siblings = siblings
        self._outbox = Outbox()
        self._tasks = Tasks()
        self._executor = threads()
        self._tls = Contexts(settings.tls)
        self.fleet = Fleet(monotonic)
        self.index = TrueIndex(MemoryIndex(), monotonic)
        self.metrics = Metrics(self.fleet, self.index)
        self.gate = Gate(settings)
        link = link_of(settings, None if siblings is None else siblings.redis)
        self._sharing = Sharing(settings, link, self.fleet, self.index)
        self._leases = None if link is None else leases_of(settings, link, self.gate.rates)
        self._upkeep = Upkeep(
            settings,
            self.fleet,
            self.index,
            self._sharing,
            self.metrics,
            self._tasks,
            names=Names(getaddrinfo),
            tls=self._tls,
            outbox=self._outbox,
        )
        self.pools = self._upkeep.pools
        self.ledger = Ledger(
            self.metrics, RequestLog(json=settings.log_format == "json", shared=siblings is not None)
        )

        # What decides.
        index = self.index if link is None else ToldIndex(self.index, self._sharing.audience)
        deciding = Deciding(settings, self.fleet, index)
        by_policy, admission, self._hot = deciding.by_policy, deciding.admission, deciding.hot
        self.metrics.register(QueueMetrics(admission))

        # A request's path.
        hop = Hop(
            settings,
            self.fleet,
            self._upkeep.upstreams,
            self.metrics,
            self.pools,
            admission,
            unreachable=self._upkeep.unreachable,
            served=self._upkeep.ingest.served,
            resync=self._upkeep.ingest.resync,
        )
        self.metrics.register(TruthMetrics(self._upkeep.ingest, self._sharing, hop.drift))
        self._dispatcher = Dispatcher(hop)
        reader = Reader(self.metrics, self._executor, budget_seconds=settings.tokenizer_budget_ms / 1000)
        exchanges = self._exchanges = Exchanges(
            settings,
            self.pools,
            by_policy,
            deciding.by_load,
            self._dispatcher,
            self.metrics,
            self.ledger,
            reader,
            self.gate,
        )
        self._upkeep.enrol(hop.drift, hop.priority, ordered=exchanges.ordered, steered=exchanges.steered)

        # What is told to those who operate it.
        parts = Parts(link, self._upkeep.source, self.gate, self._tls)
        overview = Overview(
            by_policy,
            self.fleet,
            self._upkeep.roster,
            self.index,
            self.pools,
            self.metrics,
            admission,
            self.ledger,
            parts=parts.told,
        )
        self._live = Live(overview.frame, self._tasks)
        admin = Admin(
            settings,
            self.fleet,
            self._upkeep.roster,
            overview,
            self._live,
            self._upkeep.http,
            flushed=self._flushed,
            forget=self._upkeep.forget,
        )
        self._observers = Observers(settings, by_policy, self.metrics, self.ledger, exchanges)
        insights = self._observers.insights
        insights.serve(admin)
        if link is not None and redis_url.parse(settings.redis_url).shared:
            insights.share(link, settings.namespace)
        prefixes = Prefixes(self._hot, settings.secret.get_secret_value().encode())
        prefixes.serve(admin)
        self.metrics.register(prefixes)
        dry_run = DryRun(
            settings, insights.trials.router, self.index, self.pools, reader, self.gate, admission
        )
        explained.serve(admin, self.ledger, self._observers.recent, dry_run)
        together = None
        if siblings is not None:
            together = Together(admin, siblings, seconds=settings.timeouts.request)
            self._live.make = lambda: together.overview(overview.frame())

        # Where clients come in.
        self._server = Server(
            settings,
            self.fleet,
            self.pools,
            exchanges,
            self.ledger,
            admin,
            self.gate,
            parts=parts.told,
            together=together,
        )
        self._clients = Listener(
            self._server.handle,
            exchanges.answer,
            header_bytes=int(settings.limits.header_bytes),
            body_bytes=int(settings.limits.body_bytes),
            keepalive_seconds=settings.timeouts.client_keepalive,
            request_seconds=settings.timeouts.request,
            outbox=self._outbox,
        )

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._clients.port

    @property
    def url(self) -> str:
        """Where it listens."""
        host = self._settings.host
        scheme = "http" if self._tls.listening is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """Sequences at replicas, those that have left the fleet included."""
        return sum(replica.load.in_flight for replica in self._upkeep.upstreams)

    async def __aenter__(self) -> Self:
        settings, timeouts = self._settings, self._settings.timeouts
        sys.setswitchinterval(SWITCH_SECONDS)
        if self._sharing.link is not None:
            await self._sharing.link.start()
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._upkeep.first_round()
        except TimeoutError:
            logger.warning("starting although not every replica has answered: /ready tells")
        if self._sharing.refused is not None:
            raise self._sharing.refused
        self._tasks.every("sweep", min(1.0, timeouts.idle / 4, timeouts.first_byte / 4), self._sweep)
        self._tasks.every("ledger", FLUSH_SECONDS, self.ledger.flush)
        self._tasks.every("hot prefixes", TICK_SECONDS, self._hot.tick)
        self._upkeep.start()
        self._observers.insights.start(self._tasks)
        self._tasks.every("keys and certificates", LOOK_SECONDS, self._look)
        self._tasks.every("huge pages", huge_pages.AGAIN_SECONDS, _ask_for_huge_pages)
        if self._leases is not None:
            self._tasks.start("leases of rates", self._leases.run())
        if self._siblings is not None:
            await self._siblings.join(
                page=self._page,
                replicas=self._upkeep.roster.names,
                flushed=self._upkeep.flushed,
                protocol=self._clients,
            )
        places: list[dict[str, Any]] = [{"host": settings.host, "port": settings.port}]
        if self._siblings is not None:
            places = [{"sock": each} for each in self._siblings.sockets]
        await self._clients.listen(places, self._tls.listening)
        return self

    def _page(self) -> Page:
        """What is counted here."""
        self.ledger.flush()
        return page_of(self.metrics.families())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(grace=0.0)

    async def close(self, *, grace: float, delay: float = 0.0) -> None:
        """Serve on for `delay` seconds while /ready says otherwise, take no more requests, end.

        Requests that are here then have `grace` seconds; those that are still not answered are told so, and
        answers that are not whole are cut.
        """
        self._server.draining = True
        self._live.end()
        async with AsyncExitStack() as last:  # what fails here must not keep the rest from being closed
            last.callback(self._executor.shutdown, wait=False, cancel_futures=True)
            last.push_async_callback(self._upkeep.http.close)
            for pool in self._upkeep.upstreams.values():
                last.callback(pool.close)
            last.push_async_callback(self._tasks.close)
            last.push_async_callback(self._sharing.close)
            if self._leases is not None:
                last.push_async_callback(self._leases.close)
            last.push_async_callback(self._upkeep.ingest.close)
            self._observers.end(last)
            last.callback(self.ledger.flush)
            last.push_async_callback(self._clients.end)
            last.callback(setattr, self._exchanges, "ending", True)
            await self._clients.drain(delay=delay, grace=grace)

    def hurry(self) -> None:
        """Wait for nothing any more: `close` ends what is left at once."""
        self._clients.hurry.set()

    async def _look(self) -> None:
        await self.gate.look()
        await self._tls.look()

    def _flushed(self, name: str) -> None:
        """An operator emptied a replica's cache here."""
        self._upkeep.flushed(name)
        if self._siblings is not None:
            self._siblings.flushed(name)

    def _sweep(self) -> None:
        self._dispatcher.sweep()
        self._clients.sweep()
        self.gate.rates.forget(monotonic())
        self._upkeep.sweep()


def _ask_for_huge_pages() -> None:
    huge_pages.ask()
