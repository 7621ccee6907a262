"""Who is let in when there is not room for all: classes, fair queues, ceilings, time limits.

Pure: the fleet's clock and loads, no I/O, no waiting of its own. Room is looked at where load is counted, in
the fleet, and whoever is let in takes it at once, inside `ready`: so nothing is promised that another could
take, and a request is routed when it leaves the queue, on fresh state.

Invariants: a ticket's `ready` is called at most once, and never after `leave`; who has left counts nowhere;
a class that waits is served within `ageing` seconds while the fleet has any room at all. While nobody waits
and there is room, nothing here is built or kept.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from math import inf

from proxy.concurrency import ALL, Allowance, any_room
from proxy.errors import Shed
from proxy.fair import FairQueue, Ticket
from proxy.fleet import Fleet
from proxy.priority import Priority
from proxy.reserve import Reserve

SEEN_SECONDS = 60.0
"""How long after its last request a class is still kept room for."""
QUEUE, WAIT, WEIGHT = 1000, 120.0, 1.0
"""What a class has where the settings do not name it."""
AHEAD = 0.1
"""Seconds of prefill that may be ahead of the last class at replicas that are not kept from it: with none
ahead an engine idles until the next comes, and those above have replicas of their own meanwhile."""
DRAIN = 32
"""Requests last let in that the drain rate is taken from."""
SHORTEST, LONGEST = 1.0, 120.0
"""Seconds that Retry-After may say."""


class PriorityClass:
    """A class: what it may take, and who waits in it."""

    __slots__ = (
        "allowed", "drained", "kept", "lanes", "length", "name", "rank", "seen", "tag", "tickets", "urgency",
        "wait", "weight",
    )  # fmt: skip

    def __init__(self, name: str, rank: int, settings: Priority, most: Allowance) -> None:
        self.name = name
        self.rank = rank
        prefill = min(settings.prefill.get(name, inf), most.prefill)
        allowed = Allowance(settings.ceilings.get(name, 1.0), prefill)
        self.allowed = most if allowed == most else allowed
        """While a higher class has requests."""
        self.kept: dict[str, Allowance] = {}
        """Likewise, of models of which replicas are kept from it."""
        self.urgency = settings.urgency.get(name, 1.0)
        self.weight = settings.weights.get(name, WEIGHT)
        self.length = settings.queue.get(name, QUEUE)
        self.wait = settings.wait.get(name, WAIT)
        self.seen = float("-inf")
        """When it last had a request."""
        self.tag = 0.0
        """Its place in weighted fair order: tokens let in over its weight."""
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()
        """All that wait in it, oldest first."""
        self.lanes: OrderedDict[str, FairQueue] = OrderedDict()
        """Those by model, in the order of their turns."""
        self.drained: deque[float] = deque(maxlen=DRAIN)
        """When the last of them were let in."""

    def finish(self) -> float:
        """Its tag once its next has been let in."""
        return self.tag + next(iter(self.lanes.values())).first().tokens / self.weight


class Admission:
    """The queue before routing."""

    def __init__(self, fleet: Fleet, settings: Priority, *, prefill: float = inf) -> None:
        """`prefill`: seconds of it that may be ahead of any request at a replica that it is sent to.

        What would wait longer there is better kept here, where it can take the first replica that is free.
        """
        self._fleet = fleet
        self._all = Allowance(1.0, prefill)
        self._ageing = settings.ageing
        self.classes = [
            PriorityClass(name, rank, settings, self._all) for rank, name in enumerate(settings.classes)
        ]
        self.waiting = 0
        """Requests that wait, of all classes."""
        self.shed: dict[tuple[str, str], int] = {}
        """(class, `full` or `late`) to requests turned away."""
        self.reserve = Reserve(fleet)
        """What is kept from the last class while it has long prompts."""
        self._now = 0.0
        """Where weighted fair order has come to: the least tag that was last served."""
        self._pumping = False

    # ---- asked for every request ----------------------------------------------------------------------

    def allowed(self, rank: int, now: float, model: str) -> Allowance:
        """What a class may take now: all there is, unless a higher class may need some of it."""
        mine = self.classes[rank]
        mine.seen = now
        if mine.allowed is not self._all:
            for higher in self.classes[:rank]:
                if now - higher.seen < SEEN_SECONDS:
                    return mine.kept.get(model, mine.allowed) if mine.kept else mine.allowed
        return self._all

    def sent(self, model: str, rank: int, tokens: int, sequences: int) -> None:
        """A request was sent, with so many uncached tokens. Needed only while `reserve.watched`."""
        self.reserve.sent(model, tokens, sequences, last=rank == len(self.classes) - 1)

    def passes(self, model: str, sequences: int, allowed: Allowance) -> bool:
        """Whether a request need not wait: nobody does, and there is room, or nobody to wait for."""
        if self.waiting:
            return False
        views = self._fleet.candidates(model)
        return any_room(views, sequences, allowed) or not views

    # ---- the queue ----------------------------------------------------------------------------------------

    def enter(
        self,
        model: str,
        rank: int,
        caller: str,
        tokens: int,
        sequences: int,
        ready: Callable[[Allowance | None], None],
    ) -> Ticket:
        """Wait for room. `ready` may be called before this returns. Raises Shed if the queue is full.

        `tokens`: uncached prompt tokens, as far as is known.
        """
        mine, now = self.classes[rank], self._fleet.clock()
        if len(mine.tickets) >= mine.length:
            raise self._shed(mine, "full", f"the queue of class {mine.name!r} is full")
        ticket = Ticket(model, rank, caller, tokens, sequences, now, ready)
        if not mine.tickets:
            mine.tag = max(mine.tag, self._now)
        mine.tickets[ticket] = None
        lane = mine.lanes.get(model)
        if lane is None:
            lane = mine.lanes[model] = FairQueue(now)
        lane.add(ticket)
        self.waiting += 1
        self.pump()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A request waits no longer, whatever the reason. Further calls change nothing."""
        if ticket.waits:
            self._lane(ticket).remove(ticket)
            self._out(ticket)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """A request that was let in costs only so many uncached tokens."""
        lane = self.classes[ticket.rank].lanes.get(ticket.model)
        if lane is not None:
            lane.refund(ticket, tokens)

    def pump(self) -> None:
        """Let in whom there is room for. Called whenever there may be more of it."""
        if not self.waiting or self._pumping:  # whoever is let in changes loads; that is looked at below
            return
        self._pumping = True
        try:
            while self.waiting and self._serve_one():
                pass
        finally:
            self._pumping = False

    def expire(self) -> None:
        """Turn away those that have waited for too long, and look for room that nobody told of.

        To be called about once a second.
        """
        now = self._fleet.clock()
        for mine in self.classes:
            while mine.tickets:
                ticket = next(iter(mine.tickets))
                if now - ticket.since < mine.wait:
                    break
                self.leave(ticket)
                ticket.ready(None)
        if self.reserve.watched and self.reserve.tick():
            self.classes[-1].kept = {
                model: Allowance(prefill=min(AHEAD, self._all.prefill), kept=watched.kept)
                for model, watched in self.reserve.watched.items()
                if watched.kept
            }
        self.pump()

    def late(self, rank: int) -> Shed:
        """The error for a request whose time is up; counts it."""
        mine = self.classes[rank]
        return self._shed(mine, "late", f"no room within {mine.wait:g} s for class {mine.name!r}")

    def queued(self) -> dict[str, int]:
        """Class to requests that wait in it."""
        return {mine.name: len(mine.tickets) for mine in self.classes}

    # ---- who is next --------------------------------------------------------------------------------------

    def _serve_one(self) -> bool:
        now = self._fleet.clock()
        waiting = [mine for mine in self.classes if mine.tickets]
        waiting.sort(key=PriorityClass.finish)  # stable: of equals, the higher class
        if any(self._serve(mine, now, aged=True) for mine in waiting):
            return True
        for place, mine in enumerate(waiting):
            if self._serve(mine, now, aged=False):
                for passed_over in waiting[:place]:  # who could not use its turn does not keep it
                    passed_over.tag = max(passed_over.tag, self._now)
                return True
        return False

    def _serve(self, mine: PriorityClass, now: float, *, aged: bool) -> bool:
        """Let in the next of a class, of the first model that has room for it."""
        for model, lane in mine.lanes.items():
            if aged and now - lane.served < self._ageing:
                continue
            allowed = ALL if aged else self.allowed(mine.rank, now, model)
            ticket = lane.first()
            views = self._fleet.candidates(model)
            if views and not any_room(views, ticket.sequences, allowed):
                continue
            mine.lanes.move_to_end(model)
            self._now = max(self._now, mine.tag)
            mine.tag += ticket.tokens / mine.weight
            mine.drained.append(now)
            if mine.rank and mine is self.classes[-1]:
                self.reserve.let_in(model, ticket.tokens)
            lane.serve(ticket)
            lane.served = now
            self._out(ticket)
            ticket.ready(allowed)
            return True
        return False

    def _lane(self, ticket: Ticket) -> FairQueue:
        return self.classes[ticket.rank].lanes[ticket.model]

    def _out(self, ticket: Ticket) -> None:
        mine = self.classes[ticket.rank]
        ticket.waits = False
        del mine.tickets[ticket]
        if not mine.lanes[ticket.model]:
            del mine.lanes[ticket.model]
        self.waiting -= 1

    def _shed(self, mine: PriorityClass, reason: str, message: str) -> Shed:
        key = mine.name, reason
        self.shed[key] = self.shed.get(key, 0) + 1
        return Shed(message, retry_after=self._retry_after(mine))

    def _retry_after(self, mine: PriorityClass) -> float:
        """Seconds in which what waits now is let in, at the rate of the last ones."""
        drained, now = mine.drained, self._fleet.clock()
        if not drained:
            return LONGEST if mine.tickets else SHORTEST
        seconds = (now - drained[0]) / len(drained) * (len(mine.tickets) + 1)
        return min(max(seconds, SHORTEST), LONGEST)
