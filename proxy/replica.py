"""One replica, and what one request puts on it from dispatch to the end of its stream.

Synchronous and without I/O; what they need of the fleet that keeps them is `Keeper`. Invariant: what a
`Reservation` adds it takes back exactly once, whatever ends the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from policies import base
from proxy.breaker import Breaker
from proxy.caution import Caution
from proxy.concurrency import Limit
from proxy.description import NOTHING, Description, Load
from proxy.learning import FleetLine, ReplicaRate

SLOT_STEP = 0.1
"""Weight of one request in the learned time that a sequence holds its slot."""
USAGE_WITHOUT_CACHED = 20
"""Replies in a row whose usage lacks cached tokens before a replica counts as not reporting them: SGLang
leaves them out where they are 0."""


class Keeper(Protocol):
    """The fleet, as far as its replicas' load concerns it."""

    clock: Callable[[], float]
    line: FleetLine
    tripped: set[Replica]
    freed: Callable[[], None]

    def reconsider(self) -> None:
        """A replica may have come to be a candidate, or none."""


class Replica:
    """A replica, its state, and the view of it that policies see."""

    __slots__ = (
        "_without",
        "answers",
        "breaker",
        "came_at",
        "caution",
        "description",
        "elsewhere",
        "gone",
        "held",
        "limit",
        "lines",
        "rate",
        "reports_cached",
        "server_name",
        "unseen",
        "up",
        "url",
        "view",
    )

    def __init__(self, name: str, url: str, description: Description, limit: Limit) -> None:
        self.url = url
        self.server_name: str | None = None
        """Whom its certificate names, where that is not the URL's host."""
        self.lines = b""
        """What requests to it carry beside their clients' fields."""
        self.description = description
        self.up = False
        self.held: set[str] = set()
        """Why it gets no new requests although it may be up."""
        self.gone = False
        """Whether it has left the fleet: another may bear its name, and what it still does counts nowhere."""
        self.view = base.Replica(name, slots=description.max_seqs, limit=limit.value)
        self.limit = limit
        self.breaker = Breaker()
        self.caution = Caution()
        self.came_at = 0.0
        """When it last came up."""
        self.answers = 0
        """First tokens and whole answers that have come: signs of life."""
        self.rate = ReplicaRate()
        self.reports_cached: bool | None = None
        """Whether its usage tells cached tokens; None until a reply has shown it."""
        self._without = 0
        self.elsewhere = NOTHING
        """What other proxies have there; the view counts it too."""
        self.unseen: set[Reservation] = set()
        """Those that prefill and whose first token will not be seen: their answers come in one piece."""

    @property
    def name(self) -> str:
        """The name in settings, headers and metrics."""
        return self.view.name

    @property
    def usable(self) -> bool:
        """Whether it may be given requests."""
        return self.up and not self.held

    @property
    def load(self) -> Load:
        """What this proxy has there."""
        view, others = self.view, self.elsewhere
        return Load(
            view.in_flight - others.in_flight,
            view.queued_tokens - others.queued_tokens,
            view.running - others.running,
        )

    def share(self, elsewhere: Load) -> None:
        """Other proxies have so much there now."""
        view, before = self.view, self.elsewhere
        view.in_flight += elsewhere.in_flight - before.in_flight
        view.queued_tokens += elsewhere.queued_tokens - before.queued_tokens
        view.running += elsewhere.running - before.running
        self.elsewhere = elsewhere

    def saw_usage(self, *, cached: bool, denied: bool = False) -> None:
        """A reply told usage, with cached tokens or without.

        `denied`: with a null in their place. Many without, and never one with, say no too.
        """
        if cached:
            self.reports_cached = True
        elif denied:
            self.reports_cached = False
        elif self.reports_cached is None:
            self._without += 1
            if self._without >= USAGE_WITHOUT_CACHED:
                self.reports_cached = False

    def judge(self, line: FleetLine) -> None:
        """Bring the view's speeds up to date."""
        self.view.prefill_rate = self.rate.tokens_per_second(line)
        self.view.base_ttft = line.base_seconds

    @property
    def shares_in_flight(self) -> bool:
        """Whether a prefix can be reused while its first request still computes it (SGLang: only after)."""
        return self.description.engine != "sglang"


