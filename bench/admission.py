"""`python -m bench admission`: classes and limits on the simulated fleet, on a virtual clock.

flood     a batch flood of 3 times the fleet's capacity beside interactive chats of a fifth of it, with
          admission and without (one class, no limit), against each of the two alone
long      interactive chats, and a cold prompt of 100,000 tokens every 12 seconds from somebody else
sweep     one class at 0.9 of capacity and at 3 times it, under fixed limits, none, and the adaptive one; that
          is also started wrongly, at 2 and at 512, with engines that do not say how many they run at once

All of it *simulated*. Capacity is measured, not assumed: what the fleet gets done of traffic that never runs
dry.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from bench.measures import latency
from bench.profiles import EngineSpec, profile
from bench.prompts import Conversation, Segment
from bench.report import result, write
from bench.simulation import Outcome, Run, prepare, simulate
from bench.workloads import Arrival, Length, Shape, generate
from policies import registry
from proxy.priority import Priority

SECONDS = 60.0
WARM = 1 / 3
"""Share of the seconds, at the start, that counts for nothing: caches, learned rates and limits settle."""
FLOOD = 3.0
INTERACTIVE = 0.2
BATCHES: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "short": ((100, 500), (200, 600)),
    "documents": ((500, 3000), (100, 300)),
}
"""Tokens of a batch request's prompt and of its answer; the first keeps engines decoding, the second
prefilling."""
LIMITS: tuple[int | str, ...] = (16, 32, 64, 128, 256, "none", "adaptive")
STARTS = (2, 512)
"""Where the adaptive limit is started besides."""
PATIENT = Priority(queue={"standard": 10**6, "batch": 10**6}, wait={"standard": 1e6, "batch": 1e6})
"""Nobody is turned away, so that all there is to see is in the times."""
ONE_CLASS = Priority(classes=("standard",), queue={"standard": 10**6}, wait={"standard": 1e6})
CHATS = Shape(groups=16, prefix=1200, question=(50, 300), output=(50, 250))


def chats(rate: float, seed: int, seconds: float = SECONDS) -> list[Arrival]:
    """Interactive sessions of 20 callers: system prompts that are shared, turns that repeat the session."""
    arrivals = generate("multiturn", replace(CHATS, rate=rate, requests=round(rate * seconds)), seed)
    return [
        replace(arrival, group="interactive", priority="interactive", caller=f"user{i % 20}")
        for i, arrival in enumerate(arrivals)
    ]


def cold(
    rate: float,
    prompt: Length,
    output: Length,
    seed: int,
    *,
    priority: str = "batch",
    callers: int = 3,
    seconds: float = SECONDS,
) -> list[Arrival]:
    """Prompts of which no two begin alike."""
    rng, due = Random(f"{seed}/{priority}"), 0.0
    arrivals: list[Arrival] = []
    while True:
        due += rng.expovariate(rate)
        if due > seconds:
            return arrivals
        number = len(arrivals)
        tokens, answer = (x if isinstance(x, int) else rng.randint(*x) for x in (prompt, output))
        text = Conversation((Segment("user", f"{seed}/{priority}/{number}", tokens),))
        # The callers' shares of what comes are 1, 2, 4, …: who asks for more gets no more.
        caller = rng.choices(range(callers), [2**each for each in range(callers)])[0]
        arrivals.append(Arrival(due, priority, text, answer, priority=priority, caller=f"{priority}{caller}"))


class Fleet:
    """Replicas of one kind, and what runs on them."""

    def __init__(self, spec: EngineSpec, replicas: int, seconds: float = SECONDS) -> None:
        self.spec = spec
        self.replicas = replicas
        self.seconds = seconds

    def run(
        self,
        arrivals: Sequence[Arrival],
        seed: int,
        *,
        concurrency: str | int = "adaptive",
        priority: Priority = PATIENT,
        policy: str = "prefix_cost",
        untold: int | None = None,
    ) -> dict[str, Any]:
        """Figures by class."""
        jobs, _ = prepare(sorted(arrivals, key=lambda arrival: arrival.due), self.spec)
        if priority is ONE_CLASS:
            jobs = [job._replace(arrival=replace(job.arrival, priority="standard")) for job in jobs]
        run = simulate(
            jobs,
            registry.create(policy),
            self.spec,
            self.replicas,
            seed,
            concurrency=concurrency,
            priority=priority,
            untold=untold,
        )
        return by_class(run, self.seconds)

    def part(self, replicas: int) -> "Fleet":
        """So many replicas of its kind."""
        return Fleet(self.spec, replicas, self.seconds)

    def capacity(self, arrivals: Sequence[Arrival], seed: int) -> float:
        """Requests a second that it gets done of traffic that never runs dry."""
        (figures,) = self.run(arrivals, seed, concurrency="none", priority=ONE_CLASS).values()
        if not figures["throughput"]:
            raise ValueError(f"nothing is done within {self.seconds:g} s: give more --seconds")
        return float(figures["throughput"])


def by_class(run: Run, seconds: float = SECONDS) -> dict[str, Any]:
    """Times of those due after the warm-up, and what was done from then until no more came."""
    figures: dict[str, Any] = {}
    warm = WARM * seconds
    for group in sorted({outcome.group for outcome in run.outcomes}):
        mine = [o for o in run.outcomes if o.group == group and not o.shed]
        done = [o for o in mine if warm <= o.due + o.e2e <= seconds]
        counted = [o for o in mine if o.due >= warm]
        figures[group] = {
            "requests": len(counted),
            "ttft": latency(o.ttft for o in counted),
            "longest_ttft": max(o.ttft for o in counted),
            "queue": latency(o.queue for o in counted),
            "throughput": len(done) / (seconds - warm),
            "callers": _callers(done),
            "longest_gap": _longest_gap(done),
        }
    return figures


def _callers(done: Sequence[Outcome]) -> dict[str, int]:
    """Uncached prompt tokens that each caller had computed."""
    tokens: dict[str, int] = {}
    for outcome in done:
        tokens[outcome.caller] = tokens.get(outcome.caller, 0) + outcome.tokens - outcome.cached
    return dict(sorted(tokens.items()))


def _longest_gap(done: Sequence[Outcome]) -> float:
    """Seconds between two first tokens, at most."""
    firsts = sorted(o.due + o.ttft for o in done)
    return max((b - a for a, b in pairwise(firsts)), default=0.0)


def flood(fleet: Fleet, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One entry for each kind of batch: the two alone, and together.

    `apart` is what no scheduler of requests gets around where an engine's step is not cut short: each replica
    does one of the two, and as few as carry the chats do those.
    """
    talks: dict[int, list[Arrival]] = {}
    for seed in seeds:
        most = fleet.capacity(chats(40.0 * fleet.replicas, seed, fleet.seconds), seed)
        talks[seed] = chats(INTERACTIVE * most, seed, fleet.seconds)
    for_chats = min(ceil(INTERACTIVE * fleet.replicas), max(1, fleet.replicas - 1))
    alone = [fleet.run(talk, seed) for seed, talk in talks.items()]
    apart = [fleet.part(for_chats).run(talk, seed) for seed, talk in talks.items()]
    entries = []
    for name, (prompt, output) in BATCHES.items():
        rows: dict[str, list[dict[str, Any]]] = {"alone": alone, "apart": []}
        for seed, others in zip(seeds, apart, strict=True):
            come = partial(cold, prompt=prompt, output=output, seed=seed, seconds=fleet.seconds)
            most = fleet.capacity(come(50.0 * fleet.replicas), seed)
            talk, work = talks[seed], come(FLOOD * most)
            both = fleet.run([*talk, *work], seed)
            without = fleet.run([*talk, *work], seed, concurrency="none", priority=ONE_CLASS)
            split = {**fleet.part(max(1, fleet.replicas - for_chats)).run(work, seed), **others}
            for what, figures in (("admission", both), ("none", without), ("apart", split)):
                figures["batch"]["share_of_rest"] = figures["batch"]["throughput"] / (1 - INTERACTIVE) / most
                rows.setdefault(what, []).append(figures)
        p95 = {what: fmean(run["interactive"]["ttft"]["p95"] for run in runs) for what, runs in rows.items()}
        share = {
            what: fmean(run["batch"]["share_of_rest"] for run in runs)
            for what, runs in rows.items()
            if what != "alone"
        }
        entry = {
            "batch": name,
            "interactive_ttft_p95": p95,
            "inflation": p95["admission"] / p95["alone"],
            "inflation_without": p95["none"] / p95["alone"],
            "inflation_apart": p95["apart"] / p95["alone"],
            "batch_share_of_rest": share["admission"],
            "batch_share_of_rest_apart": share["apart"],
            "longest_gap": max(run["batch"]["longest_gap"] for run in rows["admission"]),
            "callers": [run["batch"]["callers"] for run in rows["admission"]],
            "runs": rows,
        }
        entries.append(entry)
        print(
            f"flood, {name}: interactive TTFT P95 {_ms(p95['alone'])} alone, {_ms(p95['admission'])} beside "
            f"it ({entry['inflation']:.2f} times), {_ms(p95['none'])} without admission; batch gets "
            f"{share['admission']:.1%} of what is left; apart {entry['inflation_apart']:.2f} times, "
            f"{share['apart']:.1%}",
            flush=True,
        )
    return entries


