"""What is said of a replica: by itself, of its engine and where it publishes; and by proxies, of its load.

Plain values; nothing here decides or changes anything. None is unknown, which is not zero.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(slots=True, frozen=True)
class FeedSpec:
    """Where a replica publishes what its cache stores and evicts."""

    endpoint: str
    """ZMQ endpoint of the publisher; to listen on if `bind`."""
    bind: bool = False
    """True where the engine dials in."""
    replay: str | None = None
    """ZMQ endpoint where missed messages are asked for; None if there is none."""
    topic: str = ""
    """What the topics of its messages begin with."""
    block_size: int | None = None
    """Tokens of a block in its events; None is as in the engine's cache."""
    rank: int = 0
    """Data-parallel rank that publishes here."""
    ranks: int = 1
    """Ranks that a request to this replica may reach: 1 where it is steered to one."""


class Load(NamedTuple):
    """What one proxy, or several, have at a replica."""

    in_flight: int
    """Sequences."""
    queued_tokens: int
    """Uncached prompt tokens before their first token."""
    running: int
    """Sequences that decode."""


NOTHING = Load(0, 0, 0)
DEFAULT_BLOCK = 16
"""Tokens a block where the engine does not say: vLLM's default."""


@dataclass(slots=True)
class Description:
    """What a replica says of itself; None is unknown, which is not zero."""

    engine: str = "openai"
    """`vllm`, `sglang`, `llama_cpp`, or `openai` for anything else."""
    models: dict[str, str | None] = field(default_factory=dict)
    """Model name to its base model, None for a base model: an adapter names the model it extends."""
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Model name to its entry in /v1/models."""
    root: str | None = None
    """Where the engine loaded the base model from: a directory or a hub id."""
    block_size: int | None = None
    """Tokens."""
    cache_blocks: int | None = None
    max_seqs: int | None = None
    started_at: float | None = None
    """Unix time; changes when the process restarts."""
    caches: bool = True
    """False if the engine says that it keeps no prefixes."""
    ranks: int | None = None
    """Data-parallel ranks behind its engine's address, each a replica of its own; None if nobody says."""
    feed: FeedSpec | None = None
    """None if it publishes nothing, or does not say where."""

    @property
    def base_model(self) -> str | None:
        """The model that its adapters extend, or its only one; None while nothing is known."""
        return next((model for model, parent in self.models.items() if parent not in self.models), None)
