"""What a policy sees and what it answers.

A policy takes data and returns data. It is synchronous, does no I/O, reads no clock, uses no randomness but
the generator it is handed, keeps nothing about replicas between calls (feedback arrives as fields of the next
snapshot), and never changes what it is given. `policies` never imports `proxy`.

The router guarantees that `replicas` is not empty and that each of them may serve the request, so a policy
never filters. Unknown is None, never zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable


@dataclass(slots=True)
class Replica:
    """The load of one replica, as policies see it. Owned and updated by the fleet; read-only for policies."""

    name: str
    in_flight: int = 0
    """Sequences sent whose stream has not ended (a request with n=4 counts 4)."""
    running: int = 0
    """Those of `in_flight` whose first token has come: they decode."""
    queued_tokens: int = 0
    """Uncached prompt tokens sent whose first token has not come."""
    prefill_rate: float = 8000.0
    """Prompt tokens a second, learned from (TTFT, uncached tokens) pairs."""
    base_ttft: float = 0.0
    """Seconds to a first token that no prompt token accounts for, learned."""
    slots: int | None = None
    """How many sequences the engine runs at once."""
    slot_time: float | None = None
    """Seconds a sequence holds its slot, from the start of its prefill to the end of its stream, learned."""
    kv_usage: float | None = None
    """Share of the KV cache that running sequences hold, 0 to 1."""
    limit: float = inf
    """Sequences that it is given at once. The router sends more only where every candidate is full."""
    soft_limit: float = inf
    """Sequences from which on the router prefers any other replica that has room: below `limit` while it is
    suspect, or new, or says that it is full."""
    recent_tokens: float = 0.0
    """Uncached prompt tokens sent here lately: a sum that decays with the fleet's time constant."""


@dataclass(slots=True)
class Request:
    """One request, as policies see it; read-only (not frozen: that would cost more than the choice)."""

    tokens: int
    """Prompt tokens; an estimate where there is no tokenizer, 0 where the prompt was not understood."""
    matched: Mapping[str, int] = field(default_factory=dict)
    """Replica name to prompt tokens that it holds from the start of the prompt; absent means none."""
    affinity: int = 0
    """A stable 64-bit hash of the prompt's first blocks (of the whole text, if shorter; 0 if unknown)."""
    session: str | None = None
    """The client's affinity key, if it sent one."""
    sequences: int = 1
    urgency: float = 1.0
    """What a second of waiting counts, as a multiple of what it does to an ordinary request."""


@dataclass(slots=True)
class Decision:
    """Where a request goes."""

    replica: Replica
    by_session: bool = False
    """True if the session key decided, not the prefix."""
    compared: Sequence[Replica] = ()
    """Those that the policy compared, if it did; for explanations only."""
    scores: Sequence[float] = ()
    """What each of them scored; lower is better."""

    @property
    def costs(self) -> dict[str, float]:
        """Replica name to score, for those compared."""
        return {replica.name: score for replica, score in zip(self.compared, self.scores, strict=True)}


class Policy(Protocol):
    """A policy is a dataclass whose fields are its parameters, with this one method."""

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:
        """Choose one of `replicas`."""


Terms: TypeAlias = dict[str, float]
"""What one replica's score is made of: parts that add up to it, by name."""


@runtime_checkable
class Explained(Policy, Protocol):
    """A policy whose scores can be taken apart, for explanations only."""

    unit: ClassVar[str]
    """Of its scores: `seconds`, or `points` where they have none."""

    def explain(self, request: Request, replicas: Sequence[Replica]) -> list[Terms]:
        """Take apart the score of each of `replicas`: those that `choose` compared, in the same state."""


def terms(policy: Policy, request: Request, decision: Decision) -> list[Terms] | None:
    """What each score of a decision just made is made of; None if the policy cannot tell."""
    return policy.explain(request, decision.compared) if isinstance(policy, Explained) else None


def follows_prefixes(policy: Policy) -> bool:
    """Whether a policy sends prompts after their prefixes, and says so by an attribute of this name."""
    return bool(getattr(policy, "follows_prefixes", False))
