"""What `python -m bench proxies` says of its windows: pooled figures and ratios to one proxy's, a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench import report
from bench.record import Record

TARGET = 0.99
"""Of one proxy's hits, what proxies that share must reach."""


@dataclass(slots=True)
class Pooled:
    """What an arm did over all its windows of one mode."""

    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0
    windows: list[dict[str, Any]] = field(default_factory=list)


def spread(records: Sequence[Record], replicas: int) -> float | None:
    """How unevenly replicas computed: the most uncached prompt tokens of one over the mean; 1 is even."""
    work: dict[str, int] = {}
    for record in records:
        if record.replica is not None and record.prompt_tokens is not None:
            uncached = record.prompt_tokens - (record.cached_tokens or 0)
            work[record.replica] = work.get(record.replica, 0) + uncached
    total = sum(work.values())
    return max(work.values()) * replicas / total if total else None


def summary(name: str, proxies: int, pooled: Pooled, ceiling: float, replicas: int) -> dict[str, Any]:
    """One row of the table: the result file's figures of a run, and what only this bench asks."""
    one = report.summarise(name, pooled.records, {"shared": ceiling}, pooled.seconds)
    modes: dict[str, int] = {}
    for measured in pooled.windows:
        for mode, count in measured["index_modes"].items():
            modes[mode] = modes.get(mode, 0) + count
    one |= {"proxies": proxies, "spread": spread(pooled.records, replicas), "index_modes": modes}
    return one


def compare(runs: Sequence[dict[str, Any]]) -> None:
    """Give each run the ratio of its hits to one proxy's in the same mode."""
    for run in runs:
        (one,) = (r for r in runs if r["policy"] == "one" and r["events"] == run["events"])
        mine, base = (each["groups"]["shared"]["hit_rate"] for each in (run, one))
        run["ratio"] = mine / base if mine is not None and base else None


def missed(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where sharing proxies hit less than they must."""
    return [
        f"{run['proxies']} sharing proxies reach {run['ratio'] or 0:.3f} of one proxy's hits "
        f"{'with' if run['events'] else 'without'} events: below {TARGET}"
        for run in runs
        if run["policy"] == "shared" and (run["ratio"] or 0) < TARGET
    ]


def table(runs: Sequence[Mapping[str, Any]], replicas: int) -> Table:
    """For a terminal."""
    rows = Table(
        title=f"{replicas} SIMULATED replicas behind a random balancer",
        title_justify="left",
        pad_edge=False,
        box=SIMPLE_HEAD,
    )
    for name in ("events", "proxies"):
        rows.add_column(name, no_wrap=True)
    for name in ("hits", "ratio", "best", "P50 ms", "P95 ms", "spread", "failed"):
        rows.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        figures = run["groups"]["shared"]
        ttft = figures["ttft"] or {}
        rows.add_row(
            "on" if run["events"] else "off",
            f"{run['proxies']} {run['policy']}" if run["proxies"] > 1 else "1",
            _share(figures["hit_rate"]),
            "-" if run["ratio"] is None else f"{run['ratio']:.3f}",
            _share(figures["ceiling"]),
            *(f"{1000 * ttft[name]:.0f}" if ttft else "-" for name in ("p50", "p95")),
            "-" if run["spread"] is None else f"{run['spread']:.2f}",
            str(figures["errors"]),
        )
    return rows


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
