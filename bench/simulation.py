"""The product's own router, fleet, index and policies in front of simulated replicas, on a virtual clock.

Discrete events, no sockets, no threads, no real time: equal inputs give equal results. What it cannot show
is what the proxy costs, what tokenizing costs, and anything a real engine does that `bench.engine_model` does
not; all that comes from it is labelled *simulated*.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from bench.engine_model import EngineSpec
from bench.prompts import Keys
from bench.timeline import NEVER, Timeline
from bench.workloads import Arrival
from policies.base import Policy, follows_prefixes
from proxy.admission import Admission
from proxy.concurrency import Allowance, patience
from proxy.description import Description
from proxy.errors import Shed
from proxy.fleet import Fleet
from proxy.hot import TICK_SECONDS, Hot
from proxy.index.memory import MemoryIndex
from proxy.priority import Priority
from proxy.router import Lease, Router, RouteRequest

MODEL = "simulated"
AFFINITY_TOKENS = 512
"""How much of a prompt's start decides its affinity, about as in the proxy."""
POLL_SECONDS = 1.0
"""How often the fleet learns the replicas' cache usage, as from their metrics."""


class Job(NamedTuple):
    """An arrival with its keys, made once for all policies."""

    arrival: Arrival
    keys: Keys
    tokens: int


@dataclass(slots=True)
class Outcome:
    """What became of one request."""

    group: str
    due: float
    tokens: int
    output_tokens: int
    replica: str
    cached: int = 0
    ttft: float = 0.0
    """Seconds from due time to first token."""
    e2e: float = 0.0
    priority: str = "standard"
    caller: str = ""
    queue: float = 0.0
    """Seconds it waited in the proxy."""
    shed: bool = False
    """Turned away with 429: it has no times."""


@dataclass(slots=True)
class Run:
    """What one policy did with the jobs."""

    outcomes: list[Outcome]
    uncached: dict[str, int]
    """Replica name to prompt tokens it had to compute."""
    requests: dict[str, int]
    """Replica name to requests it was sent."""
    seconds: float = 0.0
    """Virtual time when the last answer was complete."""
    decisions: dict[str, int] = field(default_factory=dict)


def prepare(arrivals: Sequence[Arrival], spec: EngineSpec) -> tuple[list[Job], int]:
    """The jobs, and how many arrivals were left out because they do not fit into a replica's cache."""
    jobs = []
    for arrival in arrivals:
        tokens = arrival.prompt_tokens
        if tokens + arrival.output_tokens + spec.block_size <= spec.cache_tokens:
            jobs.append(Job(arrival, arrival.prompt.keys(spec.block_size), tokens))
    return jobs, len(arrivals) - len(jobs)


def simulate(
    jobs: Sequence[Job],
    policy: Policy,
    spec: EngineSpec,
    replicas: int,
    seed: int,
    *,
    concurrency: str | int = "none",
    priority: Priority | None = None,
    untold: int | None = None,
) -> Run:
    """Route the jobs with one policy, from empty caches and an empty index.

    `concurrency` and `priority` are the proxy's settings of those names. `untold`: where an adaptive limit
    starts; engines then do not say how many sequences they run.
    """
    simulation = Simulation(policy, spec, replicas, seed, concurrency, priority or Priority())
    if untold is not None:
        simulation.begin_at(untold)
    return simulation.run(jobs)


