"""Each replica in turn.

Idea
    Count requests and send the k-th to replica k modulo the number of replicas.
Use when
    Prompts share nothing and replicas are alike; as the baseline that every comparison needs.
Cost
    O(1).
How it fails
    Blind to caches: a prefix that arrives N times is computed on every replica, and the fleet caches it N
    times over. Blind to load: long prompts pile up behind each other by chance. When replicas come and go
    the turn skips.
Parameters
    None. The position is the only state that a policy here keeps; losing it does no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from policies.base import Decision, Replica, Request
from policies.registry import register


@register("round_robin")
@dataclass(slots=True)
class RoundRobin:
    """Each replica in turn."""

    _turn: int = field(default=-1, init=False, repr=False)

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:  # noqa: ARG002
        """Take the next replica."""
        if len(replicas) == 1:  # a retry with nobody else left takes no turn
            return Decision(replicas[0])
        self._turn += 1
        return Decision(replicas[self._turn % len(replicas)])
