"""What is sent: a made-up workload or a published trace, as the command line asks. Pure but for files.

The same options mean the same traffic in every command that has them. A trace that cannot be read is a
`TraceError` with file, line and field; nothing is repaired in silence.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench import traces, workloads
from bench.prompts import Blocks
from bench.workloads import Arrival, Shape

FORMATS = ("mooncake", "agentic", "azure", "mt_bench")
SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was asked for: with equal traffic two results may be compared."""

    workload: str
    trace: str | None
    """FORMAT:PATH"""
    arrivals: str | None
    """Where due times are taken from instead, FORMAT:PATH."""
    shape: Shape
    seed: int
    duration: float | None
    limit: int | None
    speed: float
    id_tokens: int | None
    """None: what the trace's sidecar says, else 512."""
    scale_tokens: int | None
    output_limit: int | None

    def described(self) -> dict[str, Any]:
        """For `workload` in a result: names of files without their folders."""
        told: dict[str, Any] = {"name": self.workload, "seed": self.seed}
        if self.trace is not None:
            form, _, path = self.trace.partition(":")
            told |= {"name": f"{form}:{Path(path).name}", "id_tokens": self.id_tokens}
            told |= {"scale_tokens": self.scale_tokens, "limit": self.limit, "rate": self.shape.rate}
        else:
            told |= {field.name: getattr(self.shape, field.name) for field in fields(Shape)}
        if self.arrivals is not None:
            told["arrivals"] = Path(self.arrivals.partition(":")[2]).name
        return told | {"speed": self.speed, "duration": self.duration, "output_limit": self.output_limit}

    def plan(self, seconds: float | None = None, *, seed: str = "") -> list[Arrival]:
        """The arrivals of so many seconds, in order.

        `seed` sets made-up traffic apart (`warm-up` shares nothing with the measured one); a trace has none
        but its own text.
        """
        name = f"{self.seed}/{seed}" if seed else f"{self.seed}"
        if self.trace is not None and not seed:
            arrivals = self._traced()
        else:
            requests = self.shape.requests if seconds is None else round(self.shape.rate * seconds)
            arrivals = workloads.generate(self.workload, replace(self.shape, requests=requests), name)
        if self.arrivals is not None:
            arrivals = _at_times(arrivals, read(self.arrivals, rate=self.shape.rate, seed=self.seed))
        arrivals = [replace(arrival, due=arrival.due / self.speed) for arrival in arrivals]
        if self.output_limit is not None:
            most = self.output_limit
            arrivals = [replace(a, output_tokens=max(1, min(most, a.output_tokens))) for a in arrivals]
        return [a for a in arrivals if seconds is None or a.due <= seconds]

    def _traced(self) -> list[Arrival]:
        assert self.trace is not None
        arrivals = read(
            self.trace,
            rate=self.shape.rate,
            seed=self.seed,
            id_tokens=self.id_tokens,
            limit=self.limit,
        )
        if self.scale_tokens is None:
            return arrivals
        return [scaled(arrival, self.scale_tokens) for arrival in arrivals]


def read(
    source: str, *, rate: float, seed: int, id_tokens: int | None = None, limit: int | None = None
) -> list[Arrival]:
    """The arrivals of FORMAT:PATH."""
    form, _, name = source.partition(":")
    path = Path(name)
    if form == "mooncake":
        return traces.mooncake(path, id_tokens=id_tokens, limit=limit)
    if form == "agentic":
        return traces.agentic(
            path, rate=rate, seed=seed, block_tokens=id_tokens or traces.MOONCAKE_TOKENS, limit=limit
        )
    if form == "azure":
        return traces.azure(path, seed=seed, limit=limit)
    if form == "mt_bench":
        return traces.mt_bench(path, rate=rate, seed=seed)[:limit]
    raise ValueError(f"a trace is FORMAT:PATH with one of {', '.join(FORMATS)}, not {source!r}")


