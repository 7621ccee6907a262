"""Five workloads that policies are judged by, over several seeds, on a virtual clock. *Simulated*.

shared   150 system prompts, evenly: they fit into three quarters of the fleet's cache
zipf     the same, some of them far more popular
hot      one system prompt
random   nothing that is shared
mixed    half and half

A replica here is prefill and cache and nothing else (16,000 tokens a second in order of arrival, 1,200 blocks
of 256 tokens, answers of one token), so what is seen is the policy's doing. Caches and index start empty and
all of it counts. Then one hot prefix at 75 % of what the fleet can carry, on such replicas and on the profile
`h100x2-32b`, with `prefix_cost` alone and with the copies that the proxy makes on purpose.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from bench import workloads
from bench.measures import ceilings, latency
from bench.profiles import EngineSpec, profile
from bench.report import result, write
from bench.simulation import Job, Run, pooled_hits, prepare, simulate
from bench.workloads import Shape
from policies import registry
from policies.base import Decision, Policy, Replica, Request

REPLICAS = 8
TOY = profile(
    "h100x2-32b",
    cache_tokens=307_200,
    block_size=256,
    max_batched_tokens=256,
    prefill_tokens_per_s=16_000.0,
    step_s=0.0001,
    step_per_sequence_s=0.0,
    base_latency_s=0.0,
)
FIVE: dict[str, tuple[str, Shape]] = {
    "shared": ("shared", Shape(rate=40, prefix=12_000, question=100, groups=150, output=1)),
    "zipf": ("shared", Shape(rate=60, prefix=12_000, question=100, groups=150, output=1, zipf=1.2)),
    "hot": ("hot", Shape(rate=75, prefix=7000, question=1400, output=1)),
    "random": ("random", Shape(rate=13, prefix=7200, question=200, output=1)),
    "mixed": ("mixed", Shape(rate=20, prefix=7200, question=200, groups=150, output=1)),
}
REQUESTS, HOT_REQUESTS, FULL_REQUESTS = 12_000, 4000, 4000
HOT: dict[str, tuple[EngineSpec, Shape]] = {
    "prefill only": (TOY, Shape(prefix=7000, question=1400, output=1)),
    "h100x2-32b": (profile("h100x2-32b"), Shape(prefix=8000, question=1500, output=100)),
}
HOT_SHARE = 0.75
WARM = 20.0
"""Seconds after which a hot prefix counts as known; before it every replica has to compute it once."""
NEAR = 1.05
HOPELESS = 10.0
"""Times the best P95 of the first seed from which on a policy is not run with the others."""
OURS = "prefix_cost"
WITHOUT = "prefix_cost, no copies on purpose"


class WithoutCopies:
    """A policy whose prefixes the proxy does not copy on purpose."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:
        """Choose as the policy does."""
        return self.policy.choose(request, replicas, rng)


def main(args: argparse.Namespace, command: str) -> int:
    """Run it all; tables to standard output, `args.markdown` and `args.json`."""
    seeds = range(1, args.seeds + 1)
    policies = registry.names() if args.policy == ["all"] else args.policy
    if not set(policies) <= set(registry.names()) or OURS not in policies:
        print(f"bench simulate: --five takes names of policies, {OURS} among them", file=sys.stderr)
        return 2

    def tell(what: str) -> None:
        if args.verbose:
            print(what, file=sys.stderr, flush=True)

    rows = five(policies, seeds, round(REQUESTS * args.scale), tell)
    _write(args, command, rows, {})
    _write(args, command, rows, hot(seeds, args.scale, tell))
    return 0


def _write(args: argparse.Namespace, command: str, rows: dict[str, Any], crowd: dict[str, Any]) -> None:
    """To standard output and to the files that were asked for; also what is there half-way."""
    about = (
        f"{REPLICAS} replicas, {args.seeds} seeds; `bench/five.py` tells what they are. Means over seeds; a "
        f"policy {HOPELESS:g} times behind the best P95 of the first seed was run with that one alone.\n\n"
        "In `shared` and `zipf` about 5 % of the requests come while the caches fill, so that their P95 lies "
        "on the edge of that: look at it by seed, and at the P99, which lies inside."
    )
    parts = [
        f"# The five workloads, simulated\n\n```\n{command}\n```",
        about,
        f"## How far `{OURS}` is from the best\n\n{verdict_table(rows)}",
        f"## All policies\n\n{table(rows)}",
        f"## One hot prefix at {HOT_SHARE:.0%} of capacity\n\n{hot_table(crowd)}",
    ]
    text = "\n\n".join(parts) + "\n"
    if crowd:
        print(text)
    if args.markdown:
        Path(args.markdown).write_text(text)
    if args.json:
        parts_of = {"five": rows, "verdicts": verdicts(rows), "hot": crowd}
        write(result([], workload={"command": command}, simulated=True, **parts_of), Path(args.json))


def five(policies: Sequence[str], seeds: Sequence[int], requests: int, tell: Callable[[str], None]) -> Any:
    """Figures by workload and policy: one entry a seed."""
    found: dict[str, Any] = {}
    for name, (workload, shape) in FIVE.items():
        found[name] = {policy: [] for policy in policies}
        for seed in seeds:
            jobs, best = _prepared(workload, replace(shape, requests=requests), seed, TOY)
            least = min((rows[0]["p95"] for rows in found[name].values() if rows), default=inf)
            for policy, rows in found[name].items():
                if not rows or rows[0]["p95"] < HOPELESS * least:
                    rows.append(_figures(simulate(jobs, registry.create(policy), TOY, REPLICAS, seed), best))
            tell(f"{name}, seed {seed}")
    return found


