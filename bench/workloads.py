"""Made-up traffic whose sharing is known: lists of arrivals for the load generator and the simulator.

Pure and deterministic: a workload is a function of its shape and a seed. Arrivals are open loop (Poisson), so
a slow answer never delays the next request. Nothing in `random` shares a prefix with anything.

shared       one of `groups` system prompts, each with a question of its own
random       a unique system prompt and question of the same lengths
mixed        each request is shared or random, by `shared_fraction`
hot          shared with one group
multiturn    sessions that share the groups' system prompts; each turn repeats the whole session so far
agents       sessions of many quick steps behind a long prompt of instructions and tools; each step adds what
             a tool said, and one in ten is a sub-agent's: its own task behind the same tools
rag          a short system prompt, then `DOCUMENTS` of `groups` documents in an order of their own, `prefix`
             tokens together: what two prompts share ends where their order differs
adversarial  shared, but each system prompt begins with the time of day: nothing can be shared
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from bench.prompts import Conversation, Prompt, Segment

DOCUMENTS = 4
"""Documents of one `rag` prompt."""
SUB_AGENTS = 0.1
"""Share of an agent's steps that a sub-agent takes over."""
AGENT_STEPS = 4
"""How many steps of an agent there are for each turn of a conversation, at as many times the pace."""

Length = int | tuple[int, int]
"""Tokens: fixed, or drawn evenly from an inclusive range."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request and when it is due."""

    due: float
    """Seconds since the start."""
    group: str
    """`shared` if an earlier request began alike, else `random`."""
    prompt: Prompt
    output_tokens: int
    session: str | None = None
    priority: str = "standard"
    caller: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens, without what a chat template adds."""
        return self.prompt.tokens


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of what. Rates are requests a second, lengths tokens."""

    rate: float = 6.0
    requests: int = 1000
    groups: int = 24
    zipf: float = 0.0
    """Exponent of the popularity of groups; 0 is even."""
    prefix: Length = 1200
    """A system prompt."""
    question: Length = 100
    output: Length = 64
    shared_fraction: float = 0.5
    turns: tuple[int, int] = (5, 6)
    """Turns of a session, inclusive."""
    turn_gap: float = 7.0
    """Mean seconds from one turn of a session to the next, drawn exponentially."""

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.requests < 0 or self.groups < 1 or self.turn_gap <= 0:
            raise ValueError("rate and turn_gap must be positive, groups at least 1, requests not negative")
        if not 0 <= self.shared_fraction <= 1:
            raise ValueError("shared_fraction must be between 0 and 1")
        if not 1 <= self.turns[0] <= self.turns[1]:
            raise ValueError("turns must be a range of at least 1")


def generate(workload: str, shape: Shape, seed: str | int) -> list[Arrival]:
    """The arrivals of a workload, ordered by due time; different seeds share nothing."""
    try:
        make = WORKLOADS[workload]
    except KeyError:
        raise ValueError(f"unknown workload {workload!r}; there are {', '.join(WORKLOADS)}") from None
    return make(shape, str(seed))


def _questions(shape: Shape, seed: str) -> list[Arrival]:
    """Requests of one system prompt and one question each."""
    rng, popularity = Random(f"{seed}/schedule"), _popularity(shape)
    system = [_draw(shape.prefix, Random(f"{seed}/group/{group}")) for group in range(shape.groups)]
    arrivals, due = [], 0.0
    for i in range(shape.requests):
        due += rng.expovariate(shape.rate)
        is_shared = rng.random() < shape.shared_fraction
        group = bisect_left(popularity, rng.random())
        unique, question, output = (_draw(x, rng) for x in (shape.prefix, shape.question, shape.output))
        if is_shared:
            first = Segment("system", f"{seed}/group/{group}", system[group])
        else:
            first = Segment("system", f"{seed}/unique/{i}", unique)
        prompt = Conversation((first, Segment("user", f"{seed}/question/{i}", question)))
        arrivals.append(Arrival(due, "shared" if is_shared else "random", prompt, output))
    return arrivals


def _sessions(shape: Shape, seed: str) -> list[Arrival]:
    """Sessions whose turns come at their own pace, answered or not; replies are made up beforehand."""
    rng, popularity = Random(f"{seed}/schedule"), _popularity(shape)
    system = [_draw(shape.prefix, Random(f"{seed}/group/{group}")) for group in range(shape.groups)]
    mean_turns = sum(shape.turns) / 2
    # Sessions begin before zero, so that every turn has its steady share from the start.
    start = -mean_turns * shape.turn_gap
    seconds = shape.requests / shape.rate
    arrivals = []
    number = 0
    while start < seconds:
        start += rng.expovariate(shape.rate / mean_turns)
        number += 1
        session = f"{seed}/session/{number}"
        group = bisect_left(popularity, rng.random())
        segments: tuple[Segment, ...] = (Segment("system", f"{seed}/group/{group}", system[group]),)
        due = start
        for turn in range(rng.randint(*shape.turns)):
            segments += (Segment("user", f"{session}/{turn}", _draw(shape.question, rng)),)
            output = _draw(shape.output, rng)
            if 0 <= due < seconds:
                arrivals.append(Arrival(due, "shared", Conversation(segments), output, session))
            segments += (Segment("assistant", f"{session}/{turn}/reply", output),)
            due += rng.expovariate(1 / shape.turn_gap)
    arrivals.sort(key=lambda arrival: arrival.due)
    return arrivals


