"""What kind of machine a simulated replica stands for: its rates, each with the source of every figure.

Rates are fitted to what others measured, never to what would make a router look good. A profile carries its
source in its docstring; a figure without one is marked as an assumption.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The rates and sizes of one replica.

    An engine step that decodes `b` sequences and prefills `t` tokens takes
    `step_s + b * step_per_sequence_s + t / prefill_tokens_per_s` seconds.
    """

    cache_tokens: int
    """Room for keys and values, in tokens."""
    prefill_tokens_per_s: float
    """Marginal prefill speed, in uncached prompt tokens a second."""
    step_s: float
    """Seconds of a step before any token is counted: weights are read, kernels launched."""
    step_per_sequence_s: float
    """Seconds that one more decoding sequence adds to a step."""
    base_latency_s: float = 0.0
    """Seconds before a request reaches the scheduler: HTTP, parsing."""
    base_latency_per_token_s: float = 0.0
    """The part of that which grows with the prompt, cached or not: tokenizing, hashing."""
    block_size: int = 16
    max_seqs: int = 256
    max_batched_tokens: int = 8192
    """Tokens of one step, decoded and prefilled together (vLLM's `max_num_batched_tokens`)."""
    longest_chunk: int = 0
    """Prompt tokens of one request in one step, at most; 0: as many as fit (vLLM's
    `long_prefill_token_threshold`)."""
    by_priority: bool = False
    """Whether who waits is taken by priority, low values first (vLLM's `--scheduling-policy priority`)."""
    name: str = "custom"

    def __post_init__(self) -> None:
        if self.cache_tokens < self.block_size or self.block_size < 1:
            raise ValueError("cache_tokens must hold at least one block")
        if self.prefill_tokens_per_s <= 0 or self.step_s <= 0:
            raise ValueError("prefill_tokens_per_s and step_s must be positive")
        if self.max_seqs < 1 or self.max_batched_tokens < self.max_seqs:
            raise ValueError("max_batched_tokens must be at least max_seqs, and both at least 1")
        if self.longest_chunk < 0:
            raise ValueError("longest_chunk must not be negative")

    @property
    def blocks(self) -> int:
        """Blocks in the cache."""
        return self.cache_tokens // self.block_size

    def step_time(self, decoding: int, prefill_tokens: int) -> float:
        """Seconds of one step."""
        return self.step_s + decoding * self.step_per_sequence_s + prefill_tokens / self.prefill_tokens_per_s

    def arrival_delay(self, prompt_tokens: int) -> float:
        """Seconds between a request's arrival and its place in the scheduler's queue."""
        return self.base_latency_s + prompt_tokens * self.base_latency_per_token_s


def cpu() -> EngineSpec:
    """Real vLLM 0.32 on one CPU thread, an 8-layer 512-wide model of random weights, block 32, 512 blocks.

    Measured for this project: time to first token of a 2,000-token prompt 437 and 881 ms cold, 40 to 49 ms
    warm (16 tokens left to compute); of a 4,000-token prompt 1,358 to 1,734 ms cold, 62 to 70 ms warm. The
    two warm figures give 20 ms and 11.5 us a prompt token before the scheduler, less the step itself; the
    cold ones then give 3,000 tokens a second (2,000 tokens: 0.70 s, 4,000 tokens: 1.39 s). Assumption: a
    decode step of 8 ms and 0.5 ms a sequence, which was not measured separately.
    """
    return EngineSpec(
        name="cpu",
        cache_tokens=512 * 32,
        block_size=32,
        prefill_tokens_per_s=3000.0,
        step_s=0.008,
        step_per_sequence_s=0.0005,
        base_latency_s=0.007,
        base_latency_per_token_s=11.5e-6,
        max_seqs=32,
        max_batched_tokens=2048,
    )


def h100_8b() -> EngineSpec:
    """Llama-3.1-8B (bf16) on one H100, vLLM 0.8.4.

    The coefficients that the inference-sim project fitted to runs of that engine (github.com/inference-sim/
    inference-sim, defaults.yaml, commit 3d79c654: llama-3.1-8b-instruct, H100, tensor_parallelism 1): a
    step of 5,752.7 us + 17.25 us a prefilled token + 6.0 us a decoded one; 232.5 us + 1.75 us a prompt
    token before the scheduler and 3,357.4 us after it (put in front here, where it counts once); 29,205
    blocks of 16 tokens. 58,000 tokens a second is close to the chip's peak: a fast prefill, so caching is
    worth less here than on most fleets.
    """
    return EngineSpec(
        name="h100-8b",
        cache_tokens=29205 * 16,
        prefill_tokens_per_s=1 / 17.25086436834028e-6,
        step_s=5752.705e-6,
        step_per_sequence_s=5.999e-6,
        base_latency_s=(232.46 + 3357.44) * 1e-6,
        base_latency_per_token_s=1.75236e-6,
    )


def h100x2_32b() -> EngineSpec:
    """Qwen3-32B (bf16) on two H100 (tensor parallel 2): the replica of llm-d's published router benchmarks.

    Prefill: 15,928 tokens a second, the `peakPrefillThroughput` that llm-d calibrated for this model and
    machine as 8,192 tokens over the median time to first token of an idle engine, and ships in its guides
    (github.com/llm-d/llm-d, guides/recipes/router). Decode: half of inference-sim's fit of the like-sized
    CodeLlama-34B on one H100 (defaults.yaml, commit 3d79c654: a step of 26,595 us + 56.6 us a sequence),
    since two chips share weights and cache. Before the scheduler: that fit's 13.45 ms and 0.04 us a token.
    Since the calibrated rate has a whole step and that latency in it, the marginal rate is 8,192 / (8,192 /
    15,928 - 0.0133 - 0.0138) = 16,814 tokens a second. Cache: 144 GB at vLLM's default of 0.9, less 65.5 GB
    of weights, over 256 KiB a token (64 layers, 8 heads of 128, two bytes, keys and values).
    """
    return EngineSpec(
        name="h100x2-32b",
        cache_tokens=18720 * 16,
        prefill_tokens_per_s=16814.0,
        step_s=0.0133,
        step_per_sequence_s=28.3e-6,
        base_latency_s=0.01345,
        base_latency_per_token_s=0.0418e-6,
    )


PROFILES: dict[str, Callable[[], EngineSpec]] = {
    "cpu": cpu,
    "h100-8b": h100_8b,
    "h100x2-32b": h100x2_32b,
}


def profile(name: str, **changes: Any) -> EngineSpec:
    """A named profile, with some of its fields changed."""
    try:
        spec = PROFILES[name]()
    except KeyError:
        raise ValueError(f"unknown profile {name!r}; there are {', '.join(PROFILES)}") from None
    return replace(spec, **changes)
