"""The replica that owns the session, or the start of the prompt, unless it has more than its share.

Idea
    Rendezvous hashing gives each key a fixed order of replicas. Take the first whose load stays within
    `bound` times the average (consistent hashing with bounded loads, Mirrokni et al. 2018). The key is the
    client's session if it sent one, else the hash of the prompt's first blocks.
Use when
    Sessions are many and of similar weight, and several proxies must agree without sharing anything.
Cost
    O(replicas): one hash each.
How it fails
    It does not know what is cached. Prompts that differ after the first blocks share a key, so one system
    prompt fills one replica up to the bound; and what the bound diverts finds nothing cached where it goes.
    A key's second replica is fixed too, so two hot keys may collide while others idle.
Parameters
    A bound near 1 spreads like least_load and loses hits; a large one is plain hashing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from policies.base import Decision, Replica, Request
from policies.registry import parameter, register
from policies.scoring import hash_text, least_loaded, owner


@register("consistent_hash")
@dataclass(slots=True)
class ConsistentHash:
    """The owner of the session or of the prompt's start, with bounded load."""

    bound: float = parameter(
        1.25, "most sequences in flight on a replica, as a multiple of the average", least=1.0
    )

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:
        """Take the first replica in the key's order that has room."""
        by_session = request.session is not None
        key = hash_text(request.session) if request.session is not None else request.affinity
        if not key and not by_session:  # unknown prompts must not all share one owner
            return Decision(least_loaded(replicas, rng))
        in_flight = sum(replica.in_flight for replica in replicas) + max(1, request.sequences)
        room = self.bound * in_flight / len(replicas)
        # The load before this request: otherwise one request in flight would already exceed a small average.
        fitting = [replica for replica in replicas if replica.in_flight < room]
        return Decision(owner(key, fitting), by_session=by_session)