def _agents(shape: Shape, seed: str) -> list[Arrival]:
    """Steps come when the tool before has answered, whether or not the model has; answers are made up."""
    rng, popularity = Random(f"{seed}/schedule"), _popularity(shape)
    system = [_draw(shape.prefix, Random(f"{seed}/group/{group}")) for group in range(shape.groups)]
    low, high = (turns * AGENT_STEPS for turns in shape.turns)
    mean_steps, gap = (low + high) / 2, shape.turn_gap / AGENT_STEPS
    start, seconds = -mean_steps * gap, shape.requests / shape.rate
    arrivals = []
    number = 0
    while start < seconds:
        start += rng.expovariate(shape.rate / mean_steps)
        number += 1
        session = f"{seed}/session/{number}"
        group = bisect_left(popularity, rng.random())
        tools = Segment("system", f"{seed}/group/{group}", system[group])
        segments: tuple[Segment, ...] = (
            tools,
            Segment("user", f"{session}/task", _draw(shape.question, rng)),
        )
        due = start
        for step in range(rng.randint(low, high)):
            output, result = _draw(shape.output, rng), _draw(shape.question, rng)
            name, prompt = session, segments
            if rng.random() < SUB_AGENTS:
                name = f"{session}/{step}/sub"
                prompt = (tools, Segment("user", f"{name}/task", _draw(shape.question, rng)))
            if 0 <= due < seconds:
                arrivals.append(Arrival(due, "shared", Conversation(prompt), output, name))
            segments += (
                Segment("assistant", f"{session}/{step}/call", output),
                Segment("user", f"{session}/{step}/result", result),
            )
            due += rng.expovariate(1 / gap)
    arrivals.sort(key=lambda arrival: arrival.due)
    return arrivals


def _documents(shape: Shape, seed: str) -> list[Arrival]:
    """The documents of a prompt are drawn by popularity, without repetition, and stand in the order drawn."""
    rng, popularity = Random(f"{seed}/schedule"), _popularity(shape)
    shape_each = shape.prefix if isinstance(shape.prefix, int) else sum(shape.prefix) // 2
    count = min(DOCUMENTS, shape.groups)
    system = Segment("system", f"{seed}/instructions", max(1, shape_each // 10))
    length = max(1, (shape_each - system.tokens) // count)
    arrivals, due = [], 0.0
    for i in range(shape.requests):
        due += rng.expovariate(shape.rate)
        chosen: list[int] = []
        while len(chosen) < count:
            document = bisect_left(popularity, rng.random())
            if document not in chosen:
                chosen.append(document)
        found = tuple(Segment("user", f"{seed}/document/{document}", length) for document in chosen)
        question = Segment("user", f"{seed}/question/{i}", _draw(shape.question, rng))
        prompt = Conversation((system, *found, question))
        arrivals.append(Arrival(due, "shared", prompt, _draw(shape.output, rng)))
    return arrivals


def _timestamps(shape: Shape, seed: str) -> list[Arrival]:
    """What looks shared and is not: a clock in front of it."""
    arrivals = []
    for i, arrival in enumerate(_questions(replace(shape, shared_fraction=1.0), seed)):
        assert isinstance(arrival.prompt, Conversation)
        stamp = Random(f"{seed}/clock/{i}").randrange(10**12)
        clock = Segment("system", f"{seed}/clock/{i}", 12, f"{stamp} is the time in nanoseconds.")
        prompt = Conversation((clock, *arrival.prompt.segments))
        arrivals.append(replace(arrival, group="random", prompt=prompt))
    return arrivals


def _popularity(shape: Shape) -> list[float]:
    """Cumulative shares of the groups."""
    weights = [1 / (group + 1) ** shape.zipf for group in range(shape.groups)]
    total = sum(weights)
    shares = [share / total for share in accumulate(weights)]
    shares[-1] = 1.0  # rounding must not leave a gap at the end
    return shares


def _draw(length: Length, rng: Random) -> int:
    return length if isinstance(length, int) else rng.randint(*length)


WORKLOADS: dict[str, Callable[[Shape, str], list[Arrival]]] = {
    "shared": lambda shape, seed: _questions(replace(shape, shared_fraction=1.0), seed),
    "random": lambda shape, seed: _questions(replace(shape, shared_fraction=0.0), seed),
    "mixed": _questions,
    "hot": lambda shape, seed: _questions(replace(shape, shared_fraction=1.0, groups=1), seed),
    "multiturn": _sessions,
    "agents": _agents,
    "rag": _documents,
    "adversarial": _timestamps,
}
