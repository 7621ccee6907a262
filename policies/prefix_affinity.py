"""The best weighted sum of cached prefix, short queue and free cache.

Idea
    Score each replica from 0 to 1 on three counts and add them up: the share of the prompt it holds, how
    short its prefill queue is among the fleet's, and how much of its KV cache is free. The weights 3:2:2
    are the ones that llm-d's inference scheduler ships with.
Use when
    Rates and latencies cannot be learned, or a setup is to behave as llm-d's does.
Cost
    O(replicas).
How it fails
    A score has no unit. A queue of two tokens against one scores like a queue of two minutes against one;
    the share of a short prompt weighs as much as that of a long one. So the weights fit one load and one
    length, and not another.
Parameters
    Raise `prefix` when hits are lost to spilling, the other two when hot prefixes queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from policies.base import Decision, Replica, Request, Terms
from policies.registry import parameter, register
from policies.scoring import owner


@register("prefix_affinity")
@dataclass(slots=True)
class PrefixAffinity:
    """The best weighted sum of cached prefix, short queue and free cache."""

    follows_prefixes: ClassVar[bool] = True
    unit: ClassVar[str] = "points"
    prefix: float = parameter(3.0, "weight of the share of the prompt that the replica holds", least=0.0)
    queue: float = parameter(2.0, "weight of a short prefill queue, against the fleet's longest", least=0.0)
    space: float = parameter(2.0, "weight of free KV cache (unknown: of few sequences in flight)", least=0.0)

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:  # noqa: ARG002
        """Take the replica with the highest score; equal ones by rendezvous on the prompt's start."""
        tokens = max(request.tokens, 1)
        longest = max(1, *(replica.queued_tokens for replica in replicas))
        busiest = max(1, *(replica.in_flight for replica in replicas))
        costs: list[float] = []
        for replica in replicas:
            held = min(request.matched.get(replica.name, 0) / tokens, 1.0)
            used = replica.in_flight / busiest if replica.kv_usage is None else replica.kv_usage
            costs.append(
                self.prefix * (1 - held) + self.queue * replica.queued_tokens / longest + self.space * used
            )
        least = min(costs) + 1e-9
        best = [replica for replica, cost in zip(replicas, costs, strict=True) if cost <= least]
        chosen = best[0] if len(best) == 1 else owner(request.affinity, best)
        return Decision(chosen, compared=replicas, scores=costs)

    def explain(self, request: Request, replicas: Sequence[Replica]) -> list[Terms]:
        """What each of `replicas` lacks, weighted: held `prefix`, short `queue`, free `space`.

        A property test holds the sums equal to the scores.
        """
        tokens = max(request.tokens, 1)
        longest = max(1, *(replica.queued_tokens for replica in replicas))
        busiest = max(1, *(replica.in_flight for replica in replicas))
        parts: list[Terms] = []
        for replica in replicas:
            held = min(request.matched.get(replica.name, 0) / tokens, 1.0)
            used = replica.in_flight / busiest if replica.kv_usage is None else replica.kv_usage
            parts.append(
                {
                    "prefix": self.prefix * (1 - held),
                    "queue": self.queue * replica.queued_tokens / longest,
                    "space": self.space * used,
                }
            )
        return parts