def hot(seeds: Sequence[int], scale: float, tell: Callable[[str], None]) -> Any:
    """Figures of one hot prefix by kind of replica and policy: one entry a seed."""
    makers: dict[str, Callable[[], Policy]] = {
        "round_robin": lambda: registry.create("round_robin"),
        "least_load": lambda: registry.create("least_load"),
        WITHOUT: lambda: WithoutCopies(registry.create(OURS)),
        OURS: lambda: registry.create(OURS),
    }
    found: dict[str, Any] = {}
    for kind, (spec, shape) in HOT.items():
        rate = HOT_SHARE * capacity(spec, shape, max(100, round(FULL_REQUESTS * scale)))
        found[kind] = {"rate": rate, **{name: [] for name in makers}}
        for seed in seeds:
            jobs, best = _prepared(
                "hot", replace(shape, rate=rate, requests=round(HOT_REQUESTS * scale)), seed, spec
            )
            for name, make in makers.items():
                run = simulate(jobs, make(), spec, REPLICAS, seed)
                found[kind][name].append(_figures(run, best))
            tell(f"hot prefix, {kind}, seed {seed}")
    return found


def capacity(spec: EngineSpec, shape: Shape, requests: int = FULL_REQUESTS) -> float:
    """Requests a second that the fleet gets done of traffic that never runs dry, in the middle of it."""
    jobs, _ = _prepared("hot", replace(shape, rate=1e6, requests=requests), 1, spec)
    run = simulate(jobs, registry.create("round_robin"), spec, REPLICAS, 1)
    ends = sorted(outcome.due + outcome.e2e for outcome in run.outcomes)
    first, last = len(ends) // 4, 3 * len(ends) // 4
    return (last - first) / (ends[last] - ends[first])


def table(found: dict[str, Any]) -> str:
    """Markdown: each workload's policies, the mean over seeds, and how far ours is from the best."""
    lines = [
        "| workload | policy | hit % | of ceiling % | TTFT mean ms | P95 ms | P99 ms | P95 by seed |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, policies in found.items():
        for policy, rows in policies.items():
            means = _means(rows)
            of_ceiling = f"{100 * means['hit_rate'] / means['ceiling']:.1f}" if means["ceiling"] else "-"
            each = ", ".join(f"{1000 * row['p95']:,.0f}" for row in rows)
            times = " | ".join(f"{1000 * means[key]:,.0f}" for key in ("mean", "p95", "p99"))
            hits = f"{100 * means['hit_rate']:.1f} | {of_ceiling}"
            lines.append(f"| {name} | {policy} | {hits} | {times} | {each} |")
    return "\n".join(lines)


def verdicts(found: dict[str, Any]) -> dict[str, Any]:
    """How far `prefix_cost` is from the best policy of each workload, by the means over seeds."""
    out: dict[str, Any] = {}
    for name, policies in found.items():
        means = {policy: _means(rows) for policy, rows in policies.items()}
        out[name] = {}
        for figure in ("mean", "p95"):
            best = min(means, key=lambda policy: means[policy][figure])
            ratio = means[OURS][figure] / means[best][figure]
            out[name][figure] = {"best": best, "ratio": ratio, "within_5_percent": ratio <= NEAR}
    return out


def verdict_table(found: dict[str, Any]) -> str:
    """Markdown of `verdicts`."""
    lines = [
        "| workload | best by mean | ours / best | best by P95 | ours / best |",
        "|---|---|---:|---|---:|",
    ]
    for name, figures in verdicts(found).items():
        cells = [f"{figures[key]['best']} | {figures[key]['ratio']:.3f}" for key in ("mean", "p95")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def hot_table(found: dict[str, Any]) -> str:
    """Markdown: one hot prefix at 75 % of capacity; P95 from the cold start on, and after it."""
    lines = [
        "| replicas | policy | hits of ceiling % | TTFT mean ms | P95 ms | P95 after 20 s | by seed |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for kind, policies in found.items():
        for policy, rows in policies.items():
            if policy == "rate":
                continue
            means = _means(rows)
            each = ", ".join(f"{1000 * row['warm_p95']:,.0f}" for row in rows)
            lines.append(
                f"| {kind}, {policies['rate']:.1f}/s | {policy} | "
                f"{100 * means['hit_rate'] / means['ceiling']:.2f} | {1000 * means['mean']:,.1f} | "
                f"{1000 * means['p95']:,.1f} | {1000 * means['warm_p95']:,.1f} | {each} |"
            )
    return "\n".join(lines)


def _prepared(workload: str, shape: Shape, seed: int, spec: EngineSpec) -> tuple[list[Job], float]:
    jobs, _ = prepare(workloads.generate(workload, shape, seed), spec)
    return jobs, ceilings(jobs, pooled_hits(jobs, spec.blocks * REPLICAS, spec.block_size))["all"]


def _figures(run: Run, ceiling: float) -> dict[str, float]:
    outcomes = run.outcomes
    warm = latency(outcome.ttft for outcome in outcomes if outcome.due >= WARM)
    return {
        "hit_rate": sum(o.cached for o in outcomes) / sum(o.tokens for o in outcomes),
        "ceiling": ceiling,
        **latency(o.ttft for o in outcomes),
        "warm_p95": warm.get("p95", 0.0),
    }


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: fmean(row[key] for row in rows) for key in rows[0]}
