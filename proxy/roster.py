"""Who belongs to the fleet: the one place that adds, holds back and removes replicas while the proxy runs.

A replica is its name, its address and its incarnation. One that is removed gets no more requests and those in
flight end as they will; what bears its name or its address afterwards is another replica and inherits
nothing. Invariant: whatever is kept by replica is forgotten here, and only here.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

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


@dataclass(slots=True, frozen=True)
class Member:
    """A replica of the fleet, and how it came there."""

    found: Found
    source: str
    """`static`, `admin`, `dns` or `kubernetes`."""


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
    ) -> None:
        """`connect` makes the connections to a replica; they call its second argument when its name moves.

        `ordered` is told whether some replica orders by priority.
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
        self._members: dict[str, Member] = {}
        self._told: dict[str, set[tuple[str, str, str]]] = {}
        """What each source told last, as far as there was room for it."""
        self._refused: set[tuple[str, str, str]] = set()

    def member(self, name: str) -> Member:
        """How a replica came here. Raises NotFound."""
        try:
            return self._members[name]
        except KeyError:
            raise NotFound(f"there is no replica {name!r}; /admin/replicas lists them") from None

    def add(self, found: Found, source: str) -> Replica:
        """Take a replica in; it takes traffic once it has answered. Raises Conflict."""
        spec = found.spec
        for name, member in self._members.items():
            if name == spec.name or member.found.spec.url == spec.url:
                raise Conflict(f"{name} at {member.found.spec.url} is in the fleet: remove it first")
        replica = self._fleet.add(spec.name, spec.url)
        replica.server_name = spec.server_name
        self._members[spec.name] = Member(found, source)
        self._upstreams[replica] = self._connect(spec, lambda: self._moved(replica))
        self._priority.learn(spec.name, spec.priority)
        self._ordered(bool(self._priority))
        if not found.ready:
            self._fleet.hold(spec.name, NOT_READY)
        self._probes.watch(spec)
        return replica

    def remove(self, name: str) -> None:
        """Take a replica out. Raises NotFound."""
        member = self.member(name)
        replica = self._fleet.replicas[name]
        self._ingest.removed(name)  # before its model, and so where it is shared, is forgotten
        self._sharing.restarted(name)
        self._probes.forget(name)
        self._fleet.remove(name)
        self._pools.removed(name)
        self._priority.forget(name)
        self._ordered(bool(self._priority))
        self._upstreams[replica].close()
        del self._members[name]
        self.leaving.append(Leaving(replica, monotonic()))
        logger.info("replica %s has left the fleet (%s)", name, member.source)

    def drain(self, name: str) -> None:
        """Give a replica no new requests; what is known of its cache stays. Raises NotFound."""
        self.member(name)
        self._fleet.hold(name, DRAINING)

    def undrain(self, name: str) -> None:
        """Give it requests again. Raises NotFound."""
        self.member(name)
        self._fleet.let(name, DRAINING)

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
            if name not in self._members and all(name != other.replica.name for other in self.leaving):
                self._metrics.forget(name)
                self._drift.forget(name)
                self._sharing.forget(name)

    async def follow_names(self) -> None:
        """Look up the replicas that are known by name again."""
        named = [pool for replica, pool in self._upstreams.items() if pool.is_named and not replica.gone]
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
        if found.ready:
            self._fleet.let(name, NOT_READY)
        else:
            self._fleet.hold(name, NOT_READY)

    def _moved(self, replica: Replica) -> None:
        if not replica.gone:
            logger.info("replica %s has moved to another address", replica.name)
            self._probes.moved(replica.name)
