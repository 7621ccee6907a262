"""The replica where the request costs the fleet least, in seconds: the default.

Idea
    With u prompt tokens not cached there and h cached, a replica costs, in seconds,

        J = (queued + u * (1 + running / decode_share)) / rate + base_ttft + slot_wait
          + alpha * share * (best - h) / fleet_rate / crowding ^ 3
          + balance * recent / fleet_rate + even * excess * u / fleet_rate + beta * kv_usage

    The first line is what this client waits for: the queue before it, its own prefill, slowed by the
    decodes beside it, and a free slot if all are taken. The second is what the fleet pays when a prefix
    that a replica holds (`best` is the longest) is computed and cached once more elsewhere. `share` rises
    from 0 where a quarter of the prompt is held to 1 where half of it is, for a small part is most likely
    a header that every replica will hold before long. `crowding` is how many requests wait at the holder
    (the emptiest of several), as a multiple of the mean where less is held, both at least 1. Who waits
    there and not elsewhere will use another copy, so a hot prefix spreads; where all have queues, a long
    one says nothing of this prefix, and copies would only make the queues longer. Where all who wait do so
    at holders, a copy costs the less the less a replica has lately computed, up to this prompt's tokens: its
    time and its cache are free, and a prefix that is hot from the start is soon everywhere. The third keeps
    work and caches even over minutes, however idle the fleet. Rates of the fleet, not of the replica, price
    what the fleet pays: a misjudged replica would otherwise attract or repel everything. `excess` is how much
    more work than the least rested has been done there, as a share of the mean. It counts by the tokens to
    compute: a long cold prompt waits a little to even out a quarter of an hour, a hit never leaves its cache
    for that, and where all have done about as much it says nothing, however busy they are.

    Costs within `tie` are equal: then the larger hit, fewer waiting, less recent work, and last the
    rendezvous owner of the prompt's start, so that proxies agree without talking and cold prefixes spread.
    What decodes is in the cost already; equals that take turns wait least.
Use when
    Prompts share prefixes, or some of them do, or it is not known. Without any sharing it is a least-work
    policy.
Cost
    O(replicas) up to `compare`, beyond it one cheap pass and `compare` costs.
How it fails
    It is as good as what it is told: an index that promises what was evicted sends work to queues for
    nothing, and a prefill rate that is far off for one replica starves or floods it. Several proxies need a
    shared view of load.
Parameters
    Seconds throughout, so that one set fits replicas and prompts of any size. `alpha` is the dial between
    spilling early (0: only the time to the first token counts, prefixes scatter) and holding on to caches.
    `balance` evens what caches turn over in seconds, `even` what adds up over long times; both are needed.
    The defaults were chosen on traces and workloads with `python -m bench simulate`; see bench/results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import ClassVar

from policies.base import Decision, Replica, Request, Terms
from policies.registry import parameter, register
from policies.scoring import rendezvous, shortlist

FEW_TOKENS = 50_000.0
"""Recent work of a replica that says nothing yet: a fleet that has just begun is not to look uneven."""


@register("prefix_cost")
@dataclass(slots=True)
class PrefixCost:
    """The replica where the request costs the fleet least, in seconds."""

    follows_prefixes: ClassVar[bool] = True
    unit: ClassVar[str] = "seconds"
    alpha: float = parameter(16.0, "charge for prefill spent again, as a multiple of its time", least=0.0)
    beta: float = parameter(0.1, "seconds charged where all of the KV cache is in use", least=0.0)
    balance: float = parameter(0.08, "charge for recent work, as a multiple of its prefill time", least=0.0)
    even: float = parameter(
        12.0, "charge for a prompt's own prefill where more work than elsewhere was done", least=0.0
    )
    decode_share: float = parameter(64.0, "running decodes that halve the prefill rate", least=1.0)
    slot_time: float = parameter(2.0, "seconds a sequence holds its slot, until that is learned", least=0.0)
    tie: float = parameter(0.05, "relative difference in cost that counts as none", least=0.0, most=1.0)
    tie_seconds: float = parameter(0.005, "difference in cost that counts as none, in seconds", least=0.0)
    compare: int = parameter(32, "replicas compared one by one; larger fleets are sampled", least=2)

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:
        """Take the replica with the least cost."""
        tokens, matched = request.tokens, request.matched
        if len(replicas) > self.compare:
            replicas = shortlist(replicas, matched, request.affinity, self.compare, rng)
        fleet_rate = sum([replica.prefill_rate for replica in replicas]) / len(replicas)
        helds = [matched.get(replica.name, 0) for replica in replicas]
        best = max(helds)
        copies = self._copies(tokens, replicas, helds, best, fleet_rate)
        balance, per_decode = self.balance / fleet_rate, 1.0 / self.decode_share
        recents = [replica.recent_tokens for replica in replicas]
        rested, even = min(recents), self.even / (fleet_rate * (sum(recents) / len(recents) + FEW_TOKENS))
        urgency = request.urgency
        costs: list[float] = []
        silent = False
        for replica, held, copy in zip(replicas, helds, copies, strict=True):
            work = replica.queued_tokens + (tokens - held) * (1.0 + replica.running * per_decode)
            cost = (
                urgency * (work / replica.prefill_rate + replica.base_ttft)
                + balance * replica.recent_tokens
                + even * (replica.recent_tokens - rested) * (tokens - held)
                + copy
            )
            if replica.slots is not None and replica.in_flight >= replica.slots:
                cost += urgency * self._slot_wait(replica, replica.slots)
            if replica.kv_usage is None:
                silent = True
            else:
                cost += self.beta * replica.kv_usage
            costs.append(cost)
        if silent:  # unknown is not zero: those that do not tell pay the average
            known = [replica.kv_usage for replica in replicas if replica.kv_usage is not None]
            if known:
                average = self.beta * sum(known) / len(known)
                costs = [
                    c if r.kv_usage is not None else c + average for r, c in zip(replicas, costs, strict=True)
                ]
        chosen = self._cheapest(request, replicas, costs)
        return Decision(chosen, compared=replicas, scores=costs)

    def explain(self, request: Request, replicas: Sequence[Replica]) -> list[Terms]:
        """Take apart the cost of each of `replicas`, at most `compare`; a property test holds the sums equal.

        What the client waits for: `queue`, `prefill`, `decodes` (beside it), `base`, `slot`. What the fleet
        pays: `recompute`, `balance`, `even`, `kv_usage`.
        """
        tokens, urgency = request.tokens, request.urgency
        helds = [request.matched.get(replica.name, 0) for replica in replicas]
        best = max(helds, default=0)
        fleet_rate = sum(replica.prefill_rate for replica in replicas) / max(1, len(replicas))
        copies = self._copies(tokens, replicas, helds, best, fleet_rate)
        known = [replica.kv_usage for replica in replicas if replica.kv_usage is not None]
        average = sum(known) / len(known) if known else 0.0
        recents = [replica.recent_tokens for replica in replicas] or [0.0]
        rested, mean = min(recents), sum(recents) / len(recents) + FEW_TOKENS
        parts: list[Terms] = []
        for replica, held, copy in zip(replicas, helds, copies, strict=True):
            seconds = urgency / replica.prefill_rate
            uncached = max(0, tokens - held)
            slots = replica.slots
            full = slots is not None and replica.in_flight >= slots
            parts.append(
                {
                    "queue": replica.queued_tokens * seconds,
                    "prefill": uncached * seconds,
                    "decodes": uncached * replica.running / self.decode_share * seconds,
                    "base": urgency * replica.base_ttft,
                    "slot": urgency * self._slot_wait(replica, slots) if full and slots is not None else 0.0,
                    "recompute": copy,
                    "balance": self.balance * replica.recent_tokens / fleet_rate,
                    "even": self.even * (replica.recent_tokens - rested) / mean * uncached / fleet_rate,
                    "kv_usage": self.beta * (average if replica.kv_usage is None else replica.kv_usage),
                }
            )
        return parts

    def _copies(
        self, tokens: int, replicas: Sequence[Replica], helds: Sequence[int], best: int, fleet_rate: float
    ) -> list[float]:
        """What the fleet pays if each of the replicas computes what another holds, in seconds."""
        if 4 * best <= tokens:
            return [0.0] * len(replicas)
        share = min(1.0, 4 * best / tokens - 1) if tokens else 1.0
        crowding, elsewhere_idle = _crowding(replicas, helds, best)
        again = self.alpha * share / (fleet_rate * crowding**3)
        if not elsewhere_idle:
            return [again * (best - held) for held in helds]
        return [
            again * (best - held) * min(1.0, replica.recent_tokens / tokens)
            for replica, held in zip(replicas, helds, strict=True)
        ]

    def _slot_wait(self, replica: Replica, slots: int) -> float:
        """Seconds until a slot is free: those ahead leave one after the other, `slots` of them at a time."""
        held_for = self.slot_time if replica.slot_time is None else replica.slot_time
        return (replica.in_flight - slots + 1) * held_for / slots

    def _cheapest(self, request: Request, replicas: Sequence[Replica], costs: Sequence[float]) -> Replica:
        """The replica of the least cost, where nearly equal costs are a tie."""
        least = min(costs)
        limit = least + max(least * self.tie, self.tie_seconds)
        best = [replica for replica, cost in zip(replicas, costs, strict=True) if cost <= limit]
        if len(best) == 1:
            return best[0]
        matched, affinity = request.matched, request.affinity
        known = request.tokens > 0  # else nothing of it is in the cost, nor in recent work
        return min(
            best,
            key=lambda replica: (
                -matched.get(replica.name, 0),
                replica.in_flight - (replica.running if known else 0),
                replica.recent_tokens,
                -rendezvous(affinity, replica),
            ),
        )


def _crowding(replicas: Sequence[Replica], helds: Sequence[int], best: int) -> tuple[float, bool]:
    """Requests that wait where `best` tokens are held, as a multiple of the mean where fewer are.

    And whether somebody waits, and all who do wait there.
    """
    others = total = crowd = 0
    least = inf
    for replica, held in zip(replicas, helds, strict=True):
        waiting = replica.in_flight - replica.running
        if held < best:
            others += 1
            total += waiting
        else:
            crowd += waiting
            least = min(least, waiting)
    crowding = max(1.0, least / max(1.0, total / others)) if others and least > 1 else 1.0
    return crowding, crowd > 0 and total == 0
