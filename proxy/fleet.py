"""The replicas and their load: the one owner of both.

Synchronous and without I/O; the clock is injected, so the simulator runs the same code on virtual time.
Invariants: what `reserve` adds, the `Reservation` takes back exactly once, whatever ends the request; no
figure ever goes below zero; a replica that is gone is gone from every map here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from policies import base
from proxy import concurrency
from proxy.caution import RAMP_SECONDS, Caution
from proxy.concurrency import Limit
from proxy.description import Description
from proxy.learning import FleetLine, ReplicaRate
from proxy.replica import Replica, Reservation

RECENT_SECONDS = 1200.0
"""Time constant of `base.Replica.recent_tokens`: long beside a session's pauses, short beside a day."""
RATE_SECONDS = 60.0
"""Time constant in which a replica without replies is again believed as fast as the fleet."""
TICK_SECONDS = 0.5


class Fleet:
    """All replicas by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.replicas: dict[str, Replica] = {}
        self.line = FleetLine()
        self.tripped: set[Replica] = set()
        """Those whose breaker is not closed."""
        self.freed: Callable[[], None] = _nobody
        """Told whenever there may be more room on a replica."""
        self._concurrency: str | int = "none"
        self._serving: dict[str, list[base.Replica]] = {}
        self._ticked = clock()

    def add(self, name: str, url: str, description: Description | None = None) -> Replica:
        """Add a replica; it takes no traffic until it is up."""
        description = description or Description()
        replica = Replica(name, url, description, self._limit(description))
        self.replicas[name] = replica
        self._serving.clear()
        return replica

    def remove(self, name: str) -> None:
        """Forget a replica; requests that it still answers release their load on the object they hold."""
        replica = self.replicas.pop(name, None)
        if replica is not None:
            replica.gone = True
            self.tripped.discard(replica)
            self._serving.clear()
            self.freed()

    def hold(self, name: str, why: str) -> None:
        """Give a replica no new requests, until each reason to is gone."""
        self.replicas[name].held.add(why)
        self._serving.clear()
        self.freed()

    def let(self, name: str, why: str) -> None:
        """One reason to give a replica no new requests is gone."""
        self.replicas[name].held.discard(why)
        self._serving.clear()
        self.freed()

    def describe(self, name: str, description: Description) -> None:
        """Take in what a replica says of itself."""
        replica = self.replicas[name]
        if description.max_seqs != replica.description.max_seqs:
            self._give(replica, self._limit(description))
        replica.description = description
        replica.view.slots = description.max_seqs
        self._serving.clear()

    def mark(self, name: str, *, up: bool) -> bool:
        """Take a replica in or out of rotation; True if that is a change."""
        replica = self.replicas.get(name)
        if replica is None or replica.up == up:
            return False
        if up:
            self._begin_slowly(replica)
        replica.up = up
        self._serving.clear()
        self.freed()
        if (
            up and not replica.view.recent_tokens
        ):  # one that comes new is not flooded for having done nothing yet
            others = [r.view.recent_tokens for r in self.replicas.values() if r.up and r is not replica]
            replica.view.recent_tokens = sum(others) / len(others) if others else 0.0
        return True

    def restarted(self, name: str) -> None:
        """Forget what was learned about a process that is gone."""
        replica = self.replicas[name]
        replica.rate = ReplicaRate()
        replica.reports_cached, replica._without = None, 0  # noqa: SLF001 - the fleet owns its replicas
        replica.breaker.reset()
        self.tripped.discard(replica)
        replica.caution = Caution()
        replica.view.soft_limit = replica.caution.limit(self.clock())
        replica.view.recent_tokens = 0.0
        replica.view.kv_usage = None
        self._give(replica, self._limit(replica.description))

    def missed(self, name: str) -> None:
        """A probe of a replica was not answered in time."""
        replica = self.replicas[name]
        replica.caution.missed(replica.view.in_flight)
        replica.view.soft_limit = replica.caution.limit(self.clock())

    def answered(self, name: str) -> None:
        """A probe of a replica was answered in time."""
        replica = self.replicas[name]
        if replica.caution.suspect:
            replica.caution.answered()
            replica.view.soft_limit = replica.caution.limit(self.clock())

    def limit(self, concurrency: str | int) -> None:
        """Limit what each replica is given at once: `none`, `adaptive`, or so many sequences."""
        self._concurrency = concurrency
        for replica in self.replicas.values():
            self._give(replica, self._limit(replica.description))

    def candidates(self, model: str) -> list[base.Replica]:
        """The replicas that may take a request for `model` now, in a stable order; any model if empty.

        The list is not to be changed.
        """
        found = self._serving.get(model)
        if found is None:
            replicas = sorted(self.replicas.values(), key=lambda replica: replica.name)
            usable = [r for r in replicas if r.usable and (not model or model in r.description.models)]
            # Where every breaker is open none says which is better, and what fails may be the requests.
            found = [r.view for r in usable if r.breaker.admits] or [r.view for r in usable]
            if found:  # names that nobody serves come from clients and must not grow this map
                self._serving[model] = found
        return found

    def reconsider(self) -> None:
        """A replica may have come to be a candidate, or none."""
        self._serving.clear()
        self.freed()

    def on_trial(self, model: str) -> base.Replica | None:
        """A replica that one request should be tried on, if there is one for this model."""
        for replica in self.tripped:
            if replica.breaker.awaits_trial and any(replica.view is view for view in self.candidates(model)):
                return replica.view
        return None

    def reserve(self, name: str, uncached: int, sequences: int, *, stream: bool) -> Reservation:
        """Count a request against a replica from now on."""
        replica = self.replicas[name]
        reservation = Reservation(self, replica, uncached, sequences, stream=stream)
        if replica.breaker.state:
            replica.breaker.lend(reservation, self.clock())
            self._serving.clear()
        return reservation

    def _begin_slowly(self, replica: Replica) -> None:
        """A replica comes where others have long been: it is not given everything at once."""
        now, models = self.clock(), replica.description.models.keys()
        replica.came_at = now
        for other in self.replicas.values():
            if other.up and now - other.came_at > RAMP_SECONDS and models & other.description.models.keys():
                replica.caution.came(now)
                replica.view.soft_limit = replica.caution.limit(now)
                return

    def _limit(self, description: Description) -> Limit:
        return concurrency.limit(self._concurrency, description.max_seqs, self.clock())

    @staticmethod
    def _give(replica: Replica, limit: Limit) -> None:
        replica.limit, replica.view.limit = limit, limit.at(replica.view.running)

    def tick(self) -> None:
        """Let recent work fade and move overdue prefills on; cheap, called before each decision."""
        now = self.clock()
        elapsed = now - self._ticked
        if elapsed < TICK_SECONDS:
            return
        self._ticked = now
        fade, doubt = exp(-elapsed / RECENT_SECONDS), exp(-elapsed / RATE_SECONDS)
        for replica in self.tripped:
            if replica.breaker.tick(now):
                self._serving.clear()
        for replica in self.replicas.values():
            if replica.caution.active:
                replica.view.soft_limit = replica.caution.limit(now)
            replica.view.recent_tokens *= fade
            replica.rate.fade(doubt)
            replica.judge(self.line)
            for reservation in [r for r in replica.unseen if r.overdue(now)]:
                reservation.first_token(now)


def _nobody() -> None:
    """What waits for room while nothing limits the replicas: nothing."""
