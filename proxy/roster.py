"""Who belongs to the fleet: the one place that adds, holds back and removes replicas while the proxy runs.

A member is an engine: its name, its address and its incarnation. It is one replica, or one for each of its
data-parallel ranks, which come, go and drain together. One that is removed gets no more requests and those in
flight end as they will; what bears its name or its address afterwards is another one and inherits nothing.
Invariant: whatever is kept by replica is forgotten here, and only here.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from proxy import ranks
from proxy.drift import Drift
from proxy.engine_priority import EnginePriority
from proxy.errors import Conflict, NotFound
from proxy.fleet import Fleet
from proxy.found import Found
from proxy.ingest import Ingest
from proxy.logs import logger
from proxy.metrics import Metrics
from proxy.pools import Pools
from proxy.probes import Probes
from proxy.replica import Replica
from proxy.sharing import Sharing
from proxy.spec import ReplicaSpec
from proxy.upstream import Pool

LATE_SECONDS = 60.0
"""How long what was counted of a replica that is gone is kept: metrics are scraped a bit later."""
DRAINING, NOT_READY = "draining", "not ready"
"""Why a replica is held back: an operator drains it; its platform says so."""


@dataclass(slots=True)
class Member:
    """An engine of the fleet, and how it came there."""

    found: Found
    source: str
    """`static`, `admin`, `dns` or `kubernetes`."""
    connections: Pool
    """Those of all its ranks."""
    replicas: list[Replica] = field(default_factory=list)
    """By rank."""


@dataclass(slots=True)
class Leaving:
    """A replica that was removed and may still answer requests."""

    replica: Replica
    since: float


class Roster:
    """The fleet's members."""

    def __init__(
        self,
        fleet: Fleet,
        upstreams: dict[Replica, Pool],
        probes: Probes,
        ingest: Ingest,
        sharing: Sharing,
        pools: Pools,
        metrics: Metrics,
        drift: Drift,
        priority: EnginePriority,
        *,
        connect: Callable[[ReplicaSpec, Callable[[], None]], Pool],
        ordered: Callable[[bool], None],
        steered: Callable[[bool], None],
    ) -> None:
        """`connect` makes the connections to an engine; they call its second argument when its name moves.

        `ordered` is told whether some replica orders by priority; `steered`, whether some engine has ranks.
        """
        self.told = asyncio.Event()
        """Set once a source has told of replicas."""
        self.leaving: list[Leaving] = []
        self._fleet = fleet
        self._upstreams = upstreams
        self._probes = probes
        self._ingest = ingest
        self._sharing = sharing
        self._pools = pools
        self._metrics = metrics
        self._drift = drift
        self._priority = priority
        self._connect = connect
        self._ordered = ordered
        self._steered = steered
        self._members: dict[str, Member] = {}
        self._told: dict[str, set[tuple[str, str, str]]] = {}
        """What each source told last, as far as there was room for it."""
        self._refused: set[tuple[str, str, str]] = set()

    def names(self) -> list[str]:
        """The replicas of which something is kept: all that are here, and those that have just left."""
        return [*self._fleet.replicas, *(each.replica.name for each in self.leaving)]

    def member(self, name: str) -> Member:
        """The engine of this name, or whose rank has it. Raises NotFound."""
        member = self._members.get(name) or self._members.get(name.rpartition("@")[0])
        if member is None or all(name not in (member.found.spec.name, r.name) for r in member.replicas):
            raise NotFound(f"there is no replica {name!r}; /admin/replicas lists them")
        return member

    def add(self, found: Found, source: str) -> Replica:
        """Take an engine in; it takes traffic once it has answered, and said how many ranks it has.

        Raises Conflict.
        """
        spec = found.spec
        for name, member in self._members.items():
            if name == spec.name or member.found.spec.url == spec.url:
                raise Conflict(f"{name} at {member.found.spec.url} is in the fleet: remove it first")
        connections = self._connect(spec, lambda: self._moved(spec.name, connections))
        member = self._members[spec.name] = Member(found, source, connections)
        self._come(member, 1, set() if found.ready else {NOT_READY})
        self._probes.watch(spec)
        return member.replicas[0]

    def remove(self, name: str) -> None:
        """Take an engine out. Raises NotFound, and Conflict for one of several ranks."""
        member = self._whole(name)
        self._go(member)
        self._probes.forget(name)
        member.connections.close()
        del self._members[name]
        self._settings_of_all()
        logger.info("replica %s has left the fleet (%s)", name, member.source)

    def divide(self, name: str, count: int) -> None:
        """An engine turns out to have so many ranks: other replicas than before stand for it."""
        member = self._members[name]
        held = member.replicas[0].held
        self._go(member)
        self._come(member, count, held)

    def drain(self, name: str) -> None:
        """Give an engine no new requests; what is known of its caches stays.

        Raises NotFound, and Conflict for one of several ranks.
        """
        for replica in self._whole(name).replicas:
            self._fleet.hold(replica.name, DRAINING)

    def undrain(self, name: str) -> None:
        """Give it requests again. Raises as `drain` does."""
        for replica in self._whole(name).replicas:
            self._fleet.let(replica.name, DRAINING)

    def _whole(self, name: str) -> Member:
        member = self.member(name)
        engine = member.found.spec.name
        if name != engine:
            raise Conflict(
                f"{name} is one rank of {engine}, and an engine's ranks go together: name {engine}"
            )
        return member

    def _come(self, member: Member, count: int, held: set[str]) -> None:
        """The engine's replicas join the fleet, and are held back for these reasons."""
        spec = member.found.spec
        member.replicas = []
        for rank, name in enumerate(ranks.names(spec.name, count)):
            replica = self._fleet.add(name, spec.url)
            replica.server_name = spec.server_name
            replica.lines = ranks.lines(rank, count)
            member.replicas.append(replica)
            self._upstreams[replica] = member.connections
            self._priority.learn(name, spec.priority)
            for why in held:
                self._fleet.hold(name, why)
        self._settings_of_all()

    def _go(self, member: Member) -> None:
        """The engine's replicas leave the fleet, each with all that is known of it."""
        for replica in member.replicas:
            name = replica.name
            self._ingest.removed(name)  # before its model, and so where it is shared, is forgotten
            self._sharing.restarted(name)
            self._fleet.remove(name)
            self._pools.removed(name)
            self._priority.forget(name)
            self.leaving.append(Leaving(replica, monotonic()))

    def _settings_of_all(self) -> None:
        """Tell what follows from the members for all requests."""
        self._ordered(bool(self._priority))
        self._steered(any(len(member.replicas) > 1 for member in self._members.values()))

    def sync(self, found: Sequence[Found], source: str) -> None:
        """A source has told of all the replicas that it knows.

        What it told before and no longer tells is removed, what it tells anew is added. So one that an
        operator removed stays out while it is told of, and one that an operator added is nobody's business.
        """
        known, now = self._told.get(source, set()), {each.identity: each for each in found}
        for name, member in list(self._members.items()):
            if member.source == source and member.found.identity not in now:
                self.remove(name)
        told = known & now.keys()
        for identity, each in now.items():
            if identity in known:
                self._ready(each, source)
                continue
            try:
                self.add(each, source)
            except Conflict as error:
                if identity not in self._refused:
                    logger.error("discovery by %s: %s is left out: %s", source, each.spec.name, error)
                self._refused.add(identity)
            else:
                told.add(identity)
        self._refused &= now.keys() - told
        self._told[source] = told
        self.told.set()

    def sweep(self) -> None:
        """Forget for good those that are gone and were not heard of for a while."""
        oldest = monotonic() - LATE_SECONDS
        for one in [one for one in self.leaving if one.since < oldest and not one.replica.load.in_flight]:
            self.leaving.remove(one)
            del self._upstreams[one.replica]
            name = one.replica.name
            if name not in self._fleet.replicas and all(name != other.replica.name for other in self.leaving):
                self._metrics.forget(name)
                self._drift.forget(name)
                self._sharing.forget(name)

    async def follow_names(self) -> None:
        """Look up the replicas that are known by name again."""
        named = [each.connections for each in self._members.values() if each.connections.is_named]
        for failure in await asyncio.gather(*(pool.resolve() for pool in named), return_exceptions=True):
            if isinstance(failure, OSError):
                logger.debug("a replica's name cannot be looked up: %s", failure)
            elif failure is not None:
                raise failure

    def _ready(self, found: Found, source: str) -> None:
        name = found.spec.name
        member = self._members.get(name)
        if member is None or member.source != source:  # an operator has removed it, or has put another there
            return
        change = self._fleet.let if found.ready else self._fleet.hold
        for replica in member.replicas:
            change(replica.name, NOT_READY)

    def _moved(self, name: str, connections: Pool) -> None:
        member = self._members.get(name)
        if member is not None and member.connections is connections:
            logger.info("replica %s has moved to another address", name)
            self._probes.moved(name)
