"""The bench's pictures: what a person should see first, said in the picture itself.

One colour a policy in every picture: grey for what is compared against, blue for what is proposed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.record import Record, groups_of

BASELINE, PROPOSED = "#9a9a9a", "#1f6fb4"
OTHERS = ("#d1803a", "#4f9d69", "#8d6cab", "#b8516a")
INK, FAINT = "#222222", "#8a8a8a"

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e6e6e6",
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
}


def draw(content: Mapping[str, Any], records: Mapping[str, Sequence[Record]], folder: Path) -> list[Path]:
    """All pictures of a result; `records` by policy, in the order of its runs."""
    folder.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figures = {
            "overview.png": _overview(content),
            "ttft.png": _ttft(content, records) if records else None,
            "hit_rate.png": _hit_rate(content),
            "replicas.png": _replicas(content),
        }
        paths = []
        for name, figure in figures.items():
            if figure is not None:
                figure.savefig(folder / name)
                plt.close(figure)
                paths.append(folder / name)
    return paths


def _colours(policies: Sequence[str]) -> dict[str, str]:
    fixed = {"round_robin": BASELINE, "direct": BASELINE, "prefix_cost": PROPOSED}
    rest = iter(OTHERS)
    return {policy: fixed.get(policy) or next(rest, INK) for policy in policies}


def _source(content: Mapping[str, Any]) -> str:
    """What was measured, for the foot of a picture."""
    workload = content["workload"]
    facts = [str(workload[key]) for key in ("profile",) if key in workload]
    kind = "SIMULATED replicas" if content["simulated"] else "real replicas"
    return " · ".join([kind, *facts, f"commit {content['commit']}"])


def footer(figure: Figure, content: Mapping[str, Any]) -> None:
    """Say in the picture what was measured."""
    figure.text(0.01, -0.03, _source(content), color=FAINT, fontsize=8)


def _overview(content: Mapping[str, Any]) -> Figure | None:
    """All traffic at a glance: median TTFT and cache hits, from the first policy to the last."""
    parts = [("", content["runs"])]
    parts += [(part["workload"]["what"], part["runs"]) for part in content.get("scenarios", ())]
    rows = [
        (label or group, [run["groups"][group] for run in runs])
        for label, runs in parts
        for group in groups_of(runs)
        if len(runs) > 1 and all(run["groups"].get(group) for run in runs)
    ][::-1]
    if not rows:
        return None
    policies = [run["policy"] for run in content["runs"]]
    colours = list(_colours(policies).values())
    figure, (times, hits) = plt.subplots(1, 2, figsize=(10, 0.9 + 0.52 * len(rows)), sharey=True)
    for y, (_, figures) in enumerate(rows):
        medians = [1000 * one["ttft"]["p50"] for one in figures]
        _dumbbell(times, y, medians, colours, lambda value: f"{value:.0f} ms")
        rates = [one["hit_rate"] or 0.0 for one in figures]
        _dumbbell(hits, y, rates, colours, lambda value: f"{value:.0%}")
        hits.plot(
            [figures[-1]["ceiling"] or 0.0] * 2, [y - 0.3, y + 0.3], color=INK, lw=1.2, ls=(0, (2, 1.5))
        )
    times.set_yticks(range(len(rows)), [label for label, _ in rows])
    times.set_ylim(-0.6, len(rows) - 0.4)
    times.set_xlim(left=0)
    times.set_title("Median time to first token")
    times.xaxis.set_major_formatter(FuncFormatter(milliseconds))
    hits.set_xlim(-0.03, 1)
    hits.set_title("Prompt tokens from cache")
    hits.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    for axis in (times, hits):
        axis.grid(visible=True, axis="x")
        axis.set_axisbelow(True)
        axis.tick_params(axis="y", length=0)
        axis.spines["left"].set_visible(False)
    handles = [Line2D([], [], color=colour, marker="o", lw=0, ms=8) for colour in colours]
    handles.append(Line2D([], [], color=INK, lw=1.2, ls=(0, (2, 1.5))))
    names = [*policies, "a perfect router"]
    figure.tight_layout()
    figure.legend(
        handles, names, frameon=False, ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, 0.02)
    )
    figure.text(0.01, -0.13, _source(content), color=FAINT, fontsize=8)
    return figure


def _dumbbell(
    axis: Axes, y: int, values: Sequence[float], colours: Sequence[str], text: Callable[[float], str]
) -> None:
    """A dot a policy and a line between them; numbers on the outer sides."""
    axis.plot([min(values), max(values)], [y, y], color="#cfcfcf", lw=3, zorder=1, solid_capstyle="round")
    for value, colour in zip(values, colours, strict=True):
        axis.plot(value, y, "o", color=colour, ms=8, zorder=2)
    apart = text(values[0]) != text(values[-1])
    for value, colour in (
        ((values[0], colours[0]), (values[-1], colours[-1])) if apart else ((values[-1], INK),)
    ):
        left = apart and value == min(values)
        axis.annotate(
            text(value),
            (value, y),
            (-8 if left else 8, 0),
            ha="right" if left else "left",
            va="center",
            textcoords="offset points",
            fontsize=9,
            color=INK if colour == BASELINE else colour,
        )


def _ttft(content: Mapping[str, Any], records: Mapping[str, Sequence[Record]]) -> Figure:
    """How long until the first token: a cumulative curve a policy, a panel a group."""
    groups = groups_of(content["runs"])
    colours = _colours(list(records))
    figure, axes = plt.subplots(
        1, len(groups), figsize=(4.6 * len(groups) + 0.6, 3.6), sharex=True, sharey=True, squeeze=False
    )
    for axis, group in zip(axes[0], groups, strict=True):
        medians = {}
        for policy, rows in records.items():
            values = sorted(1000 * r.ttft for r in rows if r.group == group and r.ttft is not None)
            if not values:
                continue
            shares = [(i + 1) / len(values) for i in range(len(values))]
            axis.step(values, shares, where="post", color=colours[policy], lw=2, label=policy)
            medians[policy] = values[len(values) // 2]
            axis.plot(medians[policy], 0.5, "o", color=colours[policy], ms=6, zorder=3)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(FuncFormatter(milliseconds))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(visible=True, which="major")
        axis.set_axisbelow(True)
        axis.set_xlabel("time to first token")
        axis.set_ylim(0, 1.01)
        axis.set_title(_headline(group, medians))
    axes[0][0].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes[0][0].set_ylabel("requests answered by then")
    axes[0][-1].legend(frameon=False, loc="upper left")
    figure.tight_layout()
    footer(figure, content)
    return figure


def _headline(group: str, medians: Mapping[str, float]) -> str:
    """Says the medians, and by how much the last is lower than the first."""
    if len(medians) < 2:
        return f"{group}: P50 " + ", ".join(f"{value:.0f} ms" for value in medians.values())
    first, *_, last = medians.values()
    change = last / first - 1
    return f"{group}: P50 {first:.0f} → {last:.0f} ms ({change:+.0%})"


def milliseconds(value: float, _position: int | None = None) -> str:
    """A tick's text; from a second on, in seconds."""
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def _hit_rate(content: Mapping[str, Any]) -> Figure:
    """Share of prompt tokens from the cache, with what a perfect router could reach."""
    groups, runs = groups_of(content["runs"]), content["runs"]
    colours = _colours([run["policy"] for run in runs])
    figure, axis = plt.subplots(figsize=(1.6 + 1.9 * len(groups), 3.6))
    width = 0.8 / len(runs)
    for at, group in enumerate(groups):
        for i, run in enumerate(runs):
            figures = run["groups"].get(group)
            if figures is None or figures["hit_rate"] is None:
                continue
            x = at - 0.4 + (i + 0.5) * width
            rate = figures["hit_rate"]
            axis.bar(x, rate, width * 0.92, color=colours[run["policy"]])
            inside = rate > 0.08
            axis.annotate(
                f"{rate:.0%}",
                (x, rate),
                (0, -12 if inside else 3),
                ha="center",
                textcoords="offset points",
                color="white" if inside else INK,
                fontsize=9,
            )
        ceiling = next((run["groups"][group]["ceiling"] for run in runs if group in run["groups"]), None)
        if ceiling:
            axis.hlines(ceiling, at - 0.42, at + 0.42, color=INK, lw=1.5, ls=(0, (4, 2)))
            axis.annotate(
                f"perfect router {ceiling:.0%}",
                (at + 0.42, ceiling),
                (0, 4),
                ha="right",
                textcoords="offset points",
                color=INK,
                fontsize=8,
            )
    axis.set_xticks(range(len(groups)), groups)
    axis.tick_params(axis="x", length=0)
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axis.grid(visible=True, axis="y")
    axis.set_axisbelow(True)
    axis.set_title("Prompt tokens served from cache")
    _legend(axis, colours)
    figure.tight_layout()
    footer(figure, content)
    return figure


