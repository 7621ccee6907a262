"""How much traffic a fleet can carry, found on a virtual clock before anything is sent.

Pure. A rate given as a share of it means the same on every machine and for every profile.
"""

from collections.abc import Sequence

from bench.engine_model import EngineModel, EngineSpec
from bench.plan import Planned


def round_robin_capacity(plan: Sequence[Planned], spec: EngineSpec, replicas: int) -> float:
    """Requests a second that round robin gets through `replicas` engines when there is always work.

    The whole plan is handed over at once, in turns and in its order; what counts is when the last answer is
    complete, so the slack at the end makes it an underestimate.
    """
    engines = [EngineModel(spec, every_token=False) for _ in range(replicas)]
    for number, planned in enumerate(sorted(plan, key=lambda planned: planned.due)):
        engine = engines[number % replicas]
        engine.submit(0.0, str(number), planned.keys, planned.prompt_tokens, planned.output_tokens)
    last = max(event.time for engine in engines for event in engine.advance(float("inf")))
    return len(plan) / last
