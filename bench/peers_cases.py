"""The cases in which routers are compared: not only the easy one. Pure.

Prompts are of 3,000 tokens and more on replicas whose prefill is slowed down, so that the few requests a
second which two slow cores send are a load to the fleet.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.profiles import EngineSpec, profile
from bench.workloads import Length, Shape

REPLICAS = 4
PROFILE = "h100x2-32b"
PREFILL = 6000.0
"""Tokens a second."""
CACHE_TOKENS = 44_000
SHAPE = Shape(groups=24, zipf=0.6, prefix=3000, question=200, output=16)
"""24 system prompts of 3,000 tokens are 72,000: more than a replica caches, less than the fleet's 176,000."""


@dataclass(frozen=True, slots=True)
class Case:
    """One of them."""

    name: str
    what: str
    workload: str
    shape: Shape = SHAPE
    rate: float = 7.0
    """Requests a second."""
    proxies: int = 1
    """Behind a balancer that draws one of them for each request."""
    cache: float = 1.0
    """How much of `CACHE_TOKENS` a replica has."""
    replicas: int = REPLICAS
    """Simulated ones."""
    trace: str | None = None
    """FORMAT:PATH, instead of the workload: each repeat takes the next of its requests."""
    scale_tokens: int = 64
    """Tokens that stand for one of a trace's ids, so that its long prompts are a load for two slow cores."""
    midway: str | None = None
    """`replica`: one is restarted in the middle, under load. `router`: all are, between two halves, the
    second of which is measured: what do they still know?"""

    @property
    def spec(self) -> EngineSpec:
        """Of its simulated replicas."""
        cache = round(CACHE_TOKENS * self.cache)
        return profile(PROFILE, cache_tokens=cache, prefill_tokens_per_s=PREFILL)


CASES: Sequence[Case] = (
    Case("shared", "system prompts that many share", "shared"),
    Case("mixed", "half shared, half one-off", "mixed", rate=5.5),
    Case(
        "multiturn",
        "conversations that grow",
        "multiturn",
        replace(SHAPE, prefix=1000, question=300, output=60, turns=(6, 9), turn_gap=4.0),
    ),
    Case("hot", "one prefix for all", "hot"),
    Case("random", "nothing shared", "random", rate=4.0),
    Case("four", "four routers behind a random balancer", "shared", proxies=4),
    Case(
        "replica", "a replica restarted midway (the ceiling ignores what it lost)", "shared", midway="replica"
    ),
    Case("router", "the router restarted midway; its second half", "shared", midway="router"),
    Case("small", "caches a quarter of the usual size", "shared", cache=0.25, rate=5.5),
    Case(
        "growing",
        "long conversations, most of the cache in use",
        "multiturn",
        replace(SHAPE, groups=4, prefix=800, question=400, output=60, turns=(14, 20), turn_gap=2.5),
        rate=6.0,
    ),
    Case(
        "pollution",
        "one-off traffic that pushes shared prefixes out",
        "mixed",
        replace(SHAPE, groups=16, shared_fraction=0.35),
        cache=0.5,
        rate=5.0,
    ),
)


REAL_RATES = {"shared": 4.0, "mixed": 3.0, "multiturn": 4.0, "hot": 5.0, "random": 2.5}
"""By workload: what three vLLM replicas on two cores carry (0.6 of what round robin can of `shared`)."""
REAL = 0.4
"""Length of prompts and answers on such replicas, of the lengths on simulated ones."""


def on_real(case: Case) -> Case | None:
    """The case on running replicas of small caches and slow prefill; None where it needs simulated ones."""
    if case.midway == "replica" or case.cache != 1.0 or case.trace is not None:
        return None
    prefix, question, output = (
        _shorter(length) for length in (case.shape.prefix, case.shape.question, case.shape.output)
    )
    shape = replace(case.shape, prefix=prefix, question=question, output=output)
    return replace(case, shape=shape, rate=REAL_RATES[case.workload])


def _shorter(length: Length) -> Length:
    if isinstance(length, int):
        return max(4, round(REAL * length))
    return max(4, round(REAL * length[0])), max(4, round(REAL * length[1]))


def of_trace(source: str, *, replicas: int, scale_tokens: int, rate: float, cache: float) -> Case:
    """A trace as a case."""
    name = source.rpartition("/")[2].partition(".")[0]
    return Case(
        f"{name}-{replicas}",
        f"{name}, {scale_tokens} tokens an id, {replicas} replicas",
        "shared",
        rate=rate,
        cache=cache,
        replicas=replicas,
        trace=source,
        scale_tokens=scale_tokens,
    )


def chosen(names: str) -> list[Case]:
    """Those named, separated by commas; `all`."""
    known = {case.name: case for case in CASES}
    wanted = list(known) if names == "all" else names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"unknown case {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted]
