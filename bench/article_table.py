"""The page of the article's experiment, and a simulated result beside a real one. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench import account, intervals
from bench.record import Record, hit_rate

WHAT = {"one": "a single system prompt", "thirty": "30 system prompts", "random": "nothing shared"}
MOST_OF_MISS = 1 / 3
"""The article's claim, as a share: a hit's TTFT of a miss's."""


def pooled(
    variant: str, policy: str, runs: Sequence[tuple[Mapping[str, Any], Sequence[Record]]]
) -> dict[str, Any]:
    """All repeats of one policy and variant together."""
    records = [record for _, some in runs for record in sorted(some, key=lambda record: record.number)]
    whole = [record for record in records if record.error is None]
    group = "random" if variant == "random" else "shared"
    ceiling = sum(one["groups"][group]["ceiling"] for one, _ in runs) / len(runs)
    replicas: dict[str, int] = {}
    for one, _ in runs:
        for name, count in one["replicas"].items():
            replicas[name] = replicas.get(name, 0) + count
    return {
        "policy": policy,
        "variant": variant,
        "repeats": len(runs),
        "groups": {
            group: {
                **account.outcomes(records, account.Slo()),
                **account.hits(whole),
                "ceiling": ceiling,
                **account.latencies(whole),
                "by_cache": account.by_cache(whole),
            }
        },
        "throughput": sum(one["throughput"] for one, _ in runs) / len(runs),
        "replicas": replicas,
        "hit_rate_by_repeat": [hit_rate(some) for _, some in runs],
    }


def changes(
    before: Sequence[Sequence[Record]], after: Sequence[Sequence[Record]]
) -> dict[str, dict[str, Any]]:
    """How much higher TTFT is afterwards, as a share: the same requests of the same repeats in both."""
    pairs: list[tuple[float, float]] = []
    for earlier, later in zip(before, after, strict=False):
        by_number = {record.number: record.ttft for record in earlier if record.error is None}
        for record in sorted(later, key=lambda record: record.number):
            there = by_number.get(record.number)
            if record.error is None and record.ttft is not None and there is not None:
                pairs.append((there, record.ttft))
    if not pairs:
        return {}
    rows = np.array(pairs, dtype=np.float64)
    found = {}
    for name in ("p50", "p95", "mean"):
        figure = intervals.statistic(name)
        point, around = intervals.change(rows[:, 0], rows[:, 1], figure, relative=True)
        found[f"ttft_{name}"] = {"change": point, "interval": around}
    return found


def one_line(seed: str, one: Mapping[str, Any]) -> str:
    """Of a window, as it ends."""
    (group,) = one["groups"].values()
    ttft = group["ttft"]
    times = f"{1000 * ttft['p50']:.0f} / {1000 * ttft['p95']:.0f} ms" if ttft else "no answers"
    hits = "-" if group["hit_rate"] is None else f"{group['hit_rate']:.1%}"
    return f"{seed:20} {one['policy']:12} hits {hits} of {group['ceiling']:.1%}, TTFT {times}"