def long(fleet: Fleet, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Chats, and beside them one cold prompt of 100,000 tokens after the other, one at a time."""
    entries = []
    for policy in ("prefix_cost", "least_load", "round_robin"):
        rows: dict[str, list[dict[str, float]]] = {"alone": [], "beside": []}
        for seed in seeds:
            talk = chats(6.0 * fleet.replicas, seed, fleet.seconds)
            huge = [
                replace(arrival, due=WARM * fleet.seconds + 12.0 * number)
                for number, arrival in enumerate(cold(0.2, 100_000, 100, seed, priority="standard")[:3])
            ]
            for what, arrivals in (("alone", talk), ("beside", [*talk, *huge])):
                figures = fleet.run(arrivals, seed, policy=policy)["interactive"]
                rows[what].append({**figures["ttft"], "longest": figures["longest_ttft"]})
        means = {
            what: {key: fmean(row[key] for row in found) for key in found[0]} for what, found in rows.items()
        }
        entries.append({"policy": policy, **means})
        print(
            f"long, {policy}: interactive TTFT "
            + "; ".join(
                f"{what} P95 {_ms(row['p95'])}, P99 {_ms(row['p99'])}, longest {_ms(row['longest'])}"
                for what, row in means.items()
            ),
            flush=True,
        )
    return entries


def sweep(fleet: Fleet, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Each limit at two loads; TTFT counts from when a request was due, wherever it waited."""
    entries = []
    for name, (prompt, output) in BATCHES.items():
        come = partial(cold, prompt=prompt, output=output, seconds=fleet.seconds)
        most = {s: fleet.capacity(come(50.0 * fleet.replicas, seed=s), s) for s in seeds}
        for load in (0.9, FLOOD):
            found: dict[str, dict[str, float]] = {}
            works = {seed: come(load * most[seed], seed=seed) for seed in seeds}
            kinds: dict[str, dict[str, Any]] = {str(limit): {"concurrency": limit} for limit in LIMITS}
            kinds |= {f"adaptive from {start}": {"untold": start} for start in STARTS}
            for kind, how in kinds.items():
                runs = [fleet.run(work, seed, **how)["batch"] for seed, work in works.items()]
                found[kind] = {
                    "throughput": fmean(run["throughput"] for run in runs),
                    "ttft_p95": fmean(run["ttft"]["p95"] for run in runs),
                }
            fixed = [figures for limit, figures in found.items() if limit.isdigit()]
            best = {
                "throughput": max(figures["throughput"] for figures in fixed),
                "ttft_p95": min(figures["ttft_p95"] for figures in fixed),
            }
            against_best = {
                kind: {key: figures[key] / best[key] for key in best}
                for kind, figures in found.items()
                if kind.startswith("adaptive")
            }
            entries.append({"traffic": name, "load": load, "limits": found, "against_best": against_best})
            print(
                f"sweep, {name} at {load:g}: "
                + ", ".join(
                    f"{limit} {row['throughput']:.1f}/s {_ms(row['ttft_p95'])}"
                    for limit, row in found.items()
                ),
                flush=True,
            )
    return entries


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


PARTS = {"flood": flood, "long": long, "sweep": sweep}


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="bench admission", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--profile", default="h100x2-32b")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of traffic, a third of it warm-up")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args(argv)
    fleet = Fleet(profile(args.profile), args.replicas, args.seconds)
    seeds = range(1, args.seeds + 1)
    started = time.perf_counter()
    try:
        parts = {name: PARTS[name](fleet, seeds) for name in args.parts.split(",")}
    except ValueError as error:
        print(f"bench admission: {error}", file=sys.stderr)
        return 2
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    if args.json is not None:
        workload = {
            "command": f"python -m bench admission {' '.join(argv)}".strip(),
            **{key: str(value) for key, value in vars(args).items()},
        }
        write(result([], workload=workload, simulated=True, **parts), args.json)
    return 0
