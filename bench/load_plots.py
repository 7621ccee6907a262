"""Pictures of one load run: how long by group, hits over time, load by replica.

Whatever comes from a simulated replica says so in the picture.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.plots import FAINT, INK, STYLE, footer, milliseconds, short
from bench.record import Record, hit_rate

COLOURS = ("#1f6fb4", "#d1803a", "#4f9d69", "#8d6cab", "#b8516a")
POINTS, EACH = 16, 5
"""Of the curve of hits over time: so many points, and at least so many requests in each."""
LEAST_MS = 0.01
"""Where a logarithmic axis ends."""
CURVES = {"ttft": "time to first token", "tpot": "time per further token", "e2e": "end to end"}


def draw(
    content: Mapping[str, Any], run: Mapping[str, Any], records: Sequence[Record], folder: Path
) -> list[Path]:
    """All pictures of a run; the paths of those there was something to draw for."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = [record for record in records if record.error is None]
    with plt.rc_context(STYLE):
        figures = {
            "latency.png": _latency(run, whole) if whole else None,
            "hits_over_time.png": _over_time(run, whole),
            "load.png": _load(run),
        }
        paths = []
        for name, figure in figures.items():
            if figure is not None:
                footer(figure, content)
                figure.savefig(folder / name)
                plt.close(figure)
                paths.append(folder / name)
    return paths


def _colours(run: Mapping[str, Any]) -> dict[str, str]:
    return {group: COLOURS[i % len(COLOURS)] for i, group in enumerate(run["groups"])}


def _latency(run: Mapping[str, Any], whole: Sequence[Record]) -> Figure:
    """A cumulative curve a group, a panel a kind of latency."""
    colours = _colours(run)
    figure, axes = plt.subplots(1, len(CURVES), figsize=(12, 3.6), sharey=True)
    for axis, (kind, title) in zip(axes, CURVES.items(), strict=True):
        for group, colour in colours.items():
            found = [getattr(r, kind) for r in whole if r.group == group]
            values = sorted(max(LEAST_MS, 1000 * value) for value in found if value is not None)
            if values:
                shares = [(i + 1) / len(values) for i in range(len(values))]
                axis.step(values, shares, where="post", color=colour, lw=2, label=group)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        axis.xaxis.set_major_formatter(FuncFormatter(milliseconds))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.tick_params(axis="x", labelrotation=45)
        axis.grid(visible=True, which="major")
        axis.set_title(title)
        for share in (0.5, 0.95):
            axis.axhline(share, color=FAINT, lw=0.8, ls=(0, (2, 2)))
    axes[0].yaxis.set_major_formatter(FuncFormatter(_percent))
    axes[0].set_ylabel("answers by then")
    axes[0].set_ylim(0, 1.01)
    axes[-1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    return figure


def _over_time(run: Mapping[str, Any], whole: Sequence[Record]) -> Figure | None:
    """Hits in stretches of equally many requests."""
    colours = _colours(run)
    figure, axis = plt.subplots(figsize=(8, 3.4))
    drawn = False
    for group, colour in colours.items():
        told = [r for r in whole if r.group == group and r.cached_tokens is not None]
        told.sort(key=lambda record: record.due)
        each = max(EACH, len(told) // POINTS)
        parts = [told[i : i + each] for i in range(0, len(told) - each + 1, each)]
        if parts:
            times = [sum(r.due for r in part) / len(part) for part in parts]
            axis.plot(
                times, [hit_rate(p) or 0.0 for p in parts], "o-", color=colour, ms=4, lw=1.6, label=group
            )
            ceiling = run["groups"][group]["ceiling"]
            if ceiling:
                axis.axhline(ceiling, color=colour, lw=1.1, ls=(0, (4, 2)))
                axis.annotate(
                    f"ceiling {ceiling:.0%}", (times[-1], ceiling), (0, 3), textcoords="offset points",
                    ha="right", color=colour, fontsize=8,
                )  # fmt: skip
            drawn = True
    if not drawn:
        plt.close(figure)
        return None
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel("seconds")
    axis.yaxis.set_major_formatter(FuncFormatter(_percent))
    axis.grid(visible=True, axis="y")
    axis.set_title("Prompt tokens from cache, over time")
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    return figure


def _load(run: Mapping[str, Any]) -> Figure | None:
    """Requests and computed tokens by replica, each against the mean."""
    panels: dict[str, Mapping[str, float]] = {
        "requests": run["replicas"],
        "prompt tokens computed": run["uncached_tokens"],
    }
    panels = {title: values for title, values in panels.items() if values}
    if not panels:
        return None
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.2), squeeze=False)
    for axis, (title, values) in zip(axes[0], panels.items(), strict=True):
        _bars(axis, title, values)
    figure.tight_layout()
    return figure


def _bars(axis: Axes, title: str, values: Mapping[str, float]) -> None:
    names = sorted(values)
    axis.bar(range(len(names)), [values[name] for name in names], color=COLOURS[0], width=0.7)
    middle = sum(values.values()) / len(values)
    axis.axhline(middle, color=INK, lw=1.2, ls=(0, (4, 2)))
    axis.set_xticks(range(len(names)), [short(name) for name in names], rotation=30, ha="right")
    axis.grid(visible=True, axis="y")
    axis.set_axisbelow(True)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    over = max(values.values()) / middle if middle else 1.0
    axis.set_title(f"{title}: max over mean {over:.2f}")


def _percent(share: float, _position: int | None = None) -> str:
    return f"{share:.0%}"
