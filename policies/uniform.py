"""A replica by chance: the policy `random`, whose file must not take the name of a standard module.

Idea
    Every replica is as likely as any other, every time.
Use when
    A second baseline is wanted: what any policy must beat, without round robin's even spacing.
Cost
    O(1).
How it fails
    As round robin does, and unevenly: at any moment some replicas have by chance two or three times their
    share.
Parameters
    None.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from policies.base import Decision, Replica, Request
from policies.registry import register


@register("random")
@dataclass(slots=True)
class Uniform:
    """A replica by chance."""

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:  # noqa: ARG002
        """Draw a replica."""
        return Decision(replicas[int(rng.random() * len(replicas))])
