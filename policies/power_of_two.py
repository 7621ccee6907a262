"""The less loaded of two replicas drawn by chance.

Idea
    Two random choices are almost as good as looking at all (Mitzenmacher 2001), and when loads are stale
    they are better: proxies that look at the same numbers do not all run to the same replica.
Use when
    The fleet is large, or several proxies share it, and prompts share little.
Cost
    O(choices), whatever the size of the fleet.
How it fails
    Blind to caches. In a small fleet it misses an idle replica that least_load would have found.
Parameters
    More choices come closer to least_load, in its strengths and its weaknesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from policies.base import Decision, Replica, Request
from policies.registry import parameter, register
from policies.scoring import least_loaded


@register("power_of_two")
@dataclass(slots=True)
class PowerOfTwo:
    """The less loaded of a few replicas drawn by chance."""

    choices: int = parameter(2, "replicas drawn for each request", least=1)

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:  # noqa: ARG002
        """Draw some distinct replicas and take the least loaded."""
        return Decision(least_loaded(rng.sample(replicas, min(self.choices, len(replicas))), rng))
