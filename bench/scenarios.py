"""What the demo sends: each scenario a list of arrivals, made-up or cut from published traces. Pure.

Lengths are fixed where traffic is made up. The two traces are real: MT-bench's questions as they are, and a
sample of Mooncake's conversations, taken whole or not at all so that they share what they share in the trace.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from xxhash import xxh3_64_intdigest

from bench.prompts import Blocks
from bench.traces import mooncake, mt_bench
from bench.workloads import Arrival, Shape, generate

TRACES = Path(__file__).parent / "data" / "traces"

SHAPE = Shape(groups=16, prefix=3000, question=200, output=24, shared_fraction=2 / 3)
"""16 system prompts of 3,000 tokens are 48,000: more than a replica caches, less than the fleet does."""

CACHE_TOKENS = 44_000
"""A replica's cache, for the same reason."""

MOONCAKE_TOKENS = 64
"""Tokens that stand for one of Mooncake's 512-token blocks, so that its long prompts fit a demo's cache."""

MOONCAKE_SAMPLE = 16
"""One conversation in so many is taken."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One window of the demo."""

    name: str
    what: str
    """In a few words, for a table."""
    requests: int
    arrivals: Callable[[int, str], list[Arrival]]
    """So many arrivals, or all there are, under a seed; due times are rescaled later."""


def _made_up(workload: str) -> Callable[[int, str], list[Arrival]]:
    return lambda count, seed: generate(workload, replace(SHAPE, requests=count), seed)


def _mt_bench(count: int, seed: str) -> list[Arrival]:
    """Each question's second turn repeats the first and its (made-up) answer."""
    path = TRACES / "mt_bench_question.jsonl.gz"
    arrivals = mt_bench(path, rate=8.0, seed=seed, output_tokens=24, turn_gap=2.0)
    return [replace(arrival, group="all") for arrival in arrivals[:count]]


def _mooncake(count: int, seed: str) -> list[Arrival]:
    """Each conversation of the trace with the same chance, its requests in their order."""
    arrivals: list[Arrival] = []
    for arrival in mooncake(TRACES / "mooncake_conversation_trace.jsonl.gz"):
        prompt = arrival.prompt
        assert isinstance(prompt, Blocks)
        # All prompts begin with the same id; the second tells the conversations apart.
        if xxh3_64_intdigest(f"{seed}/{prompt.ids[:2]}".encode()) % MOONCAKE_SAMPLE:
            continue
        tokens = max(1, prompt.tokens * MOONCAKE_TOKENS // prompt.id_tokens)
        short = replace(prompt, id_tokens=MOONCAKE_TOKENS, tokens=tokens)
        arrivals.append(replace(arrival, prompt=short, output_tokens=24, group="all"))
        if len(arrivals) == count:
            break
    return arrivals


SCENARIOS = (
    Scenario("mixed", "shared and random", 230, _made_up("mixed")),
    Scenario("random", "random alone", 64, _made_up("random")),
    Scenario("mt_bench", "MT-bench", 110, _mt_bench),
    Scenario("mooncake", "Mooncake", 110, _mooncake),
)
