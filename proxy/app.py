"""The composition root: builds each piece once, starts it, and takes it down in order."""

import asyncio
import secrets
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from time import monotonic
from types import TracebackType
from typing import Any, Self

from policies import registry
from policies.base import follows_prefixes
from proxy import discovery, explained, huge_pages, probes, redis_url
from proxy.admin import Admin
from proxy.admission import Admission
from proxy.attempt import Hop
from proxy.certificates import HANDSHAKE_SECONDS, SHUTDOWN_SECONDS, Contexts
from proxy.concurrency import patience
from proxy.config import Settings
from proxy.discovery.source import SourceMetrics, follow
from proxy.dispatch import Dispatcher
from proxy.dry_run import DryRun
from proxy.engine_tokens import EngineTokens
from proxy.exchange import Exchanges
from proxy.fleet import Fleet
from proxy.found import Found
from proxy.gate import Gate
from proxy.hot import TICK_SECONDS, Hot
from proxy.index.memory import MemoryIndex
from proxy.index.told import ToldIndex
from proxy.index.truth import TrueIndex
from proxy.ingest import Ingest
from proxy.insights import Insights
from proxy.ledger import FLUSH_SECONDS, Ledger
from proxy.listener import Listener
from proxy.live import Live
from proxy.logs import RequestLog, logger
from proxy.metrics import Metrics
from proxy.names import GetAddrInfo, Names
from proxy.outbox import Outbox
from proxy.overview import Overview
from proxy.pools import Pools
from proxy.prefixes import Prefixes
from proxy.probes import Probes
from proxy.queue_metrics import QueueMetrics
from proxy.reader import Reader
from proxy.recent import Recent
from proxy.recorder import Recorder
from proxy.replica import Replica
from proxy.roster import Roster
from proxy.router import Router
from proxy.server import Server
from proxy.shared.client import Link
from proxy.shared.rates import Leases
from proxy.sharing import Sharing
from proxy.spec import ReplicaSpec
from proxy.tasks import Tasks
from proxy.together import Together
from proxy.truth_metrics import TruthMetrics
from proxy.upstream import Pool
from proxy.watch import Home
from proxy.watched import LOOK_SECONDS
from proxy.workers.pages import Page, page_of
from proxy.workers.siblings import Siblings

