"""Is B worse than A? `python -m bench compare a.json b.json --gate ttft_p95:+5% --gate hit_rate:-2pp`.

A gate names a figure and how much worse it may get: `ttft_p95:+5%` (at most 5 % higher), `hit_rate:-2pp` (at
most two points lower), `shared.ttft_p50:+10%` (one group only; otherwise each group has to pass). Figures:
ttft, tpot, itl, e2e, queue, overhead with _p50, _p90, _p95, _p99 or _mean; hit_rate, error_rate, shed_rate,
good; goodput and throughput of the whole run.

A gate fails where the change is more than it allows *and* the change's 95 % interval excludes zero, so that
noise does not fail a release. Where the interval does not exclude it, the gate is *undecided* and told as
such: measure longer; likewise where requests went out late in one run, so that its times are the machine's.
Intervals are drawn from the requests.jsonl beside the results: the same requests in
both where both sent the same plan. Without those files, from the intervals in the results.

Results of different workloads, or of simulated and real replicas, are not compared (exit status 2). Exit
status 1 if a gate failed, with --strict also if one is undecided.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import intervals
from bench.account import LATE_LIMIT
from bench.gates import KINDS, SHARES, WHOLE, Gate, Refused, Verdict, table

BASELINES = Path("bench/results/baseline")
GATES = ("ttft_p95:+5%", "hit_rate:-2pp")
SEEDS = ("seed",)
"""What two results of one workload may differ in: they are then not paired."""


@dataclass(frozen=True, slots=True)
class Side:
    """One result: its run and its requests, if they are there."""

    run: Mapping[str, Any]
    requests: Sequence[Mapping[str, Any]]

    def rows(self, gate: Gate, group: str, numbers: set[int] | None) -> NDArray[np.float64] | None:
        """One row a request (of those numbers only), in order of the plan; None where they do not tell."""
        mine = [r for r in self.requests if group in ("all", r["group"])]
        mine = [r for r in mine if numbers is None or r["number"] in numbers]
        whole = [r for r in mine if r["error"] is None]
        kind = gate.figure.rpartition("_")[0]
        found: Sequence[Any] = ()
        if gate.figure == "hit_rate":
            told = [r for r in whole if r["cached_tokens"] is not None]
            found = [(r["cached_tokens"], r["prompt_tokens"]) for r in told]
        elif gate.figure == "error_rate":
            found = [r["error"] is not None and not r["shed"] for r in mine]
        elif gate.figure == "shed_rate":
            found = [r["shed"] for r in mine]
        elif gate.figure == "good":
            found = [r["error"] is None and _in_time(r, self.run["slo"]) for r in mine]
        elif kind in KINDS and kind != "itl":
            found = [r[kind] for r in whole if r[kind] is not None]
        return np.array(found, dtype=np.float64) if found else None

    def answered(self) -> set[int]:
        """Which requests of the plan have a whole answer."""
        return {r["number"] for r in self.requests if r["error"] is None}


def _in_time(request: Mapping[str, Any], slo: Mapping[str, float]) -> bool:
    ttft, tpot = request["ttft"], request["tpot"]
    return ttft is not None and ttft <= slo["ttft"] and (tpot is None or tpot <= slo["tpot"])


def figure_of(run: Mapping[str, Any], gate: Gate, group: str) -> tuple[float, Sequence[float] | None] | None:
    """A figure in a result, with its interval; None if it is not there."""
    if gate.figure in WHOLE:
        return run[gate.figure], None
    figures = run["groups"].get(group)
    if figures is None:
        return None
    if gate.figure in SHARES:
        value = figures.get(gate.figure)
        return None if value is None else (value, figures.get(f"{gate.figure}_interval"))
    kind, _, name = gate.figure.rpartition("_")
    values = figures.get(kind)
    if not values or name not in values:
        return None
    return values[name], values.get("intervals", {}).get(name)


def judge(gate: Gate, group: str, a: Side, b: Side, *, same_plan: bool) -> Verdict:
    """One gate for one group. Raises Refused if a side does not have the figure."""
    before, after = figure_of(a.run, gate, group), figure_of(b.run, gate, group)
    if before is None or after is None:
        raise Refused(f"{group}.{gate.figure} is not in {'A' if before is None else 'B'}")
    value = after[0] - before[0]
    change = value / before[0] if gate.relative and before[0] else value
    interval, paired = None, False
    of_all = gate.figure in {"error_rate", "shed_rate", "good"}
    common = a.answered() & b.answered() if same_plan and not of_all else None
    ours, theirs = (side.rows(gate, group, common) for side in (a, b))
    if ours is not None and theirs is not None:
        figure: Callable[[NDArray[np.float64]], NDArray[np.float64]]
        figure = intervals.ratios if gate.figure == "hit_rate" else intervals.statistic(_name(gate.figure))
        _, interval = intervals.change(ours, theirs, figure, relative=gate.relative)
        paired = same_plan and len(ours) == len(theirs)
    elif before[1] and after[1]:
        # Independent, and each interval about symmetric: the widths add as the sides of a right angle.
        half = hypot(before[1][1] - before[1][0], after[1][1] - after[1][0]) / 2
        half = half / before[0] if gate.relative and before[0] else half
        interval, paired = [change - half, change + half], False
    timed = gate.is_of_times or gate.figure in {"good", *WHOLE}
    late = timed and any(_sent_late(side.run) for side in (a, b))
    return Verdict(gate, group, before[0], after[0], change, interval, paired, late)


def _sent_late(run: Mapping[str, Any]) -> bool:
    lag = run.get("send_lag")
    return bool(lag and lag["p99"] > LATE_LIMIT)


def _name(figure: str) -> str:
    return "mean" if figure in SHARES else figure.rpartition("_")[2]


def comparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both sent the same plan; raises Refused if they may not be compared at all."""
    if a.get("schema") != 1 or b.get("schema") != 1:
        raise Refused("not both are results of schema 1")
    if a["simulated"] != b["simulated"]:
        raise Refused("one is of simulated replicas, the other of real ones")
    ours, theirs = (
        {key: value for key, value in one["workload"].items() if key not in SEEDS} for one in (a, b)
    )
    if ours != theirs:
        names = sorted({*ours, *theirs})
        different = [name for name in names if ours.get(name) != theirs.get(name)]
        told = "; ".join(f"{name}: {ours.get(name)!r} and {theirs.get(name)!r}" for name in different)
        raise Refused(f"the workloads differ: {told}")
    return bool(a["workload"].get("seed") == b["workload"].get("seed"))


def compare(
    a: tuple[Mapping[str, Any], Side], b: tuple[Mapping[str, Any], Side], gates: Sequence[Gate]
) -> list[Verdict]:
    """Every gate, for each group it is about."""
    same_plan = comparable(a[0], b[0])
    verdicts = []
    for gate in gates:
        if gate.figure in WHOLE:
            groups = ["all"]
        elif gate.group is not None:
            groups = [gate.group]
        else:
            groups = sorted({*a[1].run["groups"], *b[1].run["groups"]}, reverse=True)
        verdicts += [judge(gate, group, a[1], b[1], same_plan=same_plan) for group in groups]
    return verdicts


def read(path: Path, policy: str | None) -> tuple[Mapping[str, Any], Side]:
    """A result and the run in it that is meant, with the requests beside the file."""
    try:
        result = json.loads(path.read_text())
        runs = {run["policy"]: run for run in result["runs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path}: not a result ({error})") from error
    if policy is None and len(runs) > 1:
        raise Refused(f"{path} has the runs {', '.join(runs)}: choose with --policy")
    if policy is not None and policy not in runs:
        raise Refused(f"{path} has no run {policy!r}, but {', '.join(runs)}")
    run = runs[policy] if policy is not None else next(iter(runs.values()))
    beside = path.parent / "requests.jsonl"
    if path.name != "result.json":
        beside = path.with_suffix(".requests.jsonl")
    lines = beside.read_text().splitlines() if beside.exists() and len(runs) == 1 else []
    requests = sorted((json.loads(line) for line in lines), key=lambda one: int(one["number"]))
    if len(requests) != run.get("all", {}).get("requests", -1):
        requests = []  # another run's
    return result, Side(run, requests)


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench compare`."""
    options = argparse.ArgumentParser(
        prog="python -m bench compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = ", ".join(GATES).replace("%", "%%")  # argparse would fill it in
    options.add_argument("files", nargs="+", type=Path, metavar="RESULT", help="A and B, or B and --baseline")
    options.add_argument("--baseline", metavar="NAME", help=f"A is {BASELINES}/NAME.json")
    options.add_argument("--gate", action="append", default=[], help=f"default: {usual}")
    options.add_argument("--policy", help="which run of A, where it has several")
    options.add_argument("--against", metavar="POLICY", help="which run of B; default: --policy")
    options.add_argument("--strict", action="store_true", help="undecided gates fail, too")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    files = list(arguments.files)
    if arguments.baseline is not None:
        files.insert(0, BASELINES / f"{arguments.baseline}.json")
    if len(files) != 2:
        parser().error("two results are compared, or one and a --baseline")
    try:
        gates = [Gate.parse(text) for text in arguments.gate or GATES]
        a = read(files[0], arguments.policy)
        b = read(files[1], arguments.against or arguments.policy)
        verdicts = compare(a, b, gates)
    except Refused as error:
        print(f"bench compare: {error}", file=sys.stderr)
        return 2
    print(f"A: {files[0]} ({a[1].run['policy']}, commit {a[0]['commit']})")
    print(f"B: {files[1]} ({b[1].run['policy']}, commit {b[0]['commit']})\n")
    print(table(verdicts))
    states = [one.state for one in verdicts]
    if a[0]["machine"].get("cpu") != b[0]["machine"].get("cpu"):
        print("\nThe machines differ: latencies may for that reason alone.")
    print(
        f"\n{states.count('passed')} passed, {states.count('failed')} failed, "
        f"{states.count('undecided')} undecided (a change beyond the gate that may be noise: measure longer)"
    )
    bad = states.count("failed") + (states.count("undecided") if arguments.strict else 0)
    return 1 if bad else 0