def page(result: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> str:
    """Markdown."""
    return "\n\n".join(_parts(result, beside)) + "\n"


def _figures(run: Mapping[str, Any]) -> Mapping[str, Any]:
    (figures,) = run["groups"].values()
    assert isinstance(figures, Mapping)
    return figures


def _parts(result: Mapping[str, Any], beside: Mapping[str, Any] | None) -> Iterator[str]:
    kind = "SIMULATED replicas" if result["simulated"] else "real replicas"
    workload, engines, machine = result["workload"], result["engines"], result["machine"]
    yield f"# The article's experiment, on {engines['replicas']} {kind}"
    yield f"""\
System prompts of {workload["prefix"]:,} tokens, questions of {workload["question"]}, \
{workload["concurrency"]} requests at a time, {workload["requests"]} streaming requests, \
{workload["output"]} tokens out, {workload["repeats"]} repeats. Commit {result["commit"]}, \
{machine["cores"]} cores ({machine["cpu"]}), load average {machine["load_average"][0]} at the end; \
{engines["blocks"]} blocks of {engines["block_size"]} tokens a replica. Milliseconds [95 % interval]."""
    yield f"    {result['command']}"
    yield "\n".join(_table(result["runs"]))
    yield "\n".join(_said(result["gain"]))
    yield "## Hits and misses"
    yield "\n".join(_by_cache(result["runs"]))
    if beside is not None:
        yield "## Simulated and real beside each other"
        yield "\n".join(_beside(result, beside))


def _table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| | policy | requests | failed | hits | ceiling | TTFT P50 | P95 | P99 | TPOT P50 | e2e P50 |"
    yield "|---|---|" + "---:|" * 9
    for variant, what in WHAT.items():
        for run in runs:
            if run["variant"] != variant:
                continue
            figures = _figures(run)
            cells = [
                what,
                run["policy"],
                str(figures["requests"]),
                str(figures["errors"]),
                _percent(figures["hit_rate"]),
                _percent(figures["ceiling"]),
                *(_ms(figures["ttft"], name) for name in ("p50", "p95", "p99")),
                _ms(figures["tpot"], "p50"),
                _ms(figures["e2e"], "p50"),
            ]
            yield f"| {' | '.join(cells)} |"


def _said(gain: Mapping[str, Any]) -> Iterator[str]:
    """Request by request over all repeats."""
    for variant, what in WHAT.items():
        differs = gain.get(variant)
        if not differs:
            continue
        extra = " (parity is what is to be expected: every replica soon holds it)" if variant == "one" else ""
        told = [
            f"{differs[name]['change']:+.0%}{_around(differs[name]['interval'])} at {label}"
            for name, label in (("ttft_p50", "P50"), ("ttft_p95", "P95"), ("ttft_mean", "the mean"))
        ]
        yield f"- {what}{extra}: prefix_cost's TTFT is {', '.join(told[:-1])} and {told[-1]}."


def _around(interval: Sequence[float] | None) -> str:
    return f" [{interval[0]:+.0%}, {interval[1]:+.0%}]" if interval else ""


def _by_cache(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| | policy | hits | TTFT P50 | P95 | misses | TTFT P50 | P95 | hit of miss at P50 |"
    yield "|---|---|" + "---:|" * 7
    for run in runs:
        told = _figures(run)["by_cache"]
        warm, cold = told["hit"], told["miss"]
        if not warm or not cold:
            continue
        of_miss = warm["p50"] / cold["p50"]
        verdict = f"{of_miss:.0%}{'' if of_miss <= MOST_OF_MISS else ' (more than a third)'}"
        cells = [WHAT[run["variant"]], run["policy"], str(warm["count"]), _ms(warm, "p50"), _ms(warm, "p95")]
        cells += [str(cold["count"]), _ms(cold, "p50"), _ms(cold, "p95"), verdict]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "The article's figures: hits under 600 ms, misses 1,800 ms; a hit should take at most a third."


def _beside(result: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Same workload and policy on both: how far the one is from the other."""
    if result["simulated"] == other["simulated"]:
        yield "Both are of the same kind of replicas: nothing to check."
        return
    real, simulated = (other, result) if result["simulated"] else (result, other)
    theirs = {(run["variant"], run["policy"]): _figures(run) for run in real["runs"]}
    yield "| | policy | hits real | simulated | error | TTFT P50 real | simulated | error |"
    yield "|---|---|" + "---:|" * 6
    for run in simulated["runs"]:
        mine, their = _figures(run), theirs.get((run["variant"], run["policy"]))
        if their is None or not mine["ttft"] or not their["ttft"]:
            continue
        wrong = (mine["hit_rate"] or 0.0) - (their["hit_rate"] or 0.0)
        late = mine["ttft"]["p50"] / their["ttft"]["p50"] - 1
        cells = [WHAT[run["variant"]], run["policy"], _percent(their["hit_rate"]), _percent(mine["hit_rate"])]
        cells += [
            f"{100 * wrong:+.1f}pp",
            _ms(their["ttft"], "p50"),
            _ms(mine["ttft"], "p50"),
            f"{late:+.0%}",
        ]
        yield f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _ms(figures: Mapping[str, Any] | None, name: str) -> str:
    if not figures:
        return "-"
    around = figures.get("intervals", {}).get(name)
    text = f"{1000 * figures[name]:,.0f}"
    return text + (f" [{1000 * around[0]:,.0f}-{1000 * around[1]:,.0f}]" if around else "")
