"""The replica with the fewest sequences in flight.

Idea
    Join the shortest queue; among equals the one with fewer prompt tokens to prefill, then chance.
Use when
    Prompts share little, replicas are alike, and one proxy sees all the traffic.
Cost
    O(replicas).
How it fails
    Blind to caches. Several proxies that each see their own requests only, or loads that arrive late, all
    choose the same replica at once. A sequence counts one whether its prompt has ten tokens or a hundred
    thousand.
Parameters
    None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from policies.base import Decision, Replica, Request
from policies.registry import register
from policies.scoring import least_loaded


@register("least_load")
@dataclass(slots=True)
class LeastLoad:
    """The replica with the fewest sequences in flight."""

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:  # noqa: ARG002
        """Take the least loaded replica."""
        return Decision(least_loaded(replicas, rng))
