"""What the parts cost: `python -m bench micro` puts the rows of every `bench/micro_*.py` in one table.

Each of those modules has `rows()`: mappings of `name`, `value`, `unit` and `target`, the most that the value
should be, or None; and `QUICK`: the sizes that `--quick` takes instead. Times depend on the machine and on
what else it does, so a missed target is shown, not an error.
"""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench import report

OUT = Path("bench/out/micro.json")
PREFIX = "micro_"


def parts() -> list[str]:
    """What can be measured: the names behind `micro_`."""
    return sorted(path.stem.removeprefix(PREFIX) for path in Path(__file__).parent.glob(f"{PREFIX}*.py"))


def measure(part: str, *, quick: bool = False) -> list[dict[str, Any]]:
    """The rows of one part."""
    module = import_module(f"bench.{PREFIX}{part}")
    if quick:
        vars(module).update(module.QUICK)
    return [{"part": part, **row} for row in module.rows()]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """All rows; what is over its target is red."""
    shown = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown.add_column("part")
    shown.add_column("what")
    with_bytes = any("bytes" in row for row in rows)
    for name in ("value", "unit", "at most", *(["bytes"] if with_bytes else [])):
        shown.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    for row in rows:
        target = row["target"]
        missed = target is not None and row["value"] > target
        value = f"{row['value']:,.2f}" if row["value"] < 1000 else f"{row['value']:,.0f}"
        limit = "" if target is None else f"{target:g}"
        cells = [row["part"], row["name"], value, row["unit"], limit]
        if with_bytes:
            cells.append(f"{row['bytes']:,}" if "bytes" in row else "")
        shown.add_row(*cells, style="bold red" if missed else "")
    return shown


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    options = argparse.ArgumentParser(prog="python -m bench micro", description=__doc__)
    options.add_argument(
        "part", nargs="*", metavar="PART", help=f"some of {', '.join(parts())}; default: all"
    )
    options.add_argument(
        "--quick", action="store_true", help="small sizes, few runs: whether it works; no figure counts"
    )
    options.add_argument("--out", type=Path, default=OUT)
    arguments = options.parse_args(argv)
    if unknown := set(arguments.part) - set(parts()):
        options.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(parts())}")
    console = Console()
    rows: list[dict[str, Any]] = []
    for part in arguments.part or parts():
        with console.status(f"measuring {part}"):
            rows += measure(part, quick=arguments.quick)
    console.print(table(rows))
    if arguments.quick:
        console.print("--quick: whatever a row is called, it was small, and no figure counts")
    where = {**report.where(), **({"quick": True} if arguments.quick else {})}
    report.write({"schema": report.SCHEMA, **where, "rows": rows}, arguments.out)
    console.print(f"wrote {arguments.out}", highlight=False)
    if any("step" in row for row in rows):
        from bench import growth_plots  # noqa: PLC0415 - matplotlib takes a second

        told = report.where()
        footer = f"{told['machine']['cpu']}, Python {told['versions']['python']}, commit {told['commit']}"
        picture = growth_plots.draw(rows, arguments.out.with_suffix(".png"), footer)
        console.print(f"wrote {picture}", highlight=False)
    return 0
