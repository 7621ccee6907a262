"""What routers are given to do: a case's requests, and what comes before. Pure but for a trace's file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench import traffic
from bench.engine_prompt import EnginePrompt
from bench.peers_cases import Case
from bench.plan import Planned, prepare
from bench.traffic import scaled
from bench.windows import at_rate
from bench.workloads import generate


@dataclass(slots=True)
class Fleet:
    """The replicas of a case."""

    urls: Sequence[str]
    model: str
    block_size: int
    blocks: int
    prompt: EnginePrompt
    simulated: bool


def plans(
    case: Case, fleet: Fleet, seed: str, duration: float, warm_up: float, number: int = 1
) -> tuple[list[Planned], ...]:
    """What is sent in repeat `number`, and what is sent before it with other prompts."""

    def traced() -> list[Planned]:
        count = round(case.rate * duration)
        assert case.trace is not None
        arrivals = traffic.read(case.trace, rate=case.rate, seed=1, limit=None)
        taken = [
            replace(scaled(arrival, case.scale_tokens), output_tokens=case.shape.output)  # type: ignore[arg-type]
            for arrival in arrivals[(number - 1) * count : number * count]
        ]
        if not taken:
            raise ValueError(f"{case.trace} has no requests for repeat {number}")
        plan = prepare(taken, fleet.prompt, model=fleet.model, block_size=fleet.block_size)
        room = fleet.blocks * fleet.block_size
        return at_rate([p for p in plan if p.prompt_tokens + p.output_tokens < room], case.rate)

    def made(seconds: float, name: str) -> list[Planned]:
        shape = replace(case.shape, rate=case.rate, requests=round(case.rate * seconds))
        arrivals = generate(case.workload, shape, name)
        return prepare(arrivals, fleet.prompt, model=fleet.model, block_size=fleet.block_size)

    return traced() if case.trace else made(duration, seed), made(warm_up, f"{seed}/warm-up")
