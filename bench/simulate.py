"""`python -m bench simulate`: policies on a workload or a trace, on a virtual clock. All of it *simulated*.

Prints a table of Markdown, one row per policy: how much of the prompts came from caches, against the
*ceiling* (one LRU of the fleet's whole capacity), times to the first token, and how evenly the prefill work
was spread.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bench import five, traces, workloads
from bench.measures import ceilings, figures
from bench.profiles import PROFILES, EngineSpec, profile
from bench.report import result, write
from bench.simulation import Job, pooled_hits, prepare, simulate
from bench.workloads import Arrival, Shape
from policies import registry
from policies.base import Policy

TRACES = ("mooncake", "agentic", "azure", "mt_bench")
SHAPE = Shape()


def main(argv: list[str]) -> int:
    """Run the command; 2 if it was asked for something that is not there."""
    args = _arguments().parse_args(argv)
    if args.five:
        return five.main(args, f"python -m bench simulate {' '.join(argv)}")
    try:
        policies = [_policy(text) for text in _chosen(args.policy)]
        spec = _spec(args)
        arrivals = _arrivals(args)
    except ValueError as error:
        print(f"bench simulate: {error}", file=sys.stderr)
        return 2
    jobs, too_long = prepare(arrivals, spec)
    if not jobs:
        print("bench simulate: no request fits into a replica's cache", file=sys.stderr)
        return 2
    hits = pooled_hits(jobs, spec.blocks * args.replicas, spec.block_size)
    best = ceilings(jobs, hits)
    print(_headline(args, spec, jobs, too_long), flush=True)
    runs = []
    for name, policy in policies:
        started = time.perf_counter()
        run = simulate(jobs, policy, spec, args.replicas, args.seed)
        runs.append(figures(name, run, best))
        if args.verbose:
            print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    print(table(runs))
    if args.json:
        workload = {
            key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()
        }
        write(result(runs, workload=workload, simulated=True), Path(args.json))
    return 0


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown, one row per policy and group; times are milliseconds."""
    head = [
        "policy",
        "group",
        "hit %",
        "ceiling %",
        "TTFT mean",
        "P50",
        "P95",
        "P99",
        "max/mean uncached",
        "Jain",
    ]
    rows = []
    for run in runs:
        groups = run["groups"]
        for group, figure in groups.items():
            if len(groups) == 2 and group != "all":
                continue  # the only group there is
            ttft = figure["ttft"]
            rows.append(
                [run["policy"] if group == "all" else "", group]
                + [f"{100 * figure[key]:.1f}" for key in ("hit_rate", "ceiling")]
                + [f"{1000 * ttft[key]:,.0f}" for key in ("mean", "p50", "p95", "p99")]
                + [
                    f"{run[key]:.3f}" if group == "all" else ""
                    for key in ("uncached_spread", "uncached_jain")
                ]
            )
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [_aligned(row, widths) for row in [head, *rows]]
    lines.insert(1, ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Names to the left, figures to the right."""
    cells = zip(row, widths, strict=True)
    return [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(cells)]


def _chosen(names: Sequence[str]) -> Sequence[str]:
    return registry.names() if list(names) == ["all"] else names


def _policy(text: str) -> tuple[str, Policy]:
    """`name` or `name:parameter=value,...`."""
    name, _, params = text.partition(":")
    pairs = [pair.partition("=") for pair in params.split(",") if pair]
    return text, registry.create(name, {key: value for key, _, value in pairs})


def _spec(args: argparse.Namespace) -> EngineSpec:
    changes = {
        field.name: getattr(args, field.name, None) for field in fields(EngineSpec) if field.name != "name"
    }
    return profile(args.profile, **{key: value for key, value in changes.items() if value is not None})


def _arrivals(args: argparse.Namespace) -> list[Arrival]:
    if args.trace is None:
        shape = Shape(**{field.name: getattr(args, field.name) for field in fields(Shape)})
        arrivals = workloads.generate(args.workload, shape, args.seed)
    else:
        form, _, name = args.trace.partition(":")
        path = Path(name)
        if form == "mooncake":
            arrivals = traces.mooncake(path, limit=args.limit)
        elif form == "agentic":
            arrivals = traces.agentic(
                path, rate=args.rate, seed=args.seed, block_tokens=_spec(args).block_size, limit=args.limit
            )
        elif form == "azure":
            arrivals = traces.azure(path, seed=args.seed, limit=args.limit)
        elif form == "mt_bench":
            arrivals = traces.mt_bench(path, rate=args.rate, seed=args.seed)
        else:
            raise ValueError(f"--trace is FORMAT:PATH with one of {', '.join(TRACES)}, not {args.trace!r}")
    arrivals = [replace(arrival, due=arrival.due / args.speed) for arrival in arrivals]
    return [arrival for arrival in arrivals if arrival.due <= args.seconds]


def _headline(args: argparse.Namespace, spec: EngineSpec, jobs: Sequence[Job], too_long: int) -> str:
    seconds = jobs[-1].arrival.due
    tokens = sum(job.tokens for job in jobs)
    left_out = f", {too_long} left out as too long" if too_long else ""
    traffic = Path(args.trace).name if args.trace else args.workload
    return (
        f"Simulated: {traffic}, {len(jobs):,} requests{left_out}, {tokens / len(jobs):,.0f} prompt tokens "
        f"each, {tokens / max(seconds, 1e-9):,.0f} a second; {args.replicas} replicas of {spec.name} with "
        f"{spec.cache_tokens:,} tokens of cache, {spec.prefill_tokens_per_s:,.0f} prefilled a second; "
        f"seed {args.seed}. Times in milliseconds.\n"
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    traffic = parser.add_argument_group("traffic")
    either = traffic.add_mutually_exclusive_group()
    either.add_argument("--workload", choices=list(workloads.WORKLOADS), default="shared")
    either.add_argument(
        "--trace", metavar="FORMAT:PATH", help=f"a file, plain or .gz; FORMAT: {', '.join(TRACES)}"
    )
    traffic.add_argument(
        "--limit", type=_positive, help="only the first requests (agentic: sessions) of a trace"
    )
    traffic.add_argument("--seconds", type=_positive_number, default=1e9, help="only what is due by then")
    traffic.add_argument(
        "--speed", type=_positive_number, default=1.0, help="how many times faster than written"
    )
    traffic.add_argument(
        "--rate", type=float, default=SHAPE.rate, help="requests (or a trace's sessions) a second"
    )
    traffic.add_argument("--requests", type=_positive, default=SHAPE.requests)
    traffic.add_argument("--groups", type=_positive, default=SHAPE.groups, help="system prompts")
    traffic.add_argument(
        "--zipf", type=float, default=SHAPE.zipf, help="exponent of their popularity, 0: even"
    )
    for name, what in (("prefix", "a system prompt"), ("question", "a question"), ("output", "an answer")):
        traffic.add_argument(
            f"--{name}",
            type=_length,
            default=getattr(SHAPE, name),
            metavar="N[-M]",
            help=f"tokens of {what}",
        )
    traffic.add_argument(
        "--shared-fraction", type=float, default=SHAPE.shared_fraction, help="of mixed requests"
    )
    traffic.add_argument("--turns", type=_range, default=SHAPE.turns, metavar="N[-M]", help="of a session")
    traffic.add_argument("--turn-gap", type=float, default=SHAPE.turn_gap, help="mean seconds between turns")
    traffic.add_argument("--seed", type=int, default=1)
    fleet = parser.add_argument_group("fleet")
    fleet.add_argument(
        "--policy", nargs="+", default=["all"], metavar="NAME[:PARAM=VALUE,...]", help="default: all"
    )
    fleet.add_argument("--replicas", type=_positive, default=8)
    fleet.add_argument("--profile", choices=list(PROFILES), default="h100x2-32b", help="rates of a replica")
    for name, kind in (
        ("cache_tokens", _positive),
        ("block_size", _positive),
        ("max_seqs", _positive),
        ("max_batched_tokens", _positive),
        ("prefill_tokens_per_s", _positive_number),
        ("step_s", _positive_number),
        ("step_per_sequence_s", float),
        ("base_latency_s", float),
    ):
        fleet.add_argument(f"--{name.replace('_', '-')}", type=kind, help="instead of the profile's")
    suite = parser.add_argument_group("the five workloads")
    suite.add_argument(
        "--five", action="store_true", help="all of them, and one hot prefix; only --policy and these count"
    )
    suite.add_argument("--seeds", type=_positive, default=5, help="1, 2, …")
    suite.add_argument("--scale", type=_positive_number, default=1.0, help="share of the requests")
    suite.add_argument("--markdown", metavar="FILE", help="write the tables there")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--verbose", action="store_true", help="say how long each policy took")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _positive_number(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a positive number")
    return value


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return _positive(low), _positive(high or low)


def _length(text: str) -> workloads.Length:
    return _range(text) if "-" in text else _positive(text)
