"""What the simulated replica's scheduler keeps of a request, of a step, and what it tells of them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from bench.engine_events import Source


class TokenEvent(NamedTuple):
    """Something a client of the engine would see."""

    request_id: str
    time: float
    """Seconds, on the clock of `submit` and `advance`."""
    kind: Literal["first", "token", "done"]
    """`first` and `token` are one output token each; `done` follows the last of them at the same time."""
    cached_tokens: int
    """Prompt tokens taken from the cache, the same in each event of a request."""


@dataclass(slots=True, eq=False)
class EngineSequence:
    """A request that the engine has not finished."""

    request_id: str
    keys: Sequence[int]
    prompt_tokens: int
    output_tokens: int
    source: Source | None = None
    priority: int = 0
    computed: int = 0
    produced: int = 0
    cached: int = 0
    blocks: list[int | None] = field(default_factory=list)
    """What it holds, in order; None is a block without a key."""
    cancelled: bool = False

    @property
    def final_tokens(self) -> int:
        """Tokens in the cache at the end; the last output token is never computed."""
        return self.prompt_tokens + max(0, self.output_tokens - 1)


@dataclass(slots=True)
class Step:
    """What the engine computes in one go."""

    start: float
    seconds: float
    count: int
    """How often it repeats: more than once only if nothing but decoding happens meanwhile."""
    prefilled: list[EngineSequence]
    """Sequences whose prompt is complete at the end of it."""
    decoding: list[EngineSequence]

    @property
    def end(self) -> float:
        """When it is over, on the clock of its start."""
        return self.start + self.seconds * self.count
