"""`python -m bench scale`: what a large fleet asks of proxies and Redis, computed from what was measured.

Arithmetic, no measurement: every cost is read from `bench/results`, and named with its file. A fleet is
divided into *cells*: replicas, proxies and one pool in Redis that know of each other and of nobody else. What
a request costs is paid once, wherever it goes; what every proxy hears of its cell grows with the cell.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
LOG_BYTES = 64 << 20
"""What the log of a pool may hold (proxy.shared.log)."""
BUSY = 0.6
"""Share of a core that a proxy, or a master of Redis, is planned to use."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the fleet does."""

    replicas: int = 1000
    requests: float = 100_000.0
    """A second."""
    prompt: int = 2000
    output: int = 200
    """Tokens, one chunk each."""
    hits: float = 0.6
    """Of prompt tokens."""
    block: int = 16
    blocks: int = 65_536
    """In a replica's cache."""
    ttft: float = 0.2
    itl: float = 0.02
    """Seconds to the first token, and between two."""

    @property
    def changes(self) -> float:
        """Block changes a second: what is computed and generated is stored, and as much is evicted."""
        stored = ((1 - self.hits) * self.prompt + self.output) / self.block
        return 2 * self.requests * stored

    @property
    def told(self) -> float:
        """Bytes a second in all logs: 8 a change, and every placement with the keys of its whole prompt."""
        return 8 * self.changes + self.requests * (32 + 8 * self.prompt / self.block)

    @property
    def streams(self) -> float:
        """In flight."""
        return self.requests * (self.ttft + self.output * self.itl)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one core, and bytes, as measured."""

    request: float
    token: float
    """Beyond `request`, for each token of the prompt."""
    chunk: float
    write: float
    """Of a proxy, for a block change that it writes to Redis."""
    hear: float
    """Of a proxy, for a block change that it is told."""
    master: float
    """Of Redis, for a block change."""
    stored: float
    """Bytes of Redis for a block."""
    known: float
    """Bytes of a proxy for a block."""
    when: str

    @classmethod
    def measured(cls) -> "Costs":
        """From the committed results."""
        hop, shared, truth = (_read(name) for name in ("hop.json", "shared.json", "truth.json"))
        cells = hop["rounds"]["warmroute-exact"]
        request, long = (
            statistics.median(each[cell]["cpu_us"] for each in cells) for cell in ("small", "8k")
        )
        chunk = statistics.median(each["stream"]["cpu_us_chunk"] for each in cells)
        million = 5e6  # blocks in each of the two rows of memory
        return cls(
            request=request * 1e-6,
            token=(long - request) / 8000 * 1e-6,
            chunk=chunk * 1e-6,
            write=_row(shared, "batches of 1000, CPU of the proxy") * 1e-6,
            hear=_row(truth, "apply one block change") * 1e-6,
            master=_row(shared, "batches of 1000, CPU of Valkey") * 1e-6,
            stored=_row(shared, "5M blocks in Valkey") * 1e6 / million,
            known=_row(truth, "5M blocks, each held") * 1e6 / million,
            when=f"{hop['machine']}; commits {shared['commit']}, {truth['commit']}",
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a fleet, planned."""

    cells: int
    master: float
    """Share of a core that its master of Redis needs."""
    hearing: float
    """Share of a core that each of its proxies needs to hear what changes."""
    proxies: int | None
    """Processes, one core each; None if hearing alone leaves no room for requests."""
    log: float
    """Bytes a second into its log."""
    redis: float
    proxy: float
    """Bytes of memory: of its pool in Redis, and of the index in each proxy."""


def plan(load: Load, costs: Costs, size: int) -> Cell:
    """Divide the fleet into cells of so many replicas."""
    cells = ceil(load.replicas / size)
    changes = load.changes / cells
    work = costs.request + costs.token * load.prompt + costs.chunk * load.output
    hearing = costs.hear * changes
    needed = load.requests / cells * work + costs.write * changes
    blocks = size * load.blocks
    return Cell(
        cells=cells,
        master=costs.master * changes,
        hearing=hearing,
        proxies=ceil(needed / (BUSY - hearing)) if hearing < BUSY else None,
        log=load.told / cells,
        redis=costs.stored * blocks + LOG_BYTES,
        proxy=costs.known * blocks,
    )


def page(load: Load, costs: Costs, sizes: Sequence[int]) -> str:
    """The tables, as Markdown."""
    work = costs.request + costs.token * load.prompt
    chunks = load.requests * load.output
    traffic = (
        f"{load.replicas:,} replicas, {load.requests:,.0f} requests a second of {load.prompt:,} + "
        f"{load.output} tokens, {load.hits:.0%} of prompt tokens from cache, blocks of {load.block}, "
        f"{load.blocks:,} a replica."
    )
    whole = {
        "prompt tokens": f"{load.requests * load.prompt / 1e6:,.0f} M",
        "chunks of streams": f"{chunks / 1e6:,.1f} M",
        "streams in flight": f"{load.streams:,.0f}",
        "block changes in events": f"{load.changes / 1e6:,.1f} M",
        "told through Redis": f"{load.told / 1e6:,.0f} MB",
        f"cores for requests ({work * 1e6:,.0f} us each)": f"{load.requests * work:,.0f}",
        f"cores for chunks ({costs.chunk * 1e6:,.0f} us each)": f"{chunks * costs.chunk:,.0f}",
    }
    rows = [_of_cell(size, plan(load, costs, size)) for size in sizes]
    lines = [
        *(traffic, ""),
        *("| the whole fleet, a second | |", "|---|---:|", *(f"| {k} | {v} |" for k, v in whole.items()), ""),
        *("| " + " | ".join(rows[0]) + " |", "|" + "---:|" * len(rows[0])),
        *("| " + " | ".join(row.values()) + " |" for row in rows),
        *(
            "",
            f"Costs from hop.json, shared.json and truth.json ({costs.when}); {BUSY:.0%} of a core is used.",
        ),
    ]
    return "\n".join(lines) + "\n"


def _of_cell(size: int, it: Cell) -> dict[str, str]:
    return {
        "replicas a cell": f"{size:,}",
        "cells": f"{it.cells:,}",
        "master's core": f"{it.master:.0%}",
        "hearing, each proxy": f"{it.hearing:.0%}",
        "proxies a cell": "none can" if it.proxies is None else f"{it.proxies:,}",
        "into its log": f"{it.log / 1e6:,.1f} MB/s",
        "read from it": "-" if it.proxies is None else f"{it.log * it.proxies / 1e6:,.0f} MB/s",
        "log holds": f"{LOG_BYTES / it.log:,.1f} s",
        "Redis": f"{it.redis / 1e9:,.2f} GB",
        "index, each proxy": f"{it.proxy / 1e6:,.0f} MB",
    }


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench scale`."""
    options = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__)
    usual = Load()
    for name in Load.__slots__:
        value = getattr(usual, name)
        options.add_argument(f"--{name}", type=type(value), default=value)
    options.add_argument(
        "--cell", type=int, nargs="+", default=[8, 16, 32, 64, 125, 1000], metavar="REPLICAS"
    )
    return options


def main(argv: Sequence[str]) -> int:
    """Print the page."""
    given = vars(parser().parse_args(argv))
    sizes = given.pop("cell")
    print(page(Load(**given), Costs.measured(), sizes), end="")
    return 0


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def _row(result: Any, name: str) -> float:
    (row,) = (row for row in result["rows"] if name in row["name"] and ":" not in row["name"])
    return float(row["value"])
