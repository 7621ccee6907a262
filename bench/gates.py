"""How much worse a figure of a load run may get, and what came of it: the gates of `bench.compare`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

KINDS = ("ttft", "tpot", "itl", "e2e", "queue", "overhead")
SHARES = ("hit_rate", "error_rate", "shed_rate", "good")
WHOLE = ("goodput", "throughput")
_GATE = re.compile(r"(?:(?P<group>[\w-]+)\.)?(?P<figure>\w+):(?P<limit>[+-]\d+(?:\.\d+)?)(?P<unit>%|pp)")
_LATENCY = re.compile(rf"({'|'.join(KINDS)})_(p50|p90|p95|p99|mean)")


class Refused(ValueError):
    """These two cannot be compared, or this is no gate."""


@dataclass(frozen=True, slots=True)
class Gate:
    """How much worse a figure may get."""

    figure: str
    limit: float
    """A share of A's figure, or points (0.02 is two)."""
    relative: bool
    higher_is_worse: bool = True
    group: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Gate":
        """`[group.]figure:+5%` or `-2pp`."""
        found = _GATE.fullmatch(text)
        if found is None:
            raise Refused(f"{text!r} is no gate; one looks like ttft_p95:+5% or shared.hit_rate:-2pp")
        figure = found["figure"]
        if not _LATENCY.fullmatch(figure) and figure not in (*SHARES, *WHOLE):
            known = ", ".join([*(f"{kind}_p95" for kind in KINDS), *SHARES, *WHOLE])
            raise Refused(f"{text!r}: there is no figure {figure!r}; there are {known}")
        if found["unit"] == "pp" and figure not in SHARES:
            raise Refused(f"{text!r}: {figure} has no percentage points; say %")
        limit = abs(float(found["limit"])) / 100
        return cls(figure, limit, found["unit"] == "%", found["limit"][0] == "+", found["group"])

    @property
    def is_of_times(self) -> bool:
        """Whether its figure is a latency."""
        return _LATENCY.fullmatch(self.figure) is not None

    @property
    def text(self) -> str:
        """As it was given, without the group."""
        sign, unit = "+" if self.higher_is_worse else "-", "%" if self.relative else "pp"
        return f"{self.figure}:{sign}{100 * self.limit:g}{unit}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a gate for one group."""

    gate: Gate
    group: str
    before: float
    after: float
    change: float
    interval: Sequence[float] | None
    paired: bool
    late: bool = False
    """Requests went out late in one of the runs: its latencies are the machine's, too."""

    @property
    def state(self) -> str:
        """`passed`, `failed` or `undecided`."""
        worse = self.change if self.gate.higher_is_worse else -self.change
        if worse <= self.gate.limit:
            return "passed"
        if self.interval is None or self.late:
            return "undecided"
        low, high = self.interval
        return "undecided" if low <= 0 <= high else "failed"


def table(verdicts: Sequence[Verdict]) -> str:
    """Markdown, a row a verdict."""
    lines = ["| gate | group | A | B | change | 95 % interval | |", "|---|---|---:|---:|---:|---:|---|"]
    for one in verdicts:
        unit = "%" if one.gate.relative else "pp"
        change = f"{100 * one.change:+.1f}{unit}"
        around = "unknown"
        if one.interval is not None:
            around = f"{100 * one.interval[0]:+.1f} to {100 * one.interval[1]:+.1f}"
            around += ", paired" if one.paired else ""
        values = [_value(one.gate, value) for value in (one.before, one.after)]
        state = one.state if one.state != "failed" else "**failed**"
        cells = [one.gate.text, one.group, *values, change, around, state]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _value(gate: Gate, value: float) -> str:
    if gate.figure in SHARES:
        return f"{value:.1%}"
    return f"{value:.2f}/s" if gate.figure in WHOLE else f"{1000 * value:,.1f} ms"
