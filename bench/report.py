"""From records to `result.json`, tables and plots.

The file's schema is a public promise (schema 1); keys may be added, never changed. Whatever comes from a
simulated replica is called *simulated* in every one of them.
"""

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.record import Record, groups_of, hit_rate, spread

SCHEMA = 1
ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("warmroute", "aiohttp", "uvloop", "tokenizers")

as_json = asdict


def summarise(
    policy: str, records: Sequence[Record], ceilings: Mapping[str, float], seconds: float
) -> dict[str, Any]:
    """One run: figures by group, throughput in requests a second, requests by replica."""
    groups = {}
    for group in sorted({record.group for record in records}, reverse=True):
        mine = [record for record in records if record.group == group]
        good = [record for record in mine if record.error is None]
        groups[group] = {
            "requests": len(mine),
            "errors": len(mine) - len(good),
            "hit_rate": hit_rate(good),
            "ceiling": ceilings.get(group),
            "ttft": spread(record.ttft for record in good),
            "tpot": spread(record.tpot for record in good),
            "e2e": spread(record.e2e for record in good),
        }
    done = [record for record in records if record.error is None]
    replicas = Counter(record.replica for record in done if record.replica is not None)
    lag = spread(record.lag for record in records)
    return {
        "policy": policy,
        "groups": groups,
        "throughput": len(done) / seconds,
        "prompt_tokens_per_s": sum(record.prompt_tokens or 0 for record in done) / seconds,
        "output_tokens_per_s": sum(record.output_tokens or 0 for record in done) / seconds,
        "replicas": dict(sorted(replicas.items())),
        "send_lag": lag,
    }


def result(
    runs: Sequence[Mapping[str, Any]], *, workload: Mapping[str, Any], simulated: bool, **more: Any
) -> dict[str, Any]:
    """The content of `result.json`."""
    return {
        "schema": SCHEMA,
        "simulated": simulated,
        **where(),
        "workload": dict(workload),
        "runs": list(runs),
        **more,
    }


def write(content: Mapping[str, Any], path: Path) -> None:
    """As indented JSON, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def save(content: Mapping[str, Any], folder: Path, records: Mapping[str, Sequence[Record]]) -> list[Path]:
    """`result.json` and the plots; the paths of what was written."""
    from bench import plots  # noqa: PLC0415 - matplotlib takes a second, which a plain load run need not wait for

    path = folder / "result.json"
    write(content, path)
    return [path, *plots.draw(content, records, folder)]


# ---- on a terminal ----------------------------------------------------------------------------------


@contextmanager
def progress(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; elsewhere one line when it is over."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def print_table(
    console: Console, title: str, parts: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], *, simulated: bool
) -> None:
    """A row for each group and policy. `parts`: what to call its traffic (else: the group), and its runs."""
    failures = any(
        figures["errors"] for _, runs in parts for run in runs for figures in run["groups"].values()
    )
    source = "SIMULATED replicas" if simulated else "real replicas"
    table = Table(title=f"{title} - {source}", title_justify="left", pad_edge=False, box=SIMPLE_HEAD)
    for name in ("traffic", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("sent", *(["failed"] if failures else []), "P50", "P95", "P99", "TPOT", "hits", "best"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, runs in parts:
        for group in groups_of(runs):
            for run in runs:
                figures = run["groups"].get(group)
                if figures is not None:
                    table.add_row(label or group, run["policy"], *_cells(figures, failures=failures))
            table.add_section()
    console.print(table)
    for line in (
        "P50 to P99: time to first token, TPOT: time per further token (P50), both in ms",
        "hits: prompt tokens that came from a cache, best: what a perfect router could reach",
    ):
        console.print(line, style="dim", highlight=False)


def print_shares(console: Console, runs: Sequence[Mapping[str, Any]]) -> None:
    """Throughput, and who served how many."""
    for run in runs:
        shares = ", ".join(f"{name.rsplit('//')[-1]}: {count}" for name, count in run["replicas"].items())
        console.print(
            f"{run['policy']:<12} {run['throughput']:.1f} requests/s, "
            f"{run['prompt_tokens_per_s']:,.0f} prompt and {run['output_tokens_per_s']:,.0f} output tokens/s"
            + (f"\n             by replica {shares}" if shares else ""),
            highlight=False,
        )


def gain(content: Mapping[str, Any], group: str, before: str, after: str) -> dict[str, float] | None:
    """How much lower the TTFT and how much higher the hit rate of `after` is; None if one lacks the group."""
    runs = {run["policy"]: run["groups"].get(group) for run in content["runs"]}
    a, b = runs.get(before), runs.get(after)
    if not a or not b or not a["ttft"] or not b["ttft"]:
        return None
    changes = {f"ttft_{name}": 1 - b["ttft"][name] / a["ttft"][name] for name in ("p50", "p95", "p99")}
    if a["hit_rate"] is not None and b["hit_rate"] is not None:
        changes["hit_rate_points"] = 100 * (b["hit_rate"] - a["hit_rate"])
    return changes


def _cells(figures: Mapping[str, Any], *, failures: bool) -> list[str]:
    def ms(kind: str, name: str) -> str:
        values = figures[kind]
        return f"{1000 * values[name]:.0f}" if values else "-"

    rate, ceiling = figures["hit_rate"], figures["ceiling"]
    return [
        str(figures["requests"]),
        *([str(figures["errors"])] if failures else []),
        ms("ttft", "p50"),
        ms("ttft", "p95"),
        ms("ttft", "p99"),
        ms("tpot", "p50"),
        "unknown" if rate is None else f"{rate:.1%}",
        "-" if ceiling is None else f"{ceiling:.1%}",
    ]


# ---- where it was measured --------------------------------------------------------------------------


def where() -> dict[str, Any]:
    """Commit, versions and machine of a measurement."""
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": _machine(),
    }


def _commit() -> str | None:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    load = [round(value, 2) for value in os.getloadavg()]
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_average": load,
        "system": f"{platform.system()} {platform.release()}",
    }
