"""A result as sections of text and tables: the one source of `summary.md` and of the HTML page. Pure.

A figure is never shown without how sure it is, where that is known: `123 [110-140]`, its 95 % interval.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

KINDS = {
    "ttft": "time to first token",
    "tpot": "time per further token",
    "itl": "between two tokens",
    "e2e": "end to end",
    "queue": "in the proxy's queue",
    "overhead": "the proxy's own",
}
COLUMNS = ("p50", "p90", "p95", "p99", "mean")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, sentences, and perhaps a table."""

    title: str
    text: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default_factory=list)


def sections(result: Mapping[str, Any]) -> list[Section]:
    """Everything a person should see, most important first."""
    return list(_sections(result))


def _sections(result: Mapping[str, Any]) -> Iterator[Section]:
    workload = result["workload"]
    kind = "SIMULATED replicas" if result["simulated"] else "real replicas"
    yield Section(f"{workload['name']} - {kind}", [_about(result)])
    for run in result["runs"]:
        named = f"{run['policy']}: " if len(result["runs"]) > 1 else ""
        if run.get("problems"):
            yield Section(f"{named}This run does not count", run["problems"])
        if run.get("cautions"):
            yield Section(f"{named}To be read with care", run["cautions"])
        yield _groups(run, named)
        yield _latencies(run, named)
        yield _waterfall(run, named)
        yield _by_cache(run, named)
        yield _lengths(run, named)
        yield _load(run, named)


