"""What looking costs beside routing: breaks, canary, savings and shadows, a request.

Times are of one core's CPU, the median of several loops. What is sampled is told for one that is looked at,
and for the mean request. Memory is what Python allocated for a finder that has been sent hostile prompts.
"""

import tracemalloc
from array import array
from collections.abc import Callable
from random import Random
from statistics import median
from time import thread_time
from typing import Any

from bench.break_traffic import traffic
from policies import registry
from proxy.breaks.finder import Finder
from proxy.breaks.outline import Segment, outline
from proxy.breaks.sampler import SHARE, Sampler
from proxy.canary_terms import CanaryTerms
from proxy.counterfactual import Counterfactual
from proxy.description import Description
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.insight import Savings as SavingsTerms
from proxy.record import Record
from proxy.router import Router, RouteRequest
from proxy.trial import Trials

Row = dict[str, Any]
REPLICAS = 8
REQUESTS = 2000
LOOPS = 5
PROMPTS = 2000
HOSTILE, TEXTS = 32 * 1024, 150
"""Characters of a prompt that is made to be slow; prompts that are made to be remembered."""
QUICK = {"REQUESTS": 200, "LOOPS": 1, "PROMPTS": 20, "HOSTILE": 1024, "TEXTS": 3}
"""What `--quick` measures instead."""


def rows() -> list[Row]:
    """The rows of the table."""
    return [*_ledger(), *_breaks()]


def _row(name: str, value: float, unit: str, target: float | None = None) -> Row:
    return {"name": name, "value": value, "unit": unit, "target": target}


def _each_us(work: Callable[[], None], count: int) -> float:
    """Microseconds of CPU for each of `count` that `work` does."""
    times = []
    for _ in range(LOOPS):
        began = thread_time()
        work()
        times.append((thread_time() - began) / count * 1e6)
    return median(times)


def _records() -> tuple[Fleet, Router, list[Record]]:
    """A fleet, and requests that it has answered: 80 blocks, of one of 100 system prompts of 64."""
    rng, fleet, index = Random(1), Fleet(lambda: 1.0), MemoryIndex()
    for number in range(REPLICAS):
        name = f"r{number}"
        fleet.add(name, f"http://{name}", Description(engine="vllm", models={"m": None}))
        fleet.mark(name, up=True)
    router = Router(fleet, index, registry.create("prefix_cost", {}), rng, name="prefix_cost")
    systems = [array("Q", [rng.getrandbits(64) for _ in range(64)]) for _ in range(100)]
    records = []
    for number in range(REQUESTS):
        keys = rng.choice(systems) + array("Q", [rng.getrandbits(64) for _ in range(16)])
        request = RouteRequest("m", keys, 1290, stream=True, affinity=keys[31])
        lease = router.route(request)
        lease.close(answered=True)
        record = Record("x", "/v1/chat/completions", number / 100, replica=lease.replica.name)
        record.lease, record.prompt_tokens, record.routed_tokens = lease, 1290, lease.matched
        record.reported_prompt, record.reported_cached = 1290, lease.matched
        record.ttft, record.e2e = 0.1, 1.0
        records.append(record)
    return fleet, router, records


def _ledger() -> list[Row]:
    fleet, router, records = _records()
    batches = [records[at : at + 100] for at in range(0, REQUESTS, 100)]

    def cost(read: Callable[[list[Record]], None]) -> float:
        def all_of_them() -> None:
            for batch in batches:
                read(batch)

        return _each_us(all_of_them, REQUESTS)

    def counterfactual(shadows: tuple[str, ...], sample: float) -> Counterfactual:
        terms = SavingsTerms(sample=sample)
        return Counterfactual(shadows, terms, "prefix_cost", {}, fleet, lambda _: 20_000)

    trials = Trials(CanaryTerms(policy="least_load", baseline_seconds=0), router, {}, lambda: 1.0)
    trials.begin()
    requests = [record.lease.request for record in records if record.lease is not None]

    def split() -> None:
        for request in requests:
            trials.router(request)

    usual = SavingsTerms().sample
    two = cost(counterfactual(("round_robin",), 0.0).read)
    return [
        _row("savings as by default, the mean request", cost(counterfactual((), usual).read), "us", 3.0),
        _row("a shadow and that of the policy in use, a request", two, "us"),
        _row("canary: which side, a request", _each_us(split, REQUESTS), "us", 2.0),
        _row("canary: what became of it, a request", cost(trials.read), "us", 6.0),
        _row("canary: a judgement, every 2 s", _each_us(trials.step, 1), "us"),
    ]


def _breaks() -> list[Row]:
    bodies = list(traffic(PROMPTS, "micro", each=PROMPTS // 100 or 1))
    finder = Finder(0.0)

    def look() -> None:
        for body in bodies:
            finder.look(outline(body), 0.0, missed=500)

    sampler = Sampler(Finder(0.0), lambda: 0.0, per_second=20, spent=thread_time)

    def offer() -> None:
        for body in bodies:
            sampler.offer(body, 500)

    hostile = max(_each_us(lambda text=text: _one(text), 1) for text in _hostile())  # type: ignore[misc]
    return [
        _row("breaks: a request that is offered", _each_us(offer, len(bodies)), "us", 1.0),
        _row("breaks: a prompt that is looked at (6 kB)", _each_us(look, len(bodies)), "us"),
        _row("breaks: the worst prompt of 32 kB known", hostile / 1000, "ms"),
        _row("breaks: most of one core, by budget", 100 * SHARE, "%", 3.0),
        _row("breaks: memory after hostile prompts", _memory(), "MB", 32.0),
    ]


def _one(text: str) -> None:
    Finder(0.0).look([Segment("prompt", text)], 0.0)


def _hostile() -> list[str]:
    parts = (
        "1-",
        "a-",
        "1:",
        "!a",
        "a.",
        " ",
        "\n",
        "1a",
        "_1",
        "jan ",
        "1,",
        "0123abcd-",
        "a ",
        "x" * 255 + " ",
    )
    return [part * (HOSTILE // len(part)) for part in parts]


def _memory() -> float:
    rng = Random(1)
    texts = []
    for _ in range(TEXTS):
        words = [f"{rng.getrandbits(28):07x}" for _ in range(4000)]
        words[15::16] = ["end."] * len(words[15::16])
        texts.append(" ".join(words))
    tracemalloc.start()
    finder = Finder(0.0)
    for at, text in enumerate(texts):
        finder.look([Segment("prompt", text)], float(at))
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / 1e6
