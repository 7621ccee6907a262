"""Pictures of what-ifs: hits, TTFT P95 and evenness against each knob, a curve a policy. All *simulated*."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from bench.plots import BASELINE, INK, OTHERS, PROPOSED, STYLE, footer, milliseconds

PANELS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "prompt tokens from cache": lambda run: float(run["groups"]["all"]["hit_rate"]),
    "TTFT P95": lambda run: 1000 * float(run["groups"]["all"]["ttft"]["p95"]),
    "computed tokens, max over mean": lambda run: float(run["uncached_spread"]),
}


def draw(content: Mapping[str, Any], folder: Path) -> list[Path]:
    """A picture a knob; the paths. A grid of several knobs has none."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    knobs = dict.fromkeys(run["varied"] for run in content["runs"] if "+" not in run["varied"])
    with plt.rc_context(STYLE):
        for knob in knobs:
            runs = [run for run in content["runs"] if run["varied"] == knob]
            path = folder / f"{knob}.png"
            _draw(content, knob, runs, path)
            paths.append(path)
    return paths


def _draw(content: Mapping[str, Any], knob: str, runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    values = list(dict.fromkeys(run["setting"][knob] for run in runs))
    places = {value: at for at, value in enumerate(values)}
    policies = list(dict.fromkeys(run["policy"] for run in runs))
    others = iter(OTHERS)
    fixed = {"round_robin": BASELINE, "prefix_cost": PROPOSED}
    colours = {policy: fixed.get(policy) or next(others, INK) for policy in policies}
    figure, axes = plt.subplots(1, len(PANELS), figsize=(12, 3.4))
    for axis, (title, value_of) in zip(axes, PANELS.items(), strict=True):
        for policy in policies:
            mine = [run for run in runs if run["policy"] == policy]
            xs = [places[run["setting"][knob]] for run in mine]
            axis.plot(xs, [value_of(run) for run in mine], "o-", color=colours[policy], lw=2, label=policy)
        if "cache" in title:
            mine = [run for run in runs if run["policy"] == policies[0]]
            ceilings = [run["groups"]["all"]["ceiling"] for run in mine]
            xs = [places[run["setting"][knob]] for run in mine]
            axis.plot(xs, ceilings, color=INK, lw=1.2, ls=(0, (4, 2)), label="ceiling")
            axis.set_ylim(0, 1.02)
            axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
            axis.legend(frameon=False, loc="best")
        elif "TTFT" in title:
            axis.set_ylim(bottom=0)
            axis.yaxis.set_major_formatter(FuncFormatter(milliseconds))
        axis.set_xticks(range(len(values)), [_tick(value) for value in values])
        axis.set_xlabel(knob)
        axis.grid(visible=True, axis="y")
        axis.set_title(title)
    figure.tight_layout()
    footer(figure, content)
    figure.savefig(path)
    plt.close(figure)


def _tick(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