def _replicas(content: Mapping[str, Any]) -> Figure | None:
    """Who served how many requests."""
    runs = [run for run in content["runs"] if run["replicas"]]
    names = sorted({name for run in runs for name in run["replicas"]})
    if not names:
        return None
    colours = _colours([run["policy"] for run in runs])
    figure, axis = plt.subplots(figsize=(1.6 + 1.2 * len(names), 3.0))
    width = 0.8 / len(runs)
    for i, run in enumerate(runs):
        xs = [at - 0.4 + (i + 0.5) * width for at in range(len(names))]
        counts = [run["replicas"].get(name, 0) for name in names]
        axis.bar(xs, counts, width * 0.92, color=colours[run["policy"]])
        for x, count in zip(xs, counts, strict=True):
            axis.annotate(str(count), (x, count), (0, 3), ha="center", textcoords="offset points", fontsize=8)
    axis.set_xticks(range(len(names)), [short(name) for name in names])
    axis.tick_params(axis="x", length=0)
    axis.grid(visible=True, axis="y")
    axis.set_axisbelow(True)
    axis.margins(y=0.12)
    axis.set_title("Requests by replica")
    _legend(axis, colours)
    figure.tight_layout()
    footer(figure, content)
    return figure


def _legend(axis: Axes, colours: Mapping[str, str]) -> None:
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    axis.legend(handles, list(colours), frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def short(name: str) -> str:
    """A URL without its scheme."""
    return name.rsplit("//", maxsplit=1)[-1]
