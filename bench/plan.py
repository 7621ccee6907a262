"""A run before it is run: what will be sent and when, and the best hit rate that it allows.

Pure but for the tokenizer's files. Bodies are made beforehand, so that the sender has nothing to compute
while it measures; token ids are counted with the engines' own tokenizer.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from bench.block_cache import BlockCache
from bench.engine_prompt import EnginePrompt, block_keys
from bench.prompts import word_salad
from bench.workloads import Arrival


@dataclass(frozen=True, slots=True)
class Planned:
    """One request, ready to be sent."""

    due: float
    """Seconds after the start."""
    group: str
    body: bytes
    keys: Sequence[int]
    """Of the prompt's full blocks."""
    prompt_tokens: int
    """As the engines will count them."""
    output_tokens: int


def prepare(
    arrivals: Sequence[Arrival], prompt: EnginePrompt, *, model: str, block_size: int
) -> list[Planned]:
    """Render, count and encode each arrival: a streaming chat request of a fixed output length."""
    ratio = tokens_per_word(prompt)
    plan = []
    for arrival in arrivals:
        messages = arrival.prompt.messages(ratio)
        ids = prompt.encode(prompt.render(messages, {}))
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": arrival.output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        plan.append(
            Planned(
                due=arrival.due,
                group=arrival.group,
                body=msgspec.json.encode(body),
                keys=block_keys(ids, block_size, model=model),
                prompt_tokens=len(ids),
                output_tokens=arrival.output_tokens,
            )
        )
    return plan


@lru_cache(maxsize=8)
def tokens_per_word(prompt: EnginePrompt) -> float:
    """How many tokens a word of made-up text is with this tokenizer, so that lengths come out as asked."""
    words = 2000
    return len(prompt.encode(word_salad("calibration", words))) / words


def ceilings(plan: Sequence[Planned], *, blocks: int, block_size: int) -> dict[str, float]:
    """The hit rate of a perfect router, by group: one LRU of the whole fleet's `blocks` for all requests.

    Requests in order of their due times, each complete before the next; outputs take their room too. A router
    that kept one-off prompts away from shared ones could pass it slightly.
    """
    cached: defaultdict[str, int] = defaultdict(int)
    tokens: defaultdict[str, int] = defaultdict(int)
    ordered = sorted(plan, key=lambda planned: planned.due)
    for planned, hit in zip(ordered, best_hits(ordered, blocks=blocks, block_size=block_size), strict=True):
        cached[planned.group] += hit
        tokens[planned.group] += planned.prompt_tokens
    return {group: cached[group] / tokens[group] for group in tokens}


def best_hits(plan: Sequence[Planned], *, blocks: int, block_size: int) -> list[int]:
    """Prompt tokens, request by request in the given order, that one LRU of `blocks` blocks holds."""
    cache = BlockCache(blocks)
    hits = []
    unique = 1 << 64
    for planned in plan:
        total = -(-(planned.prompt_tokens + planned.output_tokens - 1) // block_size)
        hit = cache.match(planned.keys, (planned.prompt_tokens - 1) // block_size)
        hits.append(hit * block_size)
        held = list(planned.keys) + list(range(unique, unique + total - len(planned.keys)))
        unique += total
        for key in held[:blocks]:
            cache.pin(key)
        for key in reversed(held[:blocks]):
            cache.release(key)
    return hits
