"""What the index costs: microseconds for a match and a prediction, bytes for a block.

Times are of one call, from the best of several loops. Memory is what a fresh process grows by while it fills
an index (resident set, before against after), so the interpreter's own slack counts too. Keys are random
numbers, as chained hashes look to the index: what matters is where chains branch. Nothing is simulated.

Run alone: python -m bench.micro_index (Linux, for the memory figures)
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import gc
import json
import resource
import subprocess
import sys
import timeit
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from proxy.index.memory import MemoryIndex

BLOCKS = 1_000_000
PROMPT, SHARED = 125, 62
"""Blocks of a realistic prompt (2,000 tokens at 16 a block), and how many of them others share."""
PREFIXES = 200
QUICK = {"BLOCKS": 10_000}
"""What `--quick` measures instead."""

Row = dict[str, Any]


def fresh(blocks: int, rng: Random) -> array[int]:
    """Keys of blocks never seen before."""
    return array("Q", rng.randbytes(8 * blocks))


def best_us(call: Callable[[], object], number: int = 2000, repeat: int = 7) -> float:
    """Microseconds a call, of the best loop."""
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def each_us(calls: Iterator[Callable[[], object]], number: int = 300, repeat: int = 5) -> float:
    """Microseconds a call, of the best loop, where no call may be made twice."""

    def loop() -> float:
        batch = list(islice(calls, number))
        start = perf_counter()
        for call in batch:
            call()
        return perf_counter() - start

    return min(loop() for _ in range(repeat)) / number * 1e6


def match_row(replicas: int, target: float | None) -> Row:
    """A conversation of 500 blocks that every replica holds, behind a system prompt that others share."""
    rng = Random(1)
    index = MemoryIndex()
    keys = fresh(500, rng)
    for replica in range(replicas):
        index.predict(f"replica-{replica}", keys)
        index.predict(f"replica-{replica}", keys[:100] + fresh(50, rng))
    assert set(index.match(keys).values()) == {500}
    value = best_us(lambda: index.match(keys), number=200 if replicas > 100 else 2000)
    return {
        "name": f"match 500 blocks, {replicas} replicas hold all",
        "value": value,
        "unit": "us",
        "target": target,
    }


def predict_rows(blocks: int) -> Iterator[Row]:
    """Warm: all of it is held. Cold: none of it is, and as many blocks must go to make room."""
    rng = Random(2)
    index = MemoryIndex()
    index.resize("a", 50_000)
    keys = fresh(blocks, rng)
    while index.blocks("a") < index.capacity("a"):
        index.predict("a", fresh(blocks, rng))
    index.predict("a", keys)
    warm = best_us(lambda: index.predict("a", keys))
    yield {"name": f"predict {blocks} blocks, warm", "value": warm, "unit": "us", "target": None}
    cold = each_us(partial(index.predict, "a", fresh(blocks, rng)) for _ in count())
    yield {
        "name": f"predict {blocks} blocks, cold and full",
        "value": cold,
        "unit": "us",
        "target": None,
    }


def turn_row() -> Row:
    """All that one request asks of a full index: match, predict, confirm, and the blocks of the answer."""
    rng = Random(3)
    index = MemoryIndex()
    names = [f"replica-{number}" for number in range(8)]
    for name in names:
        index.resize(name, 20_000)
    prefixes = [fresh(SHARED, rng) for _ in range(PREFIXES)]

    def turn(name: str, prompt: array[int], answer: array[int]) -> None:
        predicted = index.match(prompt).get(name, 0)
        placement = index.predict(name, prompt)
        index.confirm(placement, predicted, predicted)
        index.predict(name, prompt + answer, after=placement)

    def calls() -> Iterator[Callable[[], object]]:
        while True:
            prompt = rng.choice(prefixes) + fresh(PROMPT - SHARED, rng)
            yield partial(turn, rng.choice(names), prompt, fresh(16, rng))

    endless = calls()
    for call in islice(endless, 5_000):
        call()
    return {
        "name": "all calls of one request of 125 blocks",
        "value": each_us(endless, 2000),
        "unit": "us",
        "target": None,
    }


def forget_row() -> Row:
    """One replica with 65,536 blocks of realistic prompts."""
    rng = Random(4)
    index = MemoryIndex()
    fill(index, ["a"], 65_536, rng)

    return {
        "name": "forget a replica of 65,536 blocks",
        "value": timeit.timeit(lambda: index.forget("a"), number=1) * 1e3,
        "unit": "ms",
        "target": None,
    }


def fill(index: MemoryIndex, names: list[str], blocks: int, rng: Random) -> None:
    """Realistic prompts, half of each shared with many others, until so many distinct blocks are stored."""
    for name in names:
        index.resize(name, 2 * blocks)
    prefixes = [fresh(SHARED, rng) for _ in range(PREFIXES)]
    while index.size() < blocks:
        index.predict(rng.choice(names), rng.choice(prefixes) + fresh(PROMPT - SHARED, rng))


def fill_single(index: MemoryIndex, blocks: int, rng: Random) -> None:
    """Every block its own run: prompts of one block, nothing shared."""
    index.resize("a", blocks)
    for _ in range(blocks):
        index.predict("a", fresh(1, rng))


def resident_mb() -> float:
    """What this process holds in memory, in MB of 1,000,000 bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_memory(shape: str, blocks: int) -> float:
    """MB by which this process grows with so many; meant for a process of its own."""
    index, rng = MemoryIndex(), Random(5)
    before = resident_mb()
    if shape == "single":
        fill_single(index, blocks, rng)
    else:
        fill(index, [f"replica-{number}" for number in range(8)], blocks, rng)
    assert index.size() >= blocks
    return resident_mb() - before


def memory_row(shape: str, words: str, target: float | None) -> Row:
    """Ask a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.micro_index", shape, str(BLOCKS)],
        capture_output=True,
        check=True,
        text=True,
    )
    return {
        "name": f"1M blocks, {words}",
        "value": json.loads(done.stdout),
        "unit": "MB",
        "target": target,
    }


def rows() -> list[Row]:
    """Every figure: name, value, unit, and the most it should be, None where nothing is asked."""
    return [
        match_row(8, 50.0),
        match_row(100, None),
        match_row(1000, None),
        *predict_rows(500),
        *predict_rows(2000),
        turn_row(),
        forget_row(),
        memory_row("realistic", "prompts of 125, half shared, 8 replicas (RSS growth)", 120.0),
        memory_row("single", "worst case: every block a run of its own (RSS growth)", None),
    ]


def main() -> None:
    """Print the figures, or, given a shape and how many blocks, only that process's growth."""
    if len(sys.argv) > 1:
        print(json.dumps(measure_memory(sys.argv[1], int(sys.argv[2]))))
        return
    for row in rows():
        target = "" if row["target"] is None else f"   (at most {row['target']:g})"
        print(f"{row['name']:76} {row['value']:9.2f} {row['unit']}{target}")


if __name__ == "__main__":
    main()
