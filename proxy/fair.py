"""Who is next among callers that wait: deficit round robin over them, counted in tokens. Pure.

Invariants: while two callers wait, what each was given differs by less than a quantum and one request of
each; a caller waits for at most one turn of each other. Leaving costs the same however many wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from math import ceil

from proxy.concurrency import Allowance

QUANTUM = 4096
"""Uncached tokens that a caller may have in one turn."""


class Ticket:
    """One request that waits. Told apart by identity."""

    __slots__ = ("caller", "model", "rank", "ready", "sequences", "since", "tokens", "waits")

    def __init__(
        self,
        model: str,
        rank: int,
        caller: str,
        tokens: int,
        sequences: int,
        since: float,
        ready: Callable[[Allowance | None], None],
    ) -> None:
        self.model = model
        self.rank = rank
        """Of its class: 0 goes first."""
        self.caller = caller
        self.tokens = max(1, tokens)
        """What it counts among callers: uncached prompt tokens, of all its sequences."""
        self.sequences = sequences
        self.since = since
        self.ready = ready
        """Called once when the wait ends, with what it may take of a replica, or None if its time is up."""
        self.waits = True


class _Flow:
    """What one caller waits for, in order."""

    __slots__ = ("deficit", "tickets")

    def __init__(self) -> None:
        self.deficit = 0
        """Tokens that it may still have in this turn."""
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()

    @property
    def first(self) -> Ticket:
        return next(iter(self.tickets))

    @property
    def can_pay(self) -> bool:
        return self.first.tokens <= self.deficit


class FairQueue:
    """Tickets of one class and one model."""

    __slots__ = ("_flows", "served")

    def __init__(self, now: float) -> None:
        self.served = now
        """When one was last let in, or the first began to wait."""
        self._flows: OrderedDict[str, _Flow] = OrderedDict()
        """By caller, in the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._flows)

    def add(self, ticket: Ticket) -> None:
        """Put a ticket behind those of its caller."""
        flow = self._flows.get(ticket.caller)
        if flow is None:
            flow = self._flows[ticket.caller] = _Flow()
        flow.tickets[ticket] = None

    def first(self) -> Ticket:
        """The ticket whose turn it is, which it stays until it is served or removed. Not when empty."""
        flows = self._flows
        flow = next(iter(flows.values()))
        if len(flows) == 1 or flow.can_pay:
            return flow.first
        for _ in range(len(flows)):  # one round
            flow = self._turn()
            flow.deficit += QUANTUM
            if flow.can_pay:
                return flow.first
        short = min(each.first.tokens - each.deficit for each in flows.values())
        rounds = ceil(short / QUANTUM)  # as many more as it takes for someone's, at once
        for each in flows.values():
            each.deficit += rounds * QUANTUM
        while not flow.can_pay:
            flow = self._turn()
        return flow.first

    def serve(self, ticket: Ticket) -> None:
        """Take the first ticket out; its `tokens` are then what its caller paid."""
        flow = self._flows[ticket.caller]
        ticket.tokens = min(ticket.tokens, flow.deficit)
        flow.deficit -= ticket.tokens
        self.remove(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take a ticket out. Nobody saves turns up: a caller that comes back begins anew."""
        flow = self._flows[ticket.caller]
        del flow.tickets[ticket]
        if not flow.tickets:
            del self._flows[ticket.caller]

    def refund(self, ticket: Ticket, tokens: int) -> None:
        """A ticket that was served costs only so many tokens after all."""
        flow = self._flows.get(ticket.caller)
        if flow is not None:
            flow.deficit += max(0, ticket.tokens - tokens)

    def _turn(self) -> _Flow:
        """The turn of the next caller."""
        self._flows.move_to_end(next(iter(self._flows)))
        return next(iter(self._flows.values()))