def _about(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    load = result.get("load", {})
    how = load.get("mode", "")
    return (
        f"Commit {result['commit']}, {machine['cores']} cores ({machine['cpu']}), "
        f"load average {machine['load_average'][0]} at the end. {how} "
        f"Command: {load.get('command', '-')}"
    )


def _groups(run: Mapping[str, Any], named: str) -> Section:
    slo = run["slo"]
    rows = []
    for name, group in {**run["groups"], "all": run["all"]}.items():
        rows.append(
            [
                name,
                str(group["requests"]),
                f"{group['error_rate']:.1%}",
                f"{group['shed_rate']:.1%}",
                share(group["hit_rate"], group.get("hit_rate_interval")),
                share(group["waterfall"]["ceiling"]),
                f"{group['good']:.1%}",
            ]
        )
    kinds = run["all"]["error_kinds"]
    text = (
        f"{run['throughput']:.2f} answers a second; goodput {run['goodput']:.2f} a second "
        f"(TTFT at most {slo['ttft']:g} s, TPOT at most {1000 * slo['tpot']:g} ms); "
        f"{run['prompt_tokens_per_s']:,.0f} prompt and {run['output_tokens_per_s']:,.0f} output tokens "
        "a second."
    )
    failures = f"Failures: {', '.join(f'{n} x {kind}' for kind, n in kinds.items())}."
    return Section(
        f"{named}Traffic",
        [text, *([failures] if kinds else [])],
        ["group", "requests", "failed", "shed", "hits", "ceiling", "good"],
        rows,
    )


def _latencies(run: Mapping[str, Any], named: str) -> Section:
    rows = [
        [group, KINDS[kind], str(figures[kind]["count"]), *(ms(figures[kind], name) for name in COLUMNS)]
        for group, figures in run["groups"].items()
        for kind in KINDS
        if figures.get(kind)
    ]
    return Section(
        f"{named}Latency, milliseconds [95 % interval]",
        ["From the time a request was due. What is not in the table, nobody told."],
        ["group", "", "count", "P50", "P90", "P95", "P99", "mean"],
        rows,
    )


def _waterfall(run: Mapping[str, Any], named: str) -> Section:
    names = ("unlimited", "ceiling", "available", "routed", "reported")
    rows = [
        [name, *(share(group["waterfall"][stage]) for stage in names)]
        for name, group in {**run["groups"], "all": run["all"]}.items()
    ]
    check = run["cross_check"]
    meaning = (
        "Shares of prompt tokens. Unlimited: what earlier prompts began with; ceiling: one LRU of the "
        "fleet's size; available and routed: what the proxy believed its best and the chosen replica to "
        "hold; reported: what the engines found."
    )
    text = [meaning]
    if check is None:
        text.append("No cross-check: the engines tell no counters.")
    else:
        agree = "agree" if check["agree"] else "DO NOT AGREE"
        text.append(
            f"The engines' own counters: {check['engine_cached_tokens']:,.0f} cached of "
            f"{check['engine_prompt_tokens']:,.0f} prompt tokens; the answers: "
            f"{check['answers_cached_tokens']:,} of {check['answers_prompt_tokens']:,}. They {agree}."
        )
    return Section(f"{named}Where the hits went", text, ["group", *names], rows)


def _by_cache(run: Mapping[str, Any], named: str) -> Section:
    rows = []
    for name, group in run["groups"].items():
        for what in ("hit", "miss"):
            figures = group["by_cache"][what]
            if figures:
                rows.append([name, what, str(figures["count"]), ms(figures, "p50"), ms(figures, "p95")])
    return Section(
        f"{named}Time to first token of hits and misses, milliseconds",
        ["A hit: at least half of the prompt came from a cache."],
        ["group", "", "count", "P50", "P95"],
        rows,
    )


def _lengths(run: Mapping[str, Any], named: str) -> Section:
    rows = [
        [
            name,
            str(figures["requests"]),
            str(figures["errors"]),
            share(figures["hit_rate"]),
            ms(figures["ttft"], "p50"),
            ms(figures["ttft"], "p95"),
            ms(figures["tpot"], "p50"),
            ms(figures["e2e"], "p95"),
        ]
        for name, figures in run["prompt_lengths"].items()
    ]
    head = ["prompt tokens", "requests", "failed", "hits", "TTFT P50", "TTFT P95", "TPOT P50", "e2e P95"]
    return Section(f"{named}By prompt length", [], head, rows)


def _load(run: Mapping[str, Any], named: str) -> Section:
    work = run["uncached_tokens"]
    names = sorted({*run["replicas"], *work})
    rows = [[name, str(run["replicas"].get(name, "-")), _tokens(work.get(name))] for name in names]
    text = []
    if run["uncached_spread"] is not None:
        text.append(
            f"Computed prompt tokens: the most loaded replica has {run['uncached_spread']:.3f} times the "
            f"mean, Jain's index {run['uncached_jain']:.3f}."
        )
    return Section(f"{named}Load by replica", text, ["replica", "requests", "prompt tokens computed"], rows)


def _tokens(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None, interval: Sequence[float] | None = None) -> str:
    """A percentage; `unknown` where it is."""
    if value is None:
        return "unknown"
    around = f" [{100 * interval[0]:.1f}-{100 * interval[1]:.1f}]" if interval else ""
    return f"{value:.1%}{around}"


def ms(figures: Mapping[str, Any] | None, name: str) -> str:
    """Milliseconds with their interval."""
    if not figures:
        return "-"
    around = figures.get("intervals", {}).get(name)
    return _short(figures[name]) + (f" [{_short(around[0])}-{_short(around[1])}]" if around else "")


def _short(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def markdown(parts: Sequence[Section]) -> str:
    """As Markdown."""
    lines: list[str] = []
    for number, part in enumerate(parts):
        lines.append(f"{'#' if number == 0 else '##'} {part.title}\n")
        lines += [f"{sentence}\n" for sentence in part.text]
        if part.rows:
            lines.append(f"| {' | '.join(part.head)} |")
            lines.append("|" + "|".join("---" if i == 0 else "---:" for i in range(len(part.head))) + "|")
            lines += [f"| {' | '.join(row)} |" for row in part.rows]
            lines.append("")
    return "\n".join(lines)


_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:1100px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;border-bottom:1px solid #e6e6e6;text-align:right;white-space:nowrap}
th:first-child,td:first-child,td:nth-child(2):not(.n){text-align:left}
.warn{background:#fff4e0;border-left:4px solid #d1803a;padding:.4rem 1rem}
img{max-width:100%;margin:.5rem 0}.wide{overflow-x:auto}
"""


def html(parts: Sequence[Section], pictures: Sequence[tuple[str, str]] = ()) -> str:
    """One page that needs nothing else. `pictures`: name and base64 of each PNG."""
    out = ["<!doctype html><html lang=en><meta charset=utf-8>"]
    out.append(f"<title>{escape(parts[0].title)}</title><style>{_STYLE}</style>")
    for number, part in enumerate(parts):
        level = "h1" if number == 0 else "h2"
        out.append(f"<{level}>{escape(part.title)}</{level}>")
        warns = "does not count" in part.title or "with care" in part.title
        out += [f"<p{' class=warn' if warns else ''}>{escape(sentence)}</p>" for sentence in part.text]
        if part.rows:
            head = "".join(f"<th>{escape(name)}</th>" for name in part.head)
            rows = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in part.rows
            )
            out.append(f"<div class=wide><table><tr>{head}</tr>{rows}</table></div>")
        if number == 0:
            out += [f'<img alt="{escape(name)}" src="data:image/png;base64,{png}">' for name, png in pictures]
    return "".join(out) + "</html>\n"