class Reservation:
    """Load that one request puts on one replica, from dispatch to the end of its stream."""

    __slots__ = (
        "_ahead",
        "_fleet",
        "_prefilling",
        "_released",
        "generation",
        "replica",
        "sent_at",
        "sequences",
        "stream",
        "uncached",
    )

    def __init__(
        self, fleet: Keeper, replica: Replica, uncached: int, sequences: int, *, stream: bool
    ) -> None:
        self._fleet = fleet
        self.replica = replica
        self.generation = replica.breaker.generation
        self.uncached = uncached
        self.sequences = sequences
        self.sent_at = fleet.clock()
        self.stream = stream
        self._prefilling = True
        self._released = False
        view = replica.view
        self._ahead = view.queued_tokens
        view.in_flight += sequences
        view.queued_tokens += uncached
        view.recent_tokens += uncached
        if not stream:
            replica.unseen.add(self)

    def first_token(self, now: float) -> None:
        """The prefill is done: its tokens queue no longer, and its time teaches the rate."""
        if not self._prefilling or self._released:
            return
        replica = self.replica
        if self.stream:
            replica.answers += 1
            if replica.breaker.trial is self:  # it works; how long it goes on is another matter
                self.judge(healthy=True)
            tokens, seconds, line = self._ahead + self.uncached, now - self.sent_at, self._fleet.line
            line.observe(tokens, seconds)
            replica.rate.observe(tokens, seconds, line)
            replica.judge(line)
            replica.limit.observe(now, self.sent_at, self.uncached, self._ahead, replica.view.in_flight)
        self._prefilled()
        view = replica.view
        view.running += self.sequences
        view.limit = replica.limit.at(view.running)
        self._fleet.freed()

    def judge(self, *, healthy: bool) -> None:
        """What its outcome says of the replica, if anything; before `release`."""
        replica = self.replica
        breaker = replica.breaker
        if healthy:
            replica.answers += 1
            if (breaker.failures or breaker.state) and breaker.succeeded(self.generation):
                self._fleet.tripped.discard(replica)
                self._fleet.reconsider()
        elif breaker.failed(self.generation, self._fleet.clock()) and not replica.gone:
            self._fleet.tripped.add(replica)
            self._fleet.reconsider()

    def pressed(self) -> None:
        """The replica has turned it away for now: it is full."""
        replica, now = self.replica, self._fleet.clock()
        replica.caution.pressed(replica.view.in_flight - self.sequences, now)
        replica.view.soft_limit = replica.caution.limit(now)

    def overdue(self, now: float) -> bool:
        """Whether an answer that comes in one piece has surely left its prefill behind."""
        view = self.replica.view
        prefill = (self._ahead + self.uncached) / view.prefill_rate
        return now >= self.sent_at + view.base_ttft + 2 * prefill

    def release(self) -> None:
        """Take the load back. Further calls change nothing."""
        if self._released:
            return
        self._released = True
        breaker = self.replica.breaker
        if breaker.trial is self and breaker.give_back(self):
            self._fleet.reconsider()
        view = self.replica.view
        if self._prefilling:
            self._prefilled()
        else:
            view.running -= self.sequences
            held = self._fleet.clock() - self.sent_at
            known = view.slot_time
            view.slot_time = held if known is None else known + SLOT_STEP * (held - known)
        view.in_flight -= self.sequences
        view.limit = self.replica.limit.at(view.running)
        self._fleet.freed()

    def _prefilled(self) -> None:
        self._prefilling = False
        view = self.replica.view
        view.queued_tokens -= self.uncached
        if not self.stream:
            self.replica.unseen.discard(self)
