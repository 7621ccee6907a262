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

SHAPE = Shape(groups=24, prefix=3000, question=200, output=24)
"""24 system prompts of 3,000 tokens are 72,000: more than a replica caches, less than the fleet does."""

MOONCAKE_TOKENS = 64
"""What one of Mooncake's 512-token blocks is made of here, so that an hour of it fits a demo."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One window of the demo."""

    name: str
    what: str
    requests: int
    arrivals: Callable[[int, str], list[Arrival]]
    """So many arrivals, or all there are, under a seed; due times are rescaled later."""


def _made_up(workload: str) -> Callable[[int, str], list[Arrival]]:
    return lambda count, seed: generate(workload, replace(SHAPE, requests=count), seed)


def _mt_bench(count: int, seed: str) -> list[Arrival]:
    path = TRACES / "mt_bench_question.jsonl.gz"
    arrivals = mt_bench(path, rate=8.0, seed=seed, output_tokens=24, turn_gap=2.0)
    return arrivals[:count]


def _mooncake(count: int, seed: str) -> list[Arrival]:
    """Each conversation of the trace with the same chance, its requests in their order."""
    arrivals = []
    for arrival in mooncake(TRACES / "mooncake_conversation_trace.jsonl.gz"):
        prompt = arrival.prompt
        assert isinstance(prompt, Blocks)
        conversation = prompt.ids[:2] if len(prompt.ids) > 1 else prompt.ids
        if xxh3_64_intdigest(f"{seed}/{conversation}".encode()) % 16:
            continue
        tokens = prompt.tokens * MOONCAKE_TOKENS // prompt.id_tokens
        short = replace(prompt, id_tokens=MOONCAKE_TOKENS, tokens=max(1, tokens))
        arrivals.append(replace(arrival, prompt=short, output_tokens=24))
        if len(arrivals) == count:
            break
    return arrivals


SCENARIOS = (
    Scenario("mixed", "24 shared system prompts among as many one-off prompts", 300, _made_up("mixed")),
    Scenario("random", "one-off prompts only: the control", 100, _made_up("random")),
    Scenario("mt_bench", "MT-bench's questions, two turns each", 160, _mt_bench),
    Scenario("mooncake", "conversations of the Mooncake trace, blocks shortened eightfold", 120, _mooncake),
)
