"""The bench's pictures: what a person should see first, said in the picture itself.

One colour a policy in every picture: grey for what is compared against, blue for what is proposed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.record import Record, groups_of

BASELINE, PROPOSED = "#9a9a9a", "#1f6fb4"
OTHERS = ("#d1803a", "#4f9d69", "#8d6cab", "#b8516a")
INK, FAINT = "#222222", "#8a8a8a"

_STYLE: dict[Any, Any] = {
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
    with plt.rc_context(_STYLE):
        figures = {
            "ttft.png": _ttft(content, records),
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


def _footer(figure: Figure, content: Mapping[str, Any]) -> None:
    workload = content["workload"]
    facts = [str(workload[key]) for key in ("profile", "name") if key in workload]
    kind = "SIMULATED replicas" if content["simulated"] else "real replicas"
    figure.text(
        0.01, -0.03, " · ".join([kind, *facts, f"commit {content['commit']}"]), color=FAINT, fontsize=8
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
        axis.xaxis.set_major_formatter(FuncFormatter(_milliseconds))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(visible=True, which="major")
        axis.set_axisbelow(True)
        axis.set_xlabel("time to first token")
        axis.set_ylim(0, 1.01)
        axis.set_title(_headline(group, medians))
    axes[0][0].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    axes[0][0].set_ylabel("requests answered by then")
    axes[0][-1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    _footer(figure, content)
    return figure


def _headline(group: str, medians: Mapping[str, float]) -> str:
    """Says the medians, and by how much the last is lower than the first."""
    if len(medians) < 2:
        return f"{group}: P50 " + ", ".join(f"{value:.0f} ms" for value in medians.values())
    first, *_, last = medians.values()
    change = last / first - 1
    return f"{group}: P50 {first:.0f} → {last:.0f} ms ({change:+.0%})"


def _milliseconds(value: float, _position: int | None = None) -> str:
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
            axis.bar(x, figures["hit_rate"], width * 0.92, color=colours[run["policy"]])
            axis.annotate(
                f"{figures['hit_rate']:.0%}",
                (x, figures["hit_rate"]),
                (0, 3),
                ha="center",
                textcoords="offset points",
                color=INK,
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
    _footer(figure, content)
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
    axis.set_xticks(range(len(names)), [_short(name) for name in names])
    axis.tick_params(axis="x", length=0)
    axis.grid(visible=True, axis="y")
    axis.set_axisbelow(True)
    axis.set_title("Requests by replica")
    _legend(axis, colours)
    figure.tight_layout()
    _footer(figure, content)
    return figure


def _legend(axis: Axes, colours: Mapping[str, str]) -> None:
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    axis.legend(handles, list(colours), frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _short(name: str) -> str:
    return name.rsplit("//", maxsplit=1)[-1]
