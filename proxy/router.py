"""The only composer: match -> candidates -> choose -> reserve -> predict, in one step without an await.

Synchronous and without I/O, so the simulator routes with the same code. A `Lease` is closed exactly once,
however its request ends, and nothing else gives back what `route` took.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, field
from random import Random

from policies import base
from proxy.concurrency import ALL, Allowance, has_room
from proxy.errors import NoReplica
from proxy.fleet import Fleet
from proxy.hot import Hot
from proxy.index.base import Placement, PrefixIndex
from proxy.replica import Replica, Reservation

NO_KEYS: array[int] = array("Q")


@dataclass(slots=True)
class RouteRequest:
    """What a routing decision needs to know of a request."""

    model: str = ""
    """The base model or adapter, as replicas name it; empty for any."""
    keys: array[int] = field(default_factory=lambda: NO_KEYS)
    """The chained key of each full block that is known."""
    tokens: int = 0
    """Prompt tokens; 0 if the prompt was not understood."""
    block_tokens: float = 16.0
    """Prompt tokens a block stands for (an average, where blocks are of text)."""
    affinity: int = 0
    session: str | None = None
    sequences: int = 1
    stream: bool = False
    exact: bool = True
    """False where tokens and blocks are estimates: then only a gross miss says something of the cache."""
    allowed: Allowance = ALL
    """What its class may take of each replica."""
    urgency: float = 1.0
    """What a second of waiting counts."""
    cache_read: bool = True
    """False where the engine computes the whole prompt even if it holds it."""


class Lease:
    """One request's place on one replica."""

    __slots__ = (
        "_closed",
        "_index",
        "_placement",
        "asked",
        "available",
        "choice",
        "decision",
        "matched",
        "replica",
        "request",
        "reservation",
        "terms",
    )

    def __init__(self, request: RouteRequest, replica: Replica, index: PrefixIndex) -> None:
        self.request = request
        self.replica = replica
        self.reservation: Reservation
        self.matched = 0
        """Prompt tokens that the chosen replica is believed to hold."""
        self.available = 0
        """The most that any candidate is believed to hold."""
        self.decision = "fallback"
        self.choice: base.Decision
        self.asked: base.Request
        """What the policy was told of the request."""
        self.terms: list[base.Terms] | None = None
        """What each score of `choice` is made of, where that was asked for."""
        self._index = index
        self._placement: Placement | None = None
        self._closed = False

    @property
    def foretold(self) -> bool:
        """Whether `matched` says exactly what the replica should find cached, to a block."""
        request = self.request
        return request.exact and request.sequences == 1 and request.cache_read

    def place(self) -> None:
        """The replica is about to hold the prompt, as far as later decisions are concerned."""
        if self._placement is None and self.request.keys and not self.replica.gone:
            self._placement = self._index.predict(self.replica.name, self.request.keys)

    def first_token(self, now: float) -> None:
        """The first token has come."""
        self.reservation.first_token(now)
        self.place()
        if self._placement is not None and not self.replica.gone:
            self._index.first_token(self._placement, now - self.reservation.sent_at)

    def close(self, *, answered: bool, reported: int | None = None, held: array[int] | None = None) -> None:
        """End the lease: take the load back and tell the index what became of the prompt.

        `answered`: the replica began to answer, so it holds the prompt. `reported`: prompt tokens it took
        from its cache, None if it did not say. `held`: keys of prompt and answer together, if known.
        """
        if self._closed:
            return
        self._closed = True
        self.reservation.release()
        placement = self._placement
        if placement is not None and placement.ends:
            placement.over()
        if self.replica.gone:  # what it holds went with it, and its name may be another's
            return
        if not answered:
            if placement is not None:
                self._index.retract(placement)
            return
        if placement is None:
            self.place()
            placement = self._placement
        if placement is None:
            return
        request = self.request
        if not request.stream:  # the first token of an answer that comes in one piece is not seen
            self._index.first_token(placement)
        if reported is not None and request.cache_read and self._is_evidence(reported):
            self._index.confirm(
                placement,
                round(self.matched / request.block_tokens),
                round(reported / request.block_tokens),
            )
        if held is not None and len(held) > len(request.keys):
            self._index.predict(self.replica.name, held, after=placement)

    def _is_evidence(self, reported: int) -> bool:
        """Whether reported tokens tell of this prompt's blocks: those of a batch are a sum."""
        request = self.request
        return request.sequences == 1 and (request.exact or 2 * reported < self.matched)


