"""Numbers for people: how they read, and what lies between two frames of `proxy.overview`. Pure.

`proxy/ui/figures.js` says the same to a browser. Unknown is not zero: it reads as a dash.
"""

from collections import Counter
from collections.abc import Sequence
from math import inf
from operator import add
from typing import Any

NONE = "–"  # noqa: RUF001 - a dash is meant
Frame = dict[str, Any]
_COUNTED = {
    "tokens": (("arm", "group"), ("prompt", "available", "routed", "reported", "reported_prompt")),
    "requests": (("group", "priority", "code"), ("count",)),
    "decisions": (("decision", "replica"), ("count",)),
}
"""What in a frame counts up: the labels of a row, and its figures."""


def count(value: float | None) -> str:
    """1234567 as 1,234,567."""
    return NONE if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """1234567 as 1.23M."""
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * (10 if unit == "k" else 1):
            scaled = value / size
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{unit}"
    return f"{value:.0f}"


def percent(part: float, of: float) -> str:
    """A part of a whole; of nothing it is unknown."""
    return f"{100 * part / of:.1f} %" if of > 0 else NONE


def seconds(value: float | None) -> str:
    """A time in the unit that reads best."""
    if value is None:
        return NONE
    if value == inf:
        return "> 1 h"
    if 0 < value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 0.01:
        return f"{value * 1e3:.1f} ms"
    if value < 1:
        return f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def quantile(bounds: Sequence[float], counts: Sequence[int], q: float) -> float | None:
    """The q-quantile of a histogram, as Prometheus' histogram_quantile: linear within the bucket.

    `counts` has one more than `bounds`: what lies above them, where the answer is infinite. None of nothing.
    """
    rank, below, floor = q * sum(counts), 0, 0.0
    if not rank:
        return None
    for bound, inside in zip(bounds, counts, strict=False):
        if inside and below + inside >= rank:
            return floor + (bound - floor) * (rank - below) / inside
        below, floor = below + inside, bound
    return inf


def between(before: Frame, now: Frame) -> Frame:
    """What was counted from one frame to the next; `now` itself if its counters began anew."""
    if total(now["requests"], "count") < total(before["requests"], "count"):
        return now
    found: Frame = {
        name: _less(now[name], before[name], labels, figures) for name, (labels, figures) in _COUNTED.items()
    }
    known = {(each["group"], each["priority"]): each["counts"] for each in before["ttft"]["series"]}
    series = []
    for each in now["ttft"]["series"]:
        old = known.get((each["group"], each["priority"]), [0] * len(each["counts"]))
        counts = [a - b for a, b in zip(each["counts"], old, strict=True)]
        series.append({**each, "counts": counts})
    return {**found, "ttft": {**now["ttft"], "series": series}}


def merged(mine: Frame, frames: Sequence[Frame]) -> Frame:
    """The frame of several workers as one: `mine`, with what all of `frames` count, added up.

    Replicas, models and parts are the same for all: each worker knows of the others' load.
    """
    found: Frame = {
        name: _sums([row for frame in frames for row in frame[name]], labels, figures)
        for name, (labels, figures) in _COUNTED.items()
    }
    series: dict[tuple[str, str], list[int]] = {}
    for each in (each for frame in frames for each in frame["ttft"]["series"]):
        known = series.setdefault((each["group"], each["priority"]), [0] * len(each["counts"]))
        known[:] = map(add, known, each["counts"])
    rows = [{"group": group, "priority": of, "counts": counts} for (group, of), counts in series.items()]
    waiting: Counter[str] = Counter(dict.fromkeys(mine["queue"]["waiting"], 0))
    shed: dict[str, Counter[str]] = {}
    for queue in (frame["queue"] for frame in frames):
        waiting.update(queue["waiting"])
        for priority, reasons in queue["shed"].items():
            shed.setdefault(priority, Counter()).update(reasons)
    found["ttft"] = {**mine["ttft"], "series": rows}
    return {**mine, **found, "queue": {"waiting": waiting, "shed": shed}}


def _sums(rows: Sequence[Frame], labels: Sequence[str], figures: Sequence[str]) -> list[Frame]:
    found: dict[tuple[str, ...], Frame] = {}
    for row in rows:
        known = found.get(key := tuple(row[label] for label in labels))
        if known is None:
            found[key] = dict(row)
        else:
            known.update({figure: known[figure] + row[figure] for figure in figures})
    return list(found.values())


def total(rows: Sequence[Frame], figure: str) -> float:
    """The sum of one figure over rows."""
    return float(sum(row[figure] for row in rows))


def grouped(rows: Sequence[Frame], label: str, figures: Sequence[str]) -> list[Frame]:
    """Rows that share a label added up, in the order of their first."""
    return [{name: row[name] for name in (label, *figures)} for row in _sums(rows, (label,), figures)]


def _less(
    rows: Sequence[Frame], before: Sequence[Frame], labels: Sequence[str], figures: Sequence[str]
) -> list[Frame]:
    known = {tuple(row[label] for label in labels): row for row in before}
    found = []
    for row in rows:
        old = known.get(tuple(row[label] for label in labels))
        found.append(row if old is None else {**row, **{each: row[each] - old[each] for each in figures}})
    return found
