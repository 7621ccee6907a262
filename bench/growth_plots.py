"""Pictures of how costs grow, on logarithmic axes: a straight line of slope one is linear."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.plots import FAINT, INK, OTHERS, PROPOSED, STYLE

COLOURS = (PROPOSED, *OTHERS, INK)


def draw(rows: Sequence[Mapping[str, Any]], path: Path, footer: str) -> Path | None:
    """Time and bytes against tokens, time against replicas and blocks; None if there is nothing to draw."""
    grown = [row for row in rows if "step" in row]
    if not grown:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 4, figsize=(17, 4))
        fewest = min(row["replicas"] for row in grown if "replicas" in row)
        most = max(row["tokens"] for row in grown if "tokens" in row)
        by_tokens = [r for r in grown if "tokens" in r and r.get("replicas", fewest) == fewest]
        by_replicas = [r for r in grown if "replicas" in r and r.get("tokens", most) == most]
        _panel(axes[0], by_tokens, "tokens", "value", "microseconds by prompt tokens")
        _panel(axes[1], by_tokens, "tokens", "bytes", "bytes at most, by prompt tokens")
        _panel(axes[2], by_replicas, "replicas", "value", f"microseconds by replicas, {most:,} tokens")
        by_blocks = [r for r in grown if "blocks" in r]
        _panel(axes[3], by_blocks, "blocks", "value", "microseconds by blocks in the index")
        figure.tight_layout()
        figure.text(0.01, -0.03, footer, color=FAINT, fontsize=8)
        figure.savefig(path)
        plt.close(figure)
    return path


def _panel(axis: Axes, rows: Sequence[Mapping[str, Any]], across: str, up: str, title: str) -> None:
    steps = list(dict.fromkeys(row["step"] for row in rows))
    for step, colour in zip(steps, COLOURS, strict=False):
        points = sorted((row[across], max(row[up], 1e-2)) for row in rows if row["step"] == step)
        axis.plot(*zip(*points, strict=True), "o-", color=colour, lw=1.8, ms=5)
        axis.annotate(
            step, points[-1], (6, 0), textcoords="offset points", va="center", color=colour, fontsize=9
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    places = sorted({row[across] for row in rows})
    axis.set_xticks(places, [f"{place // 10**6}M" if place >= 10**6 else f"{place:,}" for place in places])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    )
    axis.set_xlim(places[0] / 1.5, places[-1] * 4)
    axis.grid(visible=True, which="major")
    axis.set_axisbelow(True)
    axis.set_title(title)