class Router:
    """Chooses a replica for each request."""

    def __init__(
        self,
        fleet: Fleet,
        index: PrefixIndex,
        policy: base.Policy,
        rng: Random,
        *,
        name: str = "",
        arm: str = "main",
    ) -> None:
        self.fleet = fleet
        self.index = index
        self.policy = policy
        self.rng = rng
        self.name = name
        """The policy's, for whoever reads the metrics."""
        self.arm = arm
        """Which side of a canary this is."""
        self.among: Callable[[list[base.Replica]], list[base.Replica]] | None = None
        """Those of some candidates that are this side's, if it has replicas of its own; all, if none is."""
        self.hot: Hot | None = None
        """Who watches hot prefixes and leads their requests, if anybody does."""
        self.to_explain = 0
        """Decisions to come whose scores are taken apart; whoever keeps the parts sets it anew."""

    def route(self, request: RouteRequest, exclude: Collection[str] = ()) -> Lease:
        """Choose among the replicas not in `exclude`, and count the request against the one chosen.

        Raises NoReplica if there is none.
        """
        asking, matched, everyone, decision = self.decide(request, exclude)
        fleet = self.fleet
        name = decision.replica.name
        lease = Lease(request, fleet.replicas[name], self.index)
        lease.choice, lease.asked = decision, asking
        if self.to_explain:  # before this request counts
            self.to_explain -= 1
            lease.terms = base.terms(self.policy, asking, decision)
        if matched:
            lease.matched = matched.get(name, 0)
            lease.available = max([matched.get(view.name, 0) for view in everyone])
        lease.reservation = fleet.reserve(
            name, request.tokens - lease.matched, request.sequences, stream=request.stream
        )
        lease.decision = classify(request, lease, by_session=decision.by_session)
        if lease.replica.shares_in_flight:
            lease.place()
        if (hot := self.hot) is not None:
            hot.note(lease)
        return lease

    def decide(
        self, request: RouteRequest, exclude: Collection[str] = (), *, rehearses: bool = False
    ) -> tuple[base.Request, dict[str, int], list[base.Replica], base.Decision]:
        """Choose: what the policy was told, what replicas hold, who might have been chosen, and who was.

        Where it `rehearses`, whatever decides is left as it is. Raises NoReplica.
        """
        policy, rng = (copy(self.policy), Random()) if rehearses else (self.policy, self.rng)
        fleet = self.fleet
        fleet.tick()
        candidates = fleet.candidates(request.model)
        if exclude:
            candidates = [view for view in candidates if view.name not in exclude]
        if self.among is not None:
            candidates = self.among(candidates)
        everyone = candidates
        if fleet.tripped and not exclude and (trial := fleet.on_trial(request.model)) is not None:
            candidates = [trial]
        if not candidates:
            raise NoReplica(f"no usable replica serves {request.model!r} right now", retry_after=1.0)
        matched = credited = self.matches(request)
        hot = self.hot
        if hot is not None and hot.active:
            credited, candidates = hot.lead(request, matched, candidates, rehearses=rehearses)
        asking = base.Request(
            request.tokens, credited, request.affinity, request.session, request.sequences, request.urgency
        )
        decision = policy.choose(asking, candidates, rng)
        chosen = decision.replica
        if chosen.in_flight >= chosen.soft_limit or not has_room(chosen, request.sequences, request.allowed):
            free = [view for view in candidates if has_room(view, request.sequences, request.allowed)]
            free = [view for view in free if view.in_flight < view.soft_limit] or free
            if free and not any(view is chosen for view in free):
                decision = policy.choose(asking, free, rng)
        return asking, matched, everyone, decision

    def matches(self, request: RouteRequest) -> dict[str, int]:
        """Replica name to prompt tokens it can take from its cache.

        A hit never counts the last token: engines compute at least that one, so a prompt that ends on a
        block boundary loses its last block.
        """
        if not request.keys or not request.cache_read:
            return {}
        cap = int((request.tokens - 1) // request.block_tokens * request.block_tokens)
        size, held = request.block_tokens, self.index.match(request.keys)
        if not held.keys() <= self.fleet.replicas.keys():
            for ghost in held.keys() - self.fleet.replicas.keys():
                self.index.forget(ghost)
                held = {name: blocks for name, blocks in held.items() if name != ghost}
        return {name: min(int(blocks * size), cap) for name, blocks in held.items()}


def classify(request: RouteRequest, lease: Lease, *, by_session: bool) -> str:
    """Name a decision for the metrics: see the contract's `x-warmroute-decision`."""
    if by_session:
        return "session"
    if not request.tokens:
        return "fallback"
    if lease.matched < lease.available:
        return "spill"
    if not lease.matched:
        return "cold"
    return "hit" if 2 * lease.matched >= request.tokens else "partial"
