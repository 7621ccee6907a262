"""Windows of measurement: a scenario at a share of what the fleet can carry, and what came of it.

A window makes everything cold before it starts; what it measures belongs to it alone.
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic

from rich.console import Console

from bench import fleet, processes, report
from bench.capacity import round_robin_capacity
from bench.engine_prompt import EnginePrompt
from bench.load import Measured, measure
from bench.plan import Planned, prepare
from bench.profiles import EngineSpec
from bench.scenarios import Scenario

MODEL = "simulated"
REPLICAS = 4
MOST_PER_SECOND = 20.0
"""Requests that two slow cores can make, carry and answer without being what is measured."""
MOST_OF_OTHERS = 0.5
"""Cores that processes not ours may use before a window's times are doubtful."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running replicas, and what they say of themselves."""

    process: processes.Process
    facts: Sequence[fleet.EngineFacts]


@dataclass(slots=True)
class Window:
    """One scenario, planned: what is sent, at which rate, and what came of it."""

    scenario: Scenario
    plan: list[Planned]
    rate: float
    capacity: float
    measured: dict[str, Measured] = field(default_factory=dict)
    cpu: dict[str, dict[str, float]] = field(default_factory=dict)
    """Cores used, by policy and process; `others` is everything else on the machine."""


def plan_window(
    scenario: Scenario, prompt: EnginePrompt, spec: EngineSpec, share: float, seed: str, scale: float = 1.0
) -> Window:
    """A scenario's requests, at `share` of what round robin can carry of exactly them."""
    arrivals = scenario.arrivals(round(scenario.requests * scale), seed)
    plan = prepare(arrivals, prompt, model=MODEL, block_size=spec.block_size)
    capacity = round_robin_capacity(plan, spec, REPLICAS)
    rate = min(share * capacity, MOST_PER_SECOND)
    return Window(scenario, at_rate(plan, rate), rate, capacity)


def at_rate(plan: Sequence[Planned], rate: float) -> list[Planned]:
    """The same requests in the same rhythm, from zero, on average `rate` a second."""
    first, last = plan[0].due, plan[-1].due
    stretch = (len(plan) - 1) / rate / (last - first) if last > first else 1.0
    return [replace(planned, due=(planned.due - first) * stretch) for planned in plan]


async def run_window(
    window: Window,
    policy: str,
    engines: Fleet,
    proxy: processes.Process,
    console: Console,
    warm_up: Sequence[Planned] = (),
) -> None:
    """Send a window's requests through the proxy and keep what came of them."""
    before, began = _cpu_seconds(engines.process, proxy), monotonic()
    label = f"{policy:<12} {window.scenario.what:<17}"
    with report.progress(console, label, len(window.plan)) as advance:
        window.measured[policy] = await measure(
            window.plan,
            warm_up,
            urls=proxy.urls,
            engines=engines.facts,
            on_record=lambda _record: advance(),
        )
    seconds = monotonic() - began
    after = _cpu_seconds(engines.process, proxy)
    used = {name: (after[name] - before[name]) / seconds for name in after}
    used["others"] = max(0.0, used.pop("machine") - sum(used.values()))
    window.cpu[policy] = used
    if used["others"] > MOST_OF_OTHERS:
        console.print(f"[yellow]others used {used['others']:.1f} cores meanwhile: times say little")


def _cpu_seconds(engines: processes.Process, proxy: processes.Process) -> dict[str, float]:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "replicas": engines.cpu_seconds(),
        "proxy": proxy.cpu_seconds(),
        "load": own.ru_utime + own.ru_stime,
        "machine": processes.machine_cpu_seconds(),
    }