def scaled(arrival: Arrival, tokens: int) -> Arrival:
    """So many tokens for each of the trace's ids: what is shared stays shared, only shorter."""
    prompt = arrival.prompt
    if isinstance(prompt, Blocks):
        short = max(1, prompt.tokens * tokens // prompt.id_tokens)
        return replace(arrival, prompt=replace(prompt, id_tokens=tokens, tokens=short))
    raise ValueError("only prompts that a trace gives as ids can be scaled")


def _at_times(arrivals: Sequence[Arrival], others: Sequence[Arrival]) -> list[Arrival]:
    """The first, due when the others are, in order; as many as there are of both."""
    if not others:
        raise ValueError("there are no arrivals to take times from")
    first = others[0].due
    return [replace(arrival, due=other.due - first) for arrival, other in zip(arrivals, others, strict=False)]


def add_options(options: argparse.ArgumentParser) -> None:
    """Those that decide the traffic."""
    traffic = options.add_argument_group("traffic")
    traffic.add_argument("--workload", default="mixed", choices=sorted(workloads.WORKLOADS))
    traffic.add_argument("--trace", metavar="FORMAT:PATH", help=f"instead; FORMAT: {', '.join(FORMATS)}")
    traffic.add_argument("--arrivals", metavar="FORMAT:PATH", help="take only the times from this trace")
    traffic.add_argument(
        "--id-tokens",
        type=int,
        metavar="N",
        help="tokens of an id, where no FILE.meta.json says (Mooncake's own files have none: 512)",
    )
    traffic.add_argument("--scale-tokens", type=int, metavar="N", help="send N tokens for each id of a trace")
    traffic.add_argument("--limit", type=int, help="only the first requests (agentic: sessions) of a trace")
    traffic.add_argument("--speed", type=float, default=1.0, help="how many times faster than written")
    traffic.add_argument("--output-limit", type=int, help="at most so many tokens out")
    traffic.add_argument("--rate", type=float, default=8.0, help="requests (a trace's sessions) a second")
    traffic.add_argument("--groups", type=int, default=24, help="system prompts, or documents")
    traffic.add_argument("--zipf", type=float, default=0.0, help="how uneven the groups are; 0: even")
    for name, default, what in (
        ("prefix", 1200, "a system prompt"),
        ("question", 100, "a question"),
        ("output", 64, "an answer"),
    ):
        traffic.add_argument(
            f"--{name}", type=length, default=default, metavar="N[-M]", help=f"tokens of {what}"
        )
    traffic.add_argument("--shared-fraction", type=float, default=SHAPE.shared_fraction, help="of mixed")
    traffic.add_argument("--turns", type=span, default=SHAPE.turns, metavar="N[-M]", help="of a session")
    traffic.add_argument("--turn-gap", type=float, default=SHAPE.turn_gap, help="mean seconds between turns")
    traffic.add_argument("--seed", type=int, default=1)


def from_arguments(
    arguments: argparse.Namespace, *, requests: int = 0, duration: float | None = None
) -> Traffic:
    """What the options ask for."""
    named = {
        field.name: getattr(arguments, field.name) for field in fields(Shape) if field.name != "requests"
    }
    if arguments.speed <= 0 or (arguments.id_tokens is not None and arguments.id_tokens < 1):
        raise ValueError("--speed and --id-tokens must be positive")
    return Traffic(
        arguments.workload,
        arguments.trace,
        arguments.arrivals,
        Shape(**named, requests=requests),
        arguments.seed,
        duration,
        arguments.limit,
        arguments.speed,
        arguments.id_tokens,
        arguments.scale_tokens,
        arguments.output_limit,
    )


def span(text: str) -> tuple[int, int]:
    """`N` or `N-M`."""
    low, _, high = text.partition("-")
    try:
        found = int(low), int(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not N or N-M") from None
    if not 1 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError("must be at least 1 and not decrease")
    return found


def length(text: str) -> workloads.Length:
    """Fixed, or drawn evenly from a range."""
    found = span(text)
    return found if "-" in text else found[0]
