"""From windows of routers to one row a router and case, and the page that shows them. Pure.

Routers are compared with `OURS` request by request over all repeats of the same plans: a difference counts
when its 95 % interval excludes zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

import numpy as np

from bench import intervals
from bench.peers_cases import Case
from bench.record import Record

OURS = "warmroute"
BASE = "direct"
Records = Mapping[tuple[str, str], Sequence[Sequence[Record]]]


def runs(
    cases: Sequence[Case], windows: Sequence[Mapping[str, Any]], records: Records
) -> list[dict[str, Any]]:
    """One entry a case and router, medians over its repeats, with how it differs from ours."""
    found = []
    for case in cases:
        mine = [one for one in windows if one["case"] == case.name]
        for router in dict.fromkeys(one["router"] for one in mine):
            repeats = [one for one in mine if one["router"] == router]
            found.append(
                {
                    "policy": router,
                    "case": case.name,
                    "repeats": len(repeats),
                    "requests": sum(one["requests"] for one in repeats),
                    "errors": sum(one["errors"] for one in repeats),
                    "hit_rate": _median(repeats, "hit_rate"),
                    "ceiling": _median(repeats, "ceiling"),
                    "ttft": {
                        name: median(one["ttft"][name] for one in repeats if one["ttft"])
                        for name in (*intervals.SHARES, "mean")
                    }
                    if any(one["ttft"] for one in repeats)
                    else None,
                    "spread": _median(repeats, "spread"),
                    "cpu_ms_per_request": _median(repeats, "cpu_ms_per_request"),
                    "memory_mib": _median(repeats, "memory_mib"),
                    "against_ours": against(records, case.name, router),
                }
            )
    return found


def _median(windows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [one[name] for one in windows if one[name] is not None]
    return median(known) if known else None


def against(records: Records, case: str, router: str) -> dict[str, Any] | None:
    """How much higher a router's figures are than ours, with intervals; None for ours itself.

    Of the repeats that both have, and of the requests that both answered.
    """
    theirs, ours = records.get((case, router), ()), records.get((case, OURS), ())
    if router == OURS or not theirs or not ours:
        return None
    pairs = []
    for their, our in zip(theirs, ours, strict=False):
        by_number = {record.number: record for record in our if record.error is None}
        pairs += [(r, by_number[r.number]) for r in their if r.error is None and r.number in by_number]
    if not pairs:
        return None
    told: dict[str, Any] = {}
    timed = [(a.ttft, b.ttft) for a, b in pairs if a.ttft is not None and b.ttft is not None]
    rows = np.array(timed, dtype=np.float64)
    for name in ("p50", "p95", "mean"):
        figure = intervals.statistic(name)
        point, around = intervals.change(rows[:, 1], rows[:, 0], figure, relative=True)
        told[f"ttft_{name}"] = {"change": point, "interval": around}
    known = [(a, b) for a, b in pairs if a.cached_tokens is not None and b.cached_tokens is not None]
    if known:
        our_hits, their_hits = (
            np.array([[one.cached_tokens, one.prompt_tokens] for one in side], dtype=np.float64)
            for side in ([b for _, b in known], [a for a, _ in known])
        )
        point, around = intervals.change(our_hits, their_hits, intervals.ratios, relative=False)
        told["hit_rate"] = {"change": point, "interval": around}
    repeats = [(_rate(their) or 0.0) - (_rate(our) or 0.0) for their, our in zip(theirs, ours, strict=False)]
    point, around = intervals.paired_mean(repeats)
    told["hit_rate_by_repeat"] = {"change": point, "interval": around}
    return told


def _rate(records: Sequence[Record]) -> float | None:
    told = [r for r in records if r.error is None and r.cached_tokens is not None and r.prompt_tokens]
    tokens = sum(record.prompt_tokens or 0 for record in told)
    return sum(record.cached_tokens or 0 for record in told) / tokens if tokens else None


def one_line(window: Mapping[str, Any]) -> str:
    """Of a window, as it ends."""
    ttft = window["ttft"]
    times = f"{1000 * ttft['p50']:5.0f} / {1000 * ttft['p95']:5.0f} ms" if ttft else "no answers"
    hits = "-" if window["hit_rate"] is None else f"{window['hit_rate']:.1%}"
    errors = f", {window['errors']} FAILED" if window["errors"] else ""
    spread = "-" if window["spread"] is None else f"{window['spread']:.2f}"
    return (
        f"{window['seed']:16} {window['router']:14} hits {hits:>6} of {window['ceiling']:.1%}, "
        f"TTFT {times}, spread {spread}{errors}"
    )


def sure(difference: Mapping[str, Any] | None) -> bool:
    """Whether an interval excludes zero."""
    return bool(
        difference
        and difference["interval"]
        and (difference["interval"][0] > 0 or difference["interval"][1] < 0)
    )


def page(result: Mapping[str, Any]) -> str:
    """Markdown."""
    return "\n\n".join(_parts(result)) + "\n"


def _parts(result: Mapping[str, Any]) -> Iterator[str]:
    kind = "SIMULATED replicas" if result["simulated"] else "real replicas"
    workload, machine = result["workload"], result["machine"]
    yield f"# Routers beside each other, on {kind}"
    yield f"""\
