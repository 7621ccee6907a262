"""Several proxies in front of one simulated fleet, on a virtual clock: what a late index costs.

Each proxy is the product's own router, fleet and index; a balancer that knows nothing draws one for each
request. What they tell each other (placements, what became of them, their load) arrives `delay` seconds
later, or never. Discrete events, no sockets, no real time; all that comes from it is *simulated*. Without a
queue of its own: every request goes on at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.engine_model import EngineSpec
from bench.simulation import AFFINITY_TOKENS, MODEL, POLL_SECONDS, Job, Outcome, Run
from bench.timeline import NEVER, Timeline
from policies.base import Policy
from proxy.description import Description, Load
from proxy.fleet import Fleet
from proxy.index.base import Placement
from proxy.index.memory import MemoryIndex
from proxy.router import Lease, Router, RouteRequest

LOAD_SECONDS = 0.05
"""How often proxies that share hear of each other's load, as in the product."""


@dataclass(slots=True)
class Proxy:
    """One of them."""

    fleet: Fleet
    index: MemoryIndex
    router: Router
    told: dict[int, Placement] = field(default_factory=dict)
    """What others placed, by their request's number, until they tell what became of it."""


@dataclass(slots=True)
class Open:
    """A request under way."""

    proxy: int
    lease: Lease
    outcome: Outcome


def simulate(
    jobs: Sequence[Job],
    policy: Callable[[], Policy],
    spec: EngineSpec,
    replicas: int,
    seed: int,
    *,
    proxies: int = 1,
    delay: float | None = 0.0,
) -> Run:
    """Route the jobs from empty caches and empty indexes.

    `delay`: seconds until other proxies know; None: they never do, and each knows only its own.
    """
    return _Several(policy, spec, replicas, seed, proxies, delay).run(jobs)


class _Several(Timeline):
    def __init__(
        self,
        policy: Callable[[], Policy],
        spec: EngineSpec,
        replicas: int,
        seed: int,
        proxies: int,
        delay: float | None,
    ) -> None:
        self.names = [f"r{i}" for i in range(replicas)]
        super().__init__(spec, self.names)
        self.spec, self.delay = spec, delay
        self.proxies = [self._proxy(policy(), f"{seed}/{i}") for i in range(proxies)]
        self.balancer = Random(f"{seed}/balancer")
        self.result = Run([], dict.fromkeys(self.names, 0), dict.fromkeys(self.names, 0))
        self.open: dict[str, Open] = {}
        self.poll_due = self.load_due = 0.0

    def _proxy(self, policy: Policy, seed: str) -> Proxy:
        fleet, index = Fleet(lambda: self.now), MemoryIndex()
        for name in self.names:
            about = Description(
                "vllm", {MODEL: None}, block_size=self.spec.block_size, max_seqs=self.spec.max_seqs
            )
            fleet.add(name, f"simulated://{name}", about)
            fleet.mark(name, up=True)
            index.resize(name, self.spec.blocks)
        return Proxy(fleet, index, Router(fleet, index, policy, Random(seed)))

    def run(self, jobs: Sequence[Job]) -> Run:
        for number, job in enumerate(jobs):
            self.advance(job.arrival.due)
            self._dispatch(number, job)
        self.advance(NEVER)
        self.result.seconds = self.now
        assert not self.open, "every request ends"
        return self.result

    def _dispatch(self, number: int, job: Job) -> None:
        arrival, keys, tokens = job
        chosen = self.balancer.randrange(len(self.proxies))
        proxy, size = self.proxies[chosen], self.spec.block_size
        start = min(len(keys), max(1, AFFINITY_TOKENS // size))
        self._share_loads()
        lease = proxy.router.route(
            RouteRequest(
                MODEL,
                keys,
                tokens,
                block_tokens=size,
                affinity=keys[start - 1] if start else 0,
                session=arrival.session,
                stream=True,
            )
        )
        name = lease.replica.name
        outcome = Outcome(arrival.group, arrival.due, tokens, arrival.output_tokens, name)
        self.result.outcomes.append(outcome)
        self.result.requests[name] += 1
        self.result.decisions[lease.decision] = self.result.decisions.get(lease.decision, 0) + 1
        self.open[str(number)] = Open(chosen, lease, outcome)
        self.engines[name].submit(self.now, str(number), keys, tokens, arrival.output_tokens)
        self._tell(chosen, lambda other: self._predicted(other, number, name, job))

    def _predicted(self, other: Proxy, number: int, name: str, job: Job) -> None:
        other.told[number] = other.index.predict(name, job.keys)

    def _reported(self, other: Proxy, number: int, predicted: int, reported: int) -> None:
        placement = other.told.pop(number, None)
        if placement is not None:
            other.index.confirm(placement, predicted, reported)

    def _tell(self, teller: int, message: Callable[[Proxy], None]) -> None:
        """All others, `delay` seconds from now."""
        if self.delay is None or len(self.proxies) == 1:
            return

        def arrives() -> None:
            for number, other in enumerate(self.proxies):
                if number != teller:
                    message(other)

        self.after(self.delay, arrives)

    def _share_loads(self) -> None:
        if self.delay is None or len(self.proxies) == 1 or self.now < self.load_due:
            return
        self.load_due = self.now + max(LOAD_SECONDS, self.delay)
        for name in self.names:
            own = [proxy.fleet.replicas[name].load for proxy in self.proxies]
            total = Load(*(sum(values) for values in zip(*own, strict=True)))
            for proxy, mine in zip(self.proxies, own, strict=True):
                others = Load(*(whole - part for whole, part in zip(total, mine, strict=True)))
                proxy.fleet.replicas[name].share(others)

    def happened(self, request: str, time: float, kind: str, cached: int) -> None:
        one = self.open[request]
        outcome, lease = one.outcome, one.lease
        if kind == "first":
            outcome.ttft = time - outcome.due
            lease.first_token(time)
        elif kind == "done":
            del self.open[request]
            outcome.cached, outcome.e2e = cached, time - outcome.due
            self.result.uncached[outcome.replica] += outcome.tokens - cached
            size = self.spec.block_size
            predicted, reported = round(lease.matched / size), round(cached / size)
            lease.close(answered=True, reported=cached)
            self._tell(one.proxy, lambda other: self._reported(other, int(request), predicted, reported))

    def poll(self, now: float) -> None:
        if now >= self.poll_due:
            self.poll_due = now + POLL_SECONDS
            for proxy in self.proxies:
                for name, engine in self.engines.items():
                    proxy.fleet.replicas[name].view.kv_usage = engine.kv_usage
