"""The account of a run: everything that `result.json` says of it, from its records. Pure.

Failed requests are counted by kind and kept out of the latencies, and stand beside them wherever latencies
are shown. Nothing unknown is a zero: hit rates are of the answers that told, and how many did not is said.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench import intervals
from bench.lifecycle import Window
from bench.measures import jain
from bench.measures import spread as unevenness
from bench.record import Record, hit_rate

RANDOM_HIT_LIMIT = 0.01
"""Random prompts that hit more than this share something after all: the run would prove nothing."""
COUNTERS_LIMIT = 0.01
"""How far the answers' cached tokens may be from the engines' counters, as a share of prompt tokens."""
LATE_LIMIT = 0.05
"""Seconds (P99) that requests may go out late before the load generator is what is measured."""
BUCKETS = (1024, 4096, 16384, 65536)
"""Upper ends of the prompt-length buckets, in tokens."""
HIT_SHARE = 0.5
"""A prompt counts as a hit if at least so much of it came from a cache, else as a miss."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good answer is, in seconds."""

    ttft: float = 1.0
    tpot: float = 0.05

    def met(self, record: Record) -> bool:
        """Whole, and in time in both respects; an answer of one token has no time per further one."""
        return (
            record.error is None
            and record.ttft is not None
            and record.ttft <= self.ttft
            and (record.tpot is None or record.tpot <= self.tpot)
        )


def bucket(tokens: int) -> str:
    """The length bucket of a prompt."""
    low = 0
    for high in BUCKETS:
        if tokens < high:
            return f"{low // 1024}k-{high // 1024}k"
        low = high
    return f"{low // 1024}k+"


def latencies(records: Sequence[Record]) -> dict[str, Any]:
    """Of whole answers, in order of time."""
    return {
        "ttft": intervals.latency([record.ttft for record in records]),
        "tpot": intervals.latency([record.tpot for record in records]),
        "itl": intervals.pooled([record.gaps for record in records]),
        "e2e": intervals.latency([record.e2e for record in records]),
        "queue": intervals.latency([record.queue for record in records]),
        "overhead": intervals.latency([record.overhead for record in records]),
    }


def outcomes(records: Sequence[Record], slo: Slo) -> dict[str, Any]:
    """How many were sent, failed, were turned away, were good."""
    failed = [record for record in records if record.error is not None]
    shed = sum(record.shed for record in failed)
    n = max(1, len(records))
    return {
        "requests": len(records),
        "errors": len(failed),
        "shed": shed,
        "error_rate": (len(failed) - shed) / n,
        "shed_rate": shed / n,
        "error_kinds": dict(Counter(str(record.kind) for record in failed).most_common()),
        "without_usage": sum(r.error is None and r.prompt_tokens is None for r in records),
        "without_cached_tokens": sum(r.error is None and r.cached_tokens is None for r in records),
        "good": sum(slo.met(record) for record in records) / n,
    }


def hits(records: Sequence[Record]) -> dict[str, Any]:
    """The share of prompt tokens from caches, of the answers that told."""
    told = [r for r in records if r.cached_tokens is not None and r.prompt_tokens is not None]
    cached = [float(record.cached_tokens or 0) for record in told]
    return {
        "hit_rate": hit_rate(records),
        "hit_rate_interval": intervals.ratio(cached, [float(r.prompt_tokens or 0) for r in told]),
    }


def by_cache(records: Sequence[Record]) -> dict[str, Any]:
    """TTFT of hits against misses."""
    told = [r for r in records if r.cached_tokens is not None and r.prompt_tokens]
    warm = [r for r in told if (r.cached_tokens or 0) >= HIT_SHARE * (r.prompt_tokens or 0)]
    cold = [r for r in told if (r.cached_tokens or 0) < HIT_SHARE * (r.prompt_tokens or 0)]
    return {
        name: intervals.latency([record.ttft for record in chosen])
        for name, chosen in (("hit", warm), ("miss", cold))
    }


def waterfall(window: Window, group: str | None) -> dict[str, float | None]:
    """What was there to be had, and where it went, as shares of prompt tokens; None where nobody tells.

    unlimited   what earlier prompts began with
    ceiling     of that, what one LRU of the fleet's size would still hold
    available   what the proxy believed its best replica to hold
    routed      what it believed the chosen one to hold
    reported    what the engines found
    """
    mine = [p for p in window.plan if group in (None, p.group)]
    numbers = [i for i, p in enumerate(window.plan) if group in (None, p.group)]
    tokens = max(1, sum(planned.prompt_tokens for planned in mine))
    stages: Counter[str] = Counter()
    for (of, stage), value in window.stages.items():
        if group in (None, of):
            stages[stage] += value  # type: ignore[assignment]
    prompt = stages["prompt"]
    return {
        "unlimited": sum(window.unlimited[i] for i in numbers) / tokens,
        "ceiling": sum(window.best[i] for i in numbers) / tokens,
        "available": stages["available"] / prompt if prompt else None,
        "routed": stages["routed"] / prompt if prompt else None,
        "reported": hit_rate([r for r in window.records if group in (None, r.group)]),
    }


def cross_check(window: Window) -> dict[str, Any] | None:
    """The answers' cached tokens against the engines' own counters; None where an engine does not tell."""
    counted = list(window.counted.values())
    if not counted or any(one is None for one in counted):
        return None
    everything = [*window.records, *window.cooling]
    told = [r for r in everything if r.cached_tokens is not None]
    queries = sum(one.queries for one in counted if one)
    found = sum(one.hits for one in counted if one)
    cached = sum(record.cached_tokens or 0 for record in told)
    prompt = sum(record.prompt_tokens or 0 for record in told)
    return {
        "engine_prompt_tokens": queries,
        "engine_cached_tokens": found,
        "answers_prompt_tokens": prompt,
        "answers_cached_tokens": cached,
        "preemptions": sum(one.preemptions for one in counted if one),
        "agree": abs(found - cached) <= COUNTERS_LIMIT * max(queries, 1.0)
        and abs(queries - prompt) <= COUNTERS_LIMIT * max(queries, 1.0),
    }


def load_by_replica(window: Window) -> dict[str, Any]:
    """Requests (the answers' headers) and computed prompt tokens (the engines' counters, else answers)."""
    requests: Counter[str] = Counter()
    computed: Counter[str] = Counter()
    for record in window.records:
        if record.replica is not None and record.error is None:
            requests[record.replica] += 1
            computed[record.replica] += (record.prompt_tokens or 0) - (record.cached_tokens or 0)
    by_counter = {
        url.partition("://")[2]: one.queries - one.hits
        for url, one in window.counted.items()
        if one is not None
    }
    work = by_counter or dict(computed)
    return {
        "replicas": dict(sorted(requests.items())),
        "uncached_tokens": work,
        "uncached_spread": unevenness(work.values()) if work else None,
        "uncached_jain": jain(work.values()) if work else None,
        "requests_spread": unevenness(requests.values()) if requests else None,
    }


def run(policy: str, window: Window, slo: Slo) -> dict[str, Any]:
    """One run's entry in `result.json`."""
    records = sorted(window.records, key=lambda record: record.number)
    good = [record for record in records if record.error is None]
    groups = {}
    for group in sorted({record.group for record in records}, reverse=True):
        mine = [record for record in records if record.group == group]
        whole = [record for record in mine if record.error is None]
        groups[group] = {
            **outcomes(mine, slo),
            **hits(whole),
            "ceiling": waterfall(window, group)["ceiling"],
            **latencies(whole),
            "by_cache": by_cache(whole),
            "waterfall": waterfall(window, group),
        }
    lengths: dict[str, Any] = {}
    for name in sorted({bucket(record.expected_tokens) for record in records}, key=_lower):
        mine = [record for record in records if bucket(record.expected_tokens) == name]
        whole = [record for record in mine if record.error is None]
        lengths[name] = {**outcomes(mine, slo), **hits(whole), **latencies(whole)}
    seconds = window.seconds
    return {
        "policy": policy,
        "groups": groups,
        "prompt_lengths": lengths,
        "all": {**outcomes(records, slo), **hits(good), "waterfall": waterfall(window, None)},
        "seconds": seconds,
        "throughput": len(good) / seconds,
        "goodput": sum(slo.met(record) for record in records) / seconds,
        "slo": asdict(slo),
        "prompt_tokens_per_s": sum(record.prompt_tokens or 0 for record in good) / seconds,
        "output_tokens_per_s": sum(record.output_tokens or 0 for record in good) / seconds,
        **load_by_replica(window),
        "cross_check": cross_check(window),
        "send_lag": intervals.latency([record.lag for record in records]),
        "unanswered_at_interrupt": window.lost,
        "notes": list(window.notes),
    }


def _lower(name: str) -> int:
    return int(name.partition("k")[0])


def problems(one: Mapping[str, Any]) -> list[str]:
    """Why a run does not count; empty if it does."""
    found = []
    every = one["all"]
    if every["errors"]:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in every["error_kinds"].items())
        found.append(f"{every['errors']} of {every['requests']} requests failed: {kinds}")
    if not every["requests"]:
        found.append("nothing was measured")
    random = one["groups"].get("random", {}).get("hit_rate")
    if random is not None and random > RANDOM_HIT_LIMIT:
        found.append(f"random prompts hit the cache ({random:.1%}): something else shares it, or they do")
    return found


def cautions(one: Mapping[str, Any], *, open_loop: bool = True) -> list[str]:
    """What a reader has to know, though the run counts."""
    found = list(one["notes"])
    every = one["all"]
    answered = every["requests"] - every["errors"]
    if every["without_usage"]:
        found.append(
            f"{every['without_usage']} of {answered} answers told no usage: hit rates are of the others"
        )
    elif every["without_cached_tokens"]:
        found.append(
            f"{every['without_cached_tokens']} of {answered} answers told no cached tokens "
            "(vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report): "
            "hit rates are of the others"
        )
    check = one["cross_check"]
    if check is not None and not check["agree"]:
        found.append(
            f"the engines counted {check['engine_cached_tokens']:,.0f} cached of "
            f"{check['engine_prompt_tokens']:,.0f} prompt tokens, the answers told "
            f"{check['answers_cached_tokens']:,} of {check['answers_prompt_tokens']:,}"
        )
    if check is not None and check["preemptions"]:
        found.append(f"the engines preempted {check['preemptions']:.0f} times")
    late = one["send_lag"]
    if open_loop and late and late["p99"] > LATE_LIMIT:
        found.append(f"requests went out {1000 * late['p99']:.0f} ms late (P99): the load was what was slow")
    if one["unanswered_at_interrupt"]:
        found.append(f"interrupted: {one['unanswered_at_interrupt']} requests of the plan have no answer")
    return found