Commit {result["commit"]}, {machine["cores"]} cores ({machine["cpu"]}), load average \
{machine["load_average"][0]} at the end. {workload["repeats"]} repeats of {workload["duration"]:g} s a cell, \
routers in turn within each repeat, same prompts and times for all. Figures are medians over repeats."""
    yield f"    {result['command']}"
    yield """\
Hits are prompt tokens that the replicas reported as cached; the ceiling is one LRU of all their caches. TTFT
in milliseconds from the time a request was due. Spread: computed prompt tokens, most over mean. CPU:
milliseconds a request of the router's process tree (warmroute's with its Valkey); at so few requests a second
what a process does at rest counts in. *Against warmroute*: how much more the router has, request by request
over all repeats; **bold** where the 95 % interval excludes zero, which is when it counts. Several processes
share a few cores here, so times say less than hits do."""
    for name, case in workload["cases"].items():
        rows = [run for run in result["runs"] if run["case"] == name]
        if rows:
            yield f"## {name}: {case['what']}"
            yield "\n".join(_table(rows))
    yield "## How the routers are configured"
    yield "\n".join(
        f"- `{name}`{' (' + one['package'] + ')' if one['package'] else ''}: {one['note']}."
        for name, one in result["routers"].items()
    )
    if result["left_out"]:
        yield "## Left out"
        yield "\n".join(f"- `{name}`: {why.splitlines()[0]}" for name, why in result["left_out"].items())
    yield "\n".join(conclusions(result["runs"]))


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "| router | hits | ceiling | TTFT P50 | P95 | P99 | spread | failed | CPU ms | MiB "
        "| against warmroute: hits | TTFT P50 | P95 |"
    )
    yield "|---|" + "---:|" * 12
    for row in rows:
        ttft = row["ttft"]
        times = [f"{1000 * ttft[name]:,.0f}" if ttft else "-" for name in ("p50", "p95", "p99")]
        differs = row["against_ours"] or {}
        cells = [
            row["policy"],
            _percent(row["hit_rate"]),
            _percent(row["ceiling"]),
            *times,
            "-" if row["spread"] is None else f"{row['spread']:.2f}",
            str(row["errors"]),
            f"{row['cpu_ms_per_request']:.2f}" if row["policy"] != BASE else "-",
            f"{row['memory_mib']:.0f}" if row["policy"] != BASE else "-",
            _difference(differs.get("hit_rate"), "pp"),
            _difference(differs.get("ttft_p50"), "%"),
            _difference(differs.get("ttft_p95"), "%"),
        ]
        yield f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _difference(difference: Mapping[str, Any] | None, unit: str) -> str:
    if difference is None:
        return ""
    around = difference["interval"]
    text = f"{100 * difference['change']:+.1f}{unit}"
    if around:
        text += f" [{100 * around[0]:+.1f}, {100 * around[1]:+.1f}]"
    return f"**{text}**" if sure(difference) else text


def conclusions(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where a peer is ahead beyond its interval, said in so many words."""
    yield "## Where a router is ahead of warmroute"
    yield ""
    ahead = []
    for row in rows:
        differs = row["against_ours"] or {}
        hits, p95 = differs.get("hit_rate"), differs.get("ttft_p95")
        if hits and sure(hits) and hits["change"] > 0:
            ahead.append(f"- {row['case']}: `{row['policy']}` hits {100 * hits['change']:.1f} points more.")
        if p95 and sure(p95) and p95["change"] < 0:
            ahead.append(f"- {row['case']}: `{row['policy']}` has a TTFT P95 lower by {-p95['change']:.0%}.")
    yield "\n".join(ahead) if ahead else "Nowhere, beyond a 95 % interval, on hits or TTFT P95."
    shares = [row["hit_rate"] / row["ceiling"] for row in rows if row["policy"] == OURS and row["ceiling"]]
    if shares:
        yield ""
        least = f"{min(shares):.1%} at least"
        yield f"warmroute reaches {mean(shares):.1%} of the ceiling's hits on average, {least}."
