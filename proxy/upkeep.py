"""The replicas' side, put together: who asks them, follows them, keys their prompts and connects to them.

None of these pieces knows the others. That a replica was described, emptied, started anew or lost is news to
several of them, and is passed on here. Must never be called for each request: what a request needs of a
replica is in the fleet, the index and the pools.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from proxy import discovery, probes
from proxy.certificates import Contexts
from proxy.config import Settings
from proxy.discovery.source import SourceMetrics, follow
from proxy.drift import Drift
from proxy.engine_priority import EnginePriority
from proxy.engine_tokens import EngineTokens
from proxy.fleet import Fleet
from proxy.found import Found
from proxy.index.truth import TrueIndex
from proxy.ingest import Ingest
from proxy.metrics import Metrics
from proxy.names import Names
from proxy.outbox import Outbox
from proxy.pools import Pools
from proxy.probes import Probes
from proxy.replica import Replica
from proxy.roster import Roster
from proxy.sharing import Sharing
from proxy.spec import ReplicaSpec
from proxy.tasks import Tasks
from proxy.upstream import Pool
from proxy.watch import Home

INDEX_SECONDS = 0.05
"""Between two looks at what predictions have run out and what other proxies have in flight."""
SWEEP_SECONDS = 0.01


class Upkeep:
    """What the proxy does about its replicas beside routing to them."""

    roster: Roster
    _drift: Drift

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        index: TrueIndex,
        sharing: Sharing,
        metrics: Metrics,
        tasks: Tasks,
        *,
        names: Names,
        tls: Contexts,
        outbox: Outbox,
    ) -> None:
        """`outbox` is where connections to replicas write."""
        self._settings = settings
        self._fleet = fleet
        self._index = index
        self._sharing = sharing
        self._metrics = metrics
        self._tasks = tasks
        self._names = names
        self._tls = tls
        self._outbox = outbox
        self.http = probes.session(settings, names, tls.upstream)
        """For what is asked of replicas beside requests."""
        self.upstreams: dict[Replica, Pool] = {}
        self.source = discovery.source(settings, names)
        """Where replicas are found; None if they are only named."""
        if self.source is not None:
            metrics.register(SourceMetrics(self.source))
        self.pools = Pools(
            settings,
            fleet,
            index,
            metrics,
            EngineTokens(self.http, fleet, seconds=settings.tokenizer_budget_ms / 1000),
            tasks,
            keyed=sharing.open,
            rekeyed=sharing.leave,
        )
        sharing.emptied = self.pools.forget
        self.probes = Probes(
            settings,
            fleet,
            self.http,
            tasks,
            described=self._described,
            restarted=self._restarted,
            divided=lambda name, ranks: self.roster.divide(name, ranks),  # noqa: PLW0108 - it comes later
        )
        self.ingest = Ingest(
            fleet, index, tasks, home=self._home, look=self.probes.look, forget=self.pools.forget
        )

    def enrol(
        self,
        drift: Drift,
        priority: EnginePriority,
        *,
        ordered: Callable[[bool], None],
        steered: Callable[[bool], None],
    ) -> None:
        """Make the roster, of what requests have and it must keep: once, before anything is started."""
        self._drift = drift
        self.roster = Roster(
            self._fleet,
            self.upstreams,
            self.probes,
            self.ingest,
            self._sharing,
            self.pools,
            self._metrics,
            drift,
            priority,
            connect=self._connections,
            ordered=ordered,
            steered=steered,
        )

    async def first_round(self) -> None:
        """Find the replicas, ask each how it is, and wait for what their prompts are keyed with."""
        if self._settings.discovery != "dns":
            for spec in self._settings.replicas:
                self.roster.add(Found(spec), "static")
        if (source := self.source) is not None:
            tell = partial(self.roster.sync, source=source.kind)
            self._tasks.start("discovery", follow(source, tell))
            await self.roster.told.wait()
        await self.probes.first_round()
        await self.pools.settled()

    def start(self) -> None:
        """Do what is done from time to time, but for `sweep`."""
        self._tasks.every("index", INDEX_SECONDS, self._tick)
        self._tasks.every("names", self._settings.dns.interval, self.roster.follow_names)

    def sweep(self) -> None:
        """Let go of what has lasted for too long."""
        for pool in self.upstreams.values():
            pool.sweep()
        self.roster.sweep()
        self.pools.sweep()

    async def _tick(self) -> None:
        self._sharing.look()
        while self._index.tick():  # noqa: ASYNC110 - it sweeps, in small steps, what a forgotten replica held
            await asyncio.sleep(SWEEP_SECONDS)

    # ---- what is told of a replica --------------------------------------------------------------------

    def unreachable(self, replica: Replica, error: OSError) -> None:
        """A request found no connection to a replica."""
        if replica.gone:
            return
        if isinstance(error, ConnectionRefusedError):
            self.probes.refused(replica.name)
        if self.source is not None:
            self.source.wake()

    def flushed(self, name: str) -> None:
        """A replica's cache was emptied through a proxy."""
        if name not in self._fleet.replicas:
            return
        self.ingest.flushed(name)
        if self._index.mode(name) == "learned":
            self.forget(name)

    def forget(self, name: str) -> None:
        """An operator wants what is believed of a replica's cache to be forgotten."""
        if self.ingest.following(name) is not None:
            self.ingest.resync(name, "an operator asked for it")
        elif self._index.mode(name) == "learned":  # nobody follows it, so nobody else can know
            self.pools.forget(name)
            self._sharing.of(name).forgotten(name)

    def _described(self, name: str) -> None:
        self.pools.described(name)
        self.ingest.described(name)

    def _restarted(self, name: str) -> None:
        self.ingest.restarted(name)
        if not self._sharing.restarted(name):
            self.pools.forget(name)
        self._fleet.restarted(name)
        self._drift.forget(name)

    def _home(self, name: str) -> Home | None:
        pool = self.pools.pool_of(name)
        return None if pool is None else Home(pool, self._sharing.of(name))

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