INDEX_SECONDS = 0.05
"""Between two looks at what predictions have run out and what other proxies have in flight."""
SWEEP_SECONDS = 0.01
START_SECONDS = 15.0
"""How long a start waits for replicas to say what they are and for tokenizers to load."""
SWITCH_SECONDS = 0.0005
"""How long a thread that tokenises may hold the interpreter before the event loop gets its turn."""
BACKLOG = 2048


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
        self._names = Names(getaddrinfo)
        self._outbox = Outbox()
        self.fleet = Fleet(monotonic)
        self.index = TrueIndex(MemoryIndex(), monotonic)
        link = None
        if settings.redis_url != "none":
            given = siblings is not None and settings.redis_url == "embedded"
            link = Link(
                redis_url.parse(settings.redis_url),
                budget=settings.redis_timeout_ms / 1000,
                topology=siblings.redis if siblings is not None and given else None,
            )
        self._sharing = Sharing(settings, link, self.fleet, self.index)
        self.metrics = Metrics(self.fleet, self.index)
        self._tasks = Tasks()
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="prompts")
        self._tls = Contexts(settings.tls)
        self._http = probes.session(settings, self._names, self._tls.upstream)
        self.gate = Gate(settings)
        self._leases: Leases | None = None
        if link is not None:
            self._leases = Leases(
                link,
                self.gate.rates,
                namespace=settings.namespace,
                secret=settings.secret.get_secret_value().encode(),
                origin=secrets.token_hex(8),
            )
        self._upstreams: dict[Replica, Pool] = {}
        tokens = EngineTokens(self._http, self.fleet, seconds=settings.tokenizer_budget_ms / 1000)
        self.pools = Pools(
            settings,
            self.fleet,
            self.index,
            self.metrics,
            tokens,
            self._tasks,
            keyed=self._sharing.open,
            rekeyed=self._sharing.leave,
        )
        self._sharing.emptied = self.pools.forget
        self._probes = Probes(
            settings,
            self.fleet,
            self._http,
            self._tasks,
            described=self._described,
            restarted=self._restarted,
            divided=lambda name, ranks: self._roster.divide(name, ranks),  # noqa: PLW0108 - it comes later
        )
        self._ingest = Ingest(
            self.fleet,
            self.index,
            self._tasks,
            home=self._home,
            look=self._probes.look,
            forget=self.pools.forget,
        )
        self.ledger = Ledger(
            self.metrics, RequestLog(json=settings.log_format == "json", shared=siblings is not None)
        )
        index = self.index if link is None else ToldIndex(self.index, self._sharing.audience)
        policy = registry.create(settings.policy, settings.policy_params)
        by_policy = Router(self.fleet, index, policy, Random(), name=settings.policy)
        self._hot = by_policy.hot = Hot(self.fleet, index, lambda: follows_prefixes(by_policy.policy))
        least_load = registry.create("least_load", {})
        by_load = Router(self.fleet, index, least_load, Random(), name="least_load")
        concurrency = settings.limits.concurrency
        self.fleet.limit(concurrency)
        admission = Admission(self.fleet, settings.priority, prefill=patience(concurrency))
        self.fleet.freed = admission.pump
        hop = Hop(
            settings,
            self.fleet,
            self._upstreams,
            self.metrics,
            self.pools,
            admission,
            unreachable=self._unreachable,
            served=self._ingest.served,
            resync=self._ingest.resync,
        )
        self._drift = hop.drift
        self.metrics.register(TruthMetrics(self._ingest, self._sharing, hop.drift))
        self.metrics.register(QueueMetrics(admission))
        self._dispatcher = Dispatcher(hop)
        reader = Reader(self.metrics, self._executor, budget_seconds=settings.tokenizer_budget_ms / 1000)
        exchanges = Exchanges(
            settings,
            self.pools,
            by_policy,
            by_load,
            self._dispatcher,
            self.metrics,
            self.ledger,
            reader,
            self.gate,
        )
        self._source = discovery.source(settings, self._names)
        if self._source is not None:
            self.metrics.register(SourceMetrics(self._source))
        self._roster = Roster(
            self.fleet,
            self._upstreams,
            self._probes,
            self._ingest,
            self._sharing,
            self.pools,
            self.metrics,
            hop.drift,
            hop.priority,
            connect=self._connections,
            ordered=exchanges.ordered,
            steered=exchanges.steered,
        )
        overview = Overview(
            by_policy,
            self.fleet,
            self._roster,
            self.index,
            self.pools,
            self.metrics,
            admission,
            self.ledger,
            parts=self._parts,
        )
        self._live = Live(overview.frame, self._tasks)
        admin = Admin(
            settings,
            self.fleet,
            self._roster,
            overview,
            self._live,
            self._http,
            flushed=self._emptied,
            forget=self._forget,
        )
        self._insights = Insights(settings, by_policy, self.metrics, self.ledger, exchanges)
        self._insights.serve(admin)
        if link is not None and redis_url.parse(settings.redis_url).shared:
            self._insights.share(link, settings.namespace)
        self._recorder = None
        if settings.record is not None:
            self._recorder = Recorder(settings.record, settings.record_mb << 20)
            self.ledger.readers.append(self._recorder.read)
            self.metrics.register(self._recorder)
        self._tracing = None
        if settings.tracing.endpoint is not None:
            from proxy.tracing import Tracing  # noqa: PLC0415 - an extra

            self._tracing = Tracing(settings.tracing.endpoint)
            self.ledger.readers.append(self._tracing.read)
            self.metrics.register(self._tracing)
        prefixes = Prefixes(self._hot, settings.secret.get_secret_value().encode())
        prefixes.serve(admin)
        self.metrics.register(prefixes)
        recent = Recent(lambda: self._insights.trials.routers)
        self.ledger.readers.append(recent.read)
        dry_run = DryRun(
            settings, self._insights.trials.router, self.index, self.pools, reader, self.gate, admission
        )
        explained.serve(admin, self.ledger, recent, dry_run)
        self._exchanges = exchanges
        together = None
        if siblings is not None:
            together = Together(admin, siblings, seconds=settings.timeouts.request)
            self._live.make = lambda: together.overview(overview.frame())
        self._server = Server(
            settings,
            self.fleet,
            self.pools,
            exchanges,
            self.ledger,
            admin,
            self.gate,
            parts=self._parts,
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
        self._listening: list[asyncio.Server] = []

    @property
    def port(self) -> int:
        """The port it listens on."""
        port: int = self._listening[0].sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Where it listens."""
        host = self._settings.host
        scheme = "http" if self._tls.listening is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """Sequences at replicas, those that have left the fleet included."""
        return sum(replica.load.in_flight for replica in self._upstreams)

    async def __aenter__(self) -> Self:
        settings, timeouts = self._settings, self._settings.timeouts
        sys.setswitchinterval(SWITCH_SECONDS)
        if self._sharing.link is not None:
            await self._sharing.link.start()
        if settings.discovery != "dns":
            for spec in settings.replicas:
                self._roster.add(Found(spec), "static")
        try:
            async with asyncio.timeout(START_SECONDS):
                if (source := self._source) is not None:
                    tell = partial(self._roster.sync, source=source.kind)
                    self._tasks.start("discovery", follow(source, tell))
                    await self._roster.told.wait()
                await self._probes.first_round()
                await self.pools.settled()
        except TimeoutError:
            logger.warning("starting although not every replica has answered: /ready tells")
        if self._sharing.refused is not None:
            raise self._sharing.refused
        self._tasks.every("sweep", min(1.0, timeouts.idle / 4, timeouts.first_byte / 4), self._sweep)
        self._tasks.every("ledger", FLUSH_SECONDS, self.ledger.flush)
        self._tasks.every("index", INDEX_SECONDS, self._tick)
        self._tasks.every("hot prefixes", TICK_SECONDS, self._hot.tick)
        self._insights.start(self._tasks)
        self._tasks.every("names", settings.dns.interval, self._roster.follow_names)
        self._tasks.every("keys and certificates", LOOK_SECONDS, self._look)
        self._tasks.every("huge pages", huge_pages.AGAIN_SECONDS, _ask_for_huge_pages)
        if self._leases is not None:
            self._tasks.start("leases of rates", self._leases.run())
        if self._siblings is not None:
            await self._siblings.join(
                page=self._page,
                replicas=self._roster.names,
                flushed=self._flushed,
                protocol=self._clients,
            )
        await self._listen()
        return self

    async def _listen(self) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls.listening
        places: list[dict[str, Any]] = [{"host": self._settings.host, "port": self._settings.port}]
        if self._siblings is not None:
            places = [{"sock": each} for each in self._siblings.sockets]
        for place in places:
            listening = await loop.create_server(
                self._clients,
                **place,
                backlog=BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=None if tls is None else SHUTDOWN_SECONDS,
            )
            self._listening.append(listening)

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
            last.push_async_callback(self._http.close)
            for pool in self._upstreams.values():
                last.callback(pool.close)
            last.push_async_callback(self._tasks.close)
            last.push_async_callback(self._sharing.close)
            if self._leases is not None:
                last.push_async_callback(self._leases.close)
            last.push_async_callback(self._ingest.close)
            if self._tracing is not None:
                last.push_async_callback(asyncio.to_thread, self._tracing.close)
            if self._recorder is not None:
                last.push_async_callback(asyncio.to_thread, self._recorder.close)
            last.callback(self.ledger.flush)
            last.push_async_callback(self._clients.end)
            last.callback(setattr, self._exchanges, "ending", True)
            if self._listening:
                await self._clients.drain(self._listening, delay=delay, grace=grace)

    def hurry(self) -> None:
        """Wait for nothing any more: `close` ends what is left at once."""
        self._clients.hurry.set()

    def _connections(self, spec: ReplicaSpec, moved: Callable[[], None]) -> Pool:
        settings = self._settings
        return Pool(
            spec.url,
            connect_seconds=settings.timeouts.connect,
            keepalive_seconds=settings.timeouts.keepalive,
            size=settings.limits.pool_size,
            tls=self._tls.upstream,
            server_name=spec.server_name,
            names=self._names,
            moved=moved,
            outbox=self._outbox,
        )

    def _unreachable(self, replica: Replica, error: OSError) -> None:
        if replica.gone:
            return
        if isinstance(error, ConnectionRefusedError):
            self._probes.refused(replica.name)
        if self._source is not None:
            self._source.wake()

    def _parts(self) -> dict[str, object]:
        """What there is beside models and replicas, and how it fares."""
        parts: dict[str, object] = {}
        link, source = self._sharing.link, self._source
        if link is not None:
            parts["redis"] = {"up": True} if link.up else {"up": False, "why": link.why}
        if source is not None:
            known = {"source": source.kind, "up": source.why is None}
            parts["discovery"] = known if source.why is None else {**known, "why": source.why}
        for name, fault in (("api_keys", self.gate.callers.fault), ("certificates", self._tls.fault)):
            if fault is not None:
                parts[name] = {"up": False, "why": "the new file cannot be used; the log says why"}
        return parts

    async def _look(self) -> None:
        await self.gate.look()
        await self._tls.look()

    def _home(self, name: str) -> Home | None:
        pool = self.pools.pool_of(name)
        return None if pool is None else Home(pool, self._sharing.of(name))

    def _described(self, name: str) -> None:
        self.pools.described(name)
        self._ingest.described(name)

    def _emptied(self, name: str) -> None:
        self._flushed(name)
        if self._siblings is not None:
            self._siblings.flushed(name)

    def _flushed(self, name: str) -> None:
        if name not in self.fleet.replicas:
            return
        self._ingest.flushed(name)
        if self.index.mode(name) == "learned":
            self._forget(name)

    def _forget(self, name: str) -> None:
        if self._ingest.following(name) is not None:
            self._ingest.resync(name, "an operator asked for it")
        elif self.index.mode(name) == "learned":  # nobody follows it, so nobody else can know
            self.pools.forget(name)
            self._sharing.of(name).forgotten(name)

    def _restarted(self, name: str) -> None:
        self._ingest.restarted(name)
        if not self._sharing.restarted(name):
            self.pools.forget(name)
        self.fleet.restarted(name)
        self._drift.forget(name)

    async def _tick(self) -> None:
        self._sharing.look()
        while self.index.tick():  # noqa: ASYNC110 - it sweeps, in small steps, what a forgotten replica held
            await asyncio.sleep(SWEEP_SECONDS)

    def _sweep(self) -> None:
        self._dispatcher.sweep()
        self._clients.sweep()
        self.gate.rates.forget(monotonic())
        for pool in self._upstreams.values():
            pool.sweep()
        self._roster.sweep()
        self.pools.sweep()


def _ask_for_huge_pages() -> None:
    huge_pages.ask()
