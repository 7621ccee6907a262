"""`python -m bench canary`: what the proxy's canary does with good and bad policies. All of it *simulated*.

The product's router, fleet, index, split, guardrails and stages, in front of simulated replicas, on a virtual
clock. Four stories, each for several seeds:

better      round_robin, and prefix_cost tried beside it: reaches 100 % by itself
same        prefix_cost beside itself: chance alone must not end it
bad         prefix_cost, and random tried beside it: ends soon after its first request
turns bad   a canary that is as good as the main policy until it has half the traffic, and then sends all
            of it to one replica
"""

import argparse
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench import workloads
from bench.profiles import EngineSpec, profile
from bench.report import result, write
from bench.simulation import Job, Outcome, Simulation, prepare
from bench.workloads import Shape
from policies import registry
from policies.base import Decision, Replica, Request
from proxy.canary import Change, Phase
from proxy.canary_terms import CanaryTerms
from proxy.priority import Priority
from proxy.record import Record
from proxy.router import Lease, Router, RouteRequest
from proxy.trial import ARM, Trials

LIMIT = 120.0
"""Seconds from the breach within which the canary must be gone."""
HALF = 50.0


@dataclass(slots=True)
class AllToOne:
    """Every request to the first replica: a deliberately bad policy, for nothing but this."""

    def choose(self, request: Request, replicas: Sequence[Replica], rng: Random) -> Decision:  # noqa: ARG002
        """Take the first."""
        return Decision(replicas[0])


@dataclass(frozen=True, slots=True)
class Story:
    """What is tried against what, and how it should end."""

    name: str
    main: str
    tried: str
    ends: Phase
    turns: bool = False
    """Whether the canary sends everything to one replica once it has half the traffic."""

    @property
    def is_bad(self) -> bool:
        """Whether it should be ended."""
        return self.ends is Phase.ROLLED_BACK


STORIES = (
    Story("better", "round_robin", "prefix_cost", Phase.COMPLETE),
    Story("same", "prefix_cost", "prefix_cost", Phase.COMPLETE),
    Story("bad", "prefix_cost", "random", Phase.ROLLED_BACK),
    Story("turns bad", "prefix_cost", "prefix_affinity", Phase.ROLLED_BACK, turns=True),
)


class Tried(Simulation):
    """A simulation with a canary."""

    def __init__(self, story: Story, terms: CanaryTerms, spec: EngineSpec, replicas: int, seed: int) -> None:
        super().__init__(registry.create(story.main, {}), spec, replicas, seed, "none", Priority())
        self.router.name = story.main
        self.story = story
        self.trials = Trials(terms, self.router, {}, lambda: self.now)
        self.trials.begin()
        trial = self.trials.current
        assert trial is not None
        self.trial = trial
        self.changes: list[tuple[float, Change]] = []
        self.breached_at: float | None = None
        self._mine: set[int] = set()
        """Ids of the requests in flight that are the canary's."""

    def router_of(self, route: RouteRequest) -> Router:
        """As the proxy splits."""
        router = self.trials.router(route)
        if router is self.trial.other:
            self._mine.add(id(route))
            if self.breached_at is None and self.story.is_bad and not self.story.turns:
                self.breached_at = self.now
        return router

    def ended(self, lease: Lease, outcome: Outcome) -> None:
        """Tell the trial as the ledger does."""
        number = id(lease.request)
        record = Record("", "/v1/chat/completions", outcome.due, replica=outcome.replica)
        if number in self._mine:
            record.arm = ARM
            self._mine.discard(number)
        record.lease, record.ttft = lease, outcome.ttft
        record.prompt_tokens = record.reported_prompt = outcome.tokens
        record.routed_tokens, record.reported_cached = lease.matched, outcome.cached
        self.trials.read([record])

    def polled(self) -> None:
        """Judge, as the proxy does every two seconds."""
        canary = self.trial.canary
        self.changes += [(self.now, change) for change in canary.step(self.now)]
        if self.story.turns and self.breached_at is None and canary.percent >= HALF:
            self.trial.other.policy = AllToOne()
            self.breached_at = self.now


def main(argv: list[str]) -> int:
    """Run the command; 1 if a story did not end as it should."""
    args = _arguments().parse_args(argv)
    logging.getLogger("warmroute").setLevel(logging.ERROR)
    spec = profile(args.profile)
    shape = Shape(rate=args.rate, requests=round(args.rate * args.seconds), groups=args.groups)
    terms = {"stage_seconds": args.stage_seconds} if args.stage_seconds else {}
    runs = []
    print(
        f"Simulated: {args.rate:g} requests a second of {args.groups:,} system prompts for {args.seconds:,} "
        f"s, {args.replicas} replicas of {spec.name}; the canary's settings are the defaults"
        f"{''.join(f', {name} {value:g}' for name, value in terms.items())}.\n"
    )
    print("| story | seed | ended | after the breach | percent by second | why |")
    print("| --- | ---: | --- | ---: | --- | --- |", flush=True)
    for seed in range(1, args.seeds + 1):
        jobs, _ = prepare(workloads.generate("shared", shape, seed), spec)
        for story in STORIES:
            if args.story in (None, story.name):
                run = _run(story, jobs, CanaryTerms(policy=story.tried, **terms), spec, args.replicas, seed)
                runs.append(run)
                print(_row(run), flush=True)
    if args.json:
        workload = {**vars(args), "json": str(args.json)}
        write(result(runs, workload=workload, simulated=True), args.json)
    return 0 if all(run["as_it_should"] for run in runs) else 1


def _run(
    story: Story, jobs: Sequence[Job], terms: CanaryTerms, spec: EngineSpec, replicas: int, seed: int
) -> dict[str, Any]:
    began = time.perf_counter()
    world = Tried(story, terms, spec, replicas, seed)
    world.run(jobs)
    canary = world.trial.canary
    ended = next((at for at, change in world.changes if change.phase is story.ends), None)
    took = ended - world.breached_at if ended is not None and world.breached_at is not None else None
    return {
        "policy": f"{story.tried} beside {story.main}",
        "story": story.name,
        "seed": seed,
        "groups": {},
        "phase": canary.phase.value,
        "reason": canary.reason,
        "why": canary.why,
        "ended_at_seconds": ended,
        "seconds_from_breach": took,
        "stages": [[round(at, 1), change.percent] for at, change in world.changes],
        "as_it_should": canary.phase is story.ends
        and (not story.is_bad or (took is not None and took <= LIMIT)),
        "took_real_seconds": round(time.perf_counter() - began, 1),
    }


def _row(run: dict[str, Any]) -> str:
    took = run["seconds_from_breach"]
    stages = ", ".join(f"{at:.0f} s: {percent:g}" for at, percent in run["stages"])
    after = "" if took is None else f"{took:.0f} s"
    return (
        f"| {run['story']}: {run['policy']} | {run['seed']} | {run['phase']} | {after} | {stages} | "
        f"{run['why'] if run['phase'] == 'rolled_back' else ''} |"
    )


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench canary", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--story", choices=[story.name for story in STORIES], help="default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1200, help="of traffic")
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--groups", type=int, default=1500, help="system prompts")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--profile", default="h100x2-32b")
    parser.add_argument("--stage-seconds", type=float, help="instead of the default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    return parser