class Simulation(Timeline):
    """One run, an event after the other."""

    def __init__(
        self,
        policy: Policy,
        spec: EngineSpec,
        replicas: int,
        seed: int,
        concurrency: str | int,
        priority: Priority,
    ) -> None:
        super().__init__(spec, [f"r{i}" for i in range(replicas)])
        self.spec = spec
        self.fleet = Fleet(lambda: self.now)
        self.fleet.limit(concurrency)
        self.admission = Admission(self.fleet, priority, prefill=patience(concurrency))
        self.fleet.freed = self.admission.pump
        self.ranks = {name: rank for rank, name in enumerate(priority.classes)}
        index = MemoryIndex()
        for name in self.engines:
            about = Description("vllm", {MODEL: None}, block_size=spec.block_size, max_seqs=spec.max_seqs)
            self.fleet.add(name, f"simulated://{name}", about)
            self.fleet.mark(name, up=True)
            index.resize(name, spec.blocks)
        self.router = Router(self.fleet, index, policy, Random(seed))
        self.hot = self.router.hot = Hot(self.fleet, index, lambda: follows_prefixes(policy))
        self.result = Run([], dict.fromkeys(self.engines, 0), dict.fromkeys(self.engines, 0))
        self.open: dict[str, tuple[Lease, Outcome]] = {}
        self.poll_due = 0.0
        self.hot_due = 0.0

    def begin_at(self, limit: int) -> None:
        """Let the proxy not know how many sequences an engine runs, and think that it is so many."""
        for name, replica in self.fleet.replicas.items():
            self.fleet.describe(name, replace(replica.description, max_seqs=None))
            replica.limit.value = replica.view.limit = float(limit)

    def run(self, jobs: Sequence[Job]) -> Run:
        """Everything, to the last answer."""
        for number, job in enumerate(jobs):
            self.advance(job.arrival.due)
            self._dispatch(str(number), job)
        self.advance(NEVER)
        self.result.seconds = self.now
        assert not self.open, "every request ends"
        return self.result

    def router_of(self, route: RouteRequest) -> Router:  # noqa: ARG002 - for those that have several
        """Whose a request is."""
        return self.router

    def ended(self, lease: Lease, outcome: Outcome) -> None:
        """A request has ended."""

    def polled(self) -> None:
        """A second has gone by."""

    def _dispatch(self, number: str, job: Job) -> None:
        """Let a request in, or have it wait: as `proxy.dispatch` does."""
        arrival, keys, tokens = job
        rank = self.ranks[arrival.priority]
        size = self.spec.block_size
        start = min(len(keys), max(1, AFFINITY_TOKENS // size))
        route = RouteRequest(
            MODEL,
            keys,
            tokens,
            block_tokens=size,
            affinity=keys[start - 1] if start else 0,
            session=arrival.session,
            stream=True,
            allowed=self.admission.allowed(rank, self.now, MODEL),
            urgency=self.admission.classes[rank].urgency,
        )
        outcome = Outcome(arrival.group, arrival.due, tokens, arrival.output_tokens, "")
        outcome.priority, outcome.caller = arrival.priority, arrival.caller
        self.result.outcomes.append(outcome)
        if self.admission.passes(MODEL, 1, route.allowed):
            self._send(number, job, route, outcome)
            return

        def ready(allowed: Allowance | None) -> None:
            outcome.queue = self.now - outcome.due
            if allowed is None:
                outcome.shed = True
                self.admission.late(rank)
            else:
                route.allowed = allowed
                self._send(number, job, route, outcome)

        uncached = tokens - max(self.router.matches(route).values(), default=0)
        try:
            self.admission.enter(MODEL, rank, arrival.caller, uncached, 1, ready)
        except Shed:
            outcome.shed = True

    def _send(self, number: str, job: Job, route: RouteRequest, outcome: Outcome) -> None:
        arrival, keys, tokens = job
        lease = self.router_of(route).route(route)
        name = outcome.replica = lease.replica.name
        self.open[number] = lease, outcome
        result = self.result
        result.requests[name] += 1
        result.decisions[lease.decision] = result.decisions.get(lease.decision, 0) + 1
        rank = self.ranks[arrival.priority]
        if self.admission.reserve.watched:
            self.admission.sent(MODEL, rank, lease.reservation.uncached, 1)
        self.engines[name].submit(self.now, number, keys, tokens, arrival.output_tokens, priority=rank)

    def happened(self, request: str, time: float, kind: str, cached: int) -> None:
        """Tell the proxy of a first token, or of an answer's end."""
        lease, outcome = self.open[request]
        if kind == "first":
            outcome.ttft = time - outcome.due
            lease.first_token(time)
        elif kind == "done":
            del self.open[request]
            outcome.cached, outcome.e2e = cached, time - outcome.due
            self.result.uncached[outcome.replica] += outcome.tokens - cached
            lease.close(answered=True, reported=cached)
            self.ended(lease, outcome)

    def poll(self, now: float) -> None:
        """Do what the proxy does from time to time."""
        if now >= self.hot_due:
            self.hot_due = now + TICK_SECONDS
            self.hot.tick()
        if now >= self.poll_due:
            self.poll_due = now + POLL_SECONDS
            for name, engine in self.engines.items():
                self.fleet.replicas[name].view.kv_usage = engine.kv_usage
            self.admission.expire()
            self.polled()


def pooled_hits(jobs: Sequence[Job], blocks: int, block_size: int) -> list[int]:
    """Prompt tokens, job by job, that one LRU of `blocks` blocks holds; requests one after the other.

    The ceiling: a fleet whose caches were one. A prompt's tail is given up before its head, so a block is
    never there without its parents; the last token is always computed. A router that keeps one-off prompts
    apart can pass it slightly, for a single LRU cannot do that.
    """
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for job in jobs:
        keys, found = job.keys, 0
        limit = (job.tokens - 1) // block_size
        while found < len(keys) and found < limit and keys[found] in cache:
            found += 1
        hits.append(found * block_size)
        for key in reversed(keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits
