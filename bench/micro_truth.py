"""What the index costs where replicas publish events: a request's calls, the feed's changes, and memory.

Times are of one call, from the best of several loops; the calls of a loop alternate between equal keys in
different arrays, as the index remembers the array it was asked last. Keys are random numbers, as chained
hashes look to a table. Memory is all that a fresh process holds (resident set), the interpreter and what it
imported included. Nothing is simulated.

Run alone: python -m bench.micro_truth (Linux, for the memory figures)
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import json
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import cycle
from random import Random
from statistics import median
from time import perf_counter, process_time

from bench.micro_index import Row, best_us, each_us, fresh, resident_mb
from proxy.index.memory import MemoryIndex
from proxy.index.truth import Mode, TrueIndex

NAMES = [f"replica-{number}" for number in range(8)]
BLOCKS = 5_000_000
BATCH = 1_000
"""Blocks in one message of a feed."""
CACHE = 65_536
"""Blocks that each replica holds where its index is filled as in use."""
NONE: array[int] = array("Q")
QUICK = {"BLOCKS": 10_000, "CACHE": 2_000}
"""What `--quick` measures instead."""


def true_index(mode: Mode) -> TrueIndex:
    """An index that all replicas are known to, without a block."""
    index = TrueIndex(MemoryIndex(), perf_counter)
    for name in NAMES:
        index.resize(name, 2 * CACHE)
        index.set_mode(name, mode)
    return index


def store(index: TrueIndex, name: str, keys: array[int]) -> None:
    """A replica tells of new blocks."""
    index.apply(name, cleared=False, removed=NONE, stored=keys)


def in_use(rng: Random) -> TrueIndex:
    """Every replica holds a cache of blocks that no other has."""
    index = true_index("events")
    for name in NAMES:
        for _ in range(CACHE // BATCH):
            store(index, name, fresh(BATCH, rng))
    return index


def alternating(keys: array[int]) -> Iterator[array[int]]:
    """Equal keys, never the same array twice in a row."""
    return cycle((keys, keys[:]))


def row(name: str, value: float, unit: str = "us", target: float | None = None) -> Row:
    """One figure."""
    return {"name": name, "value": value, "unit": unit, "target": target}


def match_rows() -> Iterator[Row]:
    """A prompt of 500 blocks that all replicas hold, that each holds to another depth, that nobody holds."""
    rng = Random(1)
    index = in_use(rng)
    keys, stairs = fresh(500, rng), fresh(500, rng)
    for number, name in enumerate(NAMES):
        store(index, name, keys)
        store(index, name, stairs[: 500 - 40 * number])
    asked = alternating(keys)
    assert index.match(keys) == dict.fromkeys(NAMES, 500)
    all_hold = best_us(lambda: index.match(next(asked)))
    yield row("match 500 blocks, 8 replicas hold all (events)", all_hold, target=50.0)
    climbed = alternating(stairs)
    assert sorted(index.match(stairs).values()) == list(range(220, 501, 40))
    yield row(
        "match 500 blocks, 8 replicas to 8 depths (events)", best_us(lambda: index.match(next(climbed)))
    )
    unknown = alternating(fresh(500, rng))
    yield row("match 500 blocks, unknown (events)", best_us(lambda: index.match(next(unknown))))


def warm_us(index: TrueIndex | MemoryIndex, keys: array[int]) -> float:
    """Match and prediction of a prompt that is held."""
    asked = alternating(keys)

    def turn() -> None:
        prompt = next(asked)
        index.match(prompt)
        index.predict(NAMES[0], prompt)

    return best_us(turn)


def request_rows() -> Iterator[Row]:
    """What a request asks, by who speaks for the replicas."""
    rng = Random(2)
    keys = fresh(60, rng)
    memory = MemoryIndex()
    learned = true_index("learned")
    events = in_use(rng)
    for name in NAMES:
        memory.predict(name, keys)
        learned.predict(name, keys)
        store(events, name, keys)
    yield row("match and predict 60 warm blocks (learned alone)", warm_us(memory, keys))
    yield row("match and predict 60 warm blocks (learned)", warm_us(learned, keys))
    yield row("match and predict 60 warm blocks (events)", warm_us(events, keys), target=8.0)
    for name in NAMES:
        for _ in range(4):
            events.predict(name, fresh(500, rng))
    busy = warm_us(events, keys)
    yield row("match and predict 60 warm blocks, 32 requests in flight (events)", busy)

    def calls() -> Iterator[Callable[[], object]]:
        while True:
            prompt = keys[:30] + fresh(95, rng)
            name = rng.choice(NAMES)

            def turn(prompt: array[int] = prompt, name: str = name) -> None:
                events.match(prompt)
                placement = events.predict(name, prompt)
                events.first_token(placement, 0.5)
                store(events, name, prompt[30:])

            yield turn

    cold = each_us(calls())
    yield row("match, predict, first token, confirm: 125 blocks, 95 new (events)", cold)


def apply_rows() -> Iterator[Row]:
    """A feed in its steady state: as many blocks stored as removed, by all replicas in turn."""
    rng = Random(3)
    index = in_use(rng)
    for name in NAMES:
        for _ in range(4):
            index.predict(name, fresh(500, rng))
    batches = [(name, fresh(BATCH, rng)) for name in NAMES for _ in range(30)]
    start = process_time()
    for name, keys in batches:
        store(index, name, keys)
    for name, keys in batches:
        index.apply(name, cleared=False, removed=keys, stored=NONE)
    spent = process_time() - start
    each = spent / (2 * BATCH * len(batches)) * 1e6
    yield row("apply one block change (300k a second leave 3.3 us for all of ingest)", each, target=1.0)


def sweep_rows() -> Iterator[Row]:
    """A flush of one of eight replicas: over at once, then swept."""
    index = in_use(Random(4))
    start = perf_counter()
    index.apply(NAMES[0], cleared=True, removed=NONE, stored=NONE)
    yield row(f"flush of a replica of {CACHE:,} blocks", (perf_counter() - start) * 1e6)
    steps = []
    more = True
    while more:
        start = perf_counter()
        more = index.tick()
        steps.append((perf_counter() - start) * 1e3)
    yield row(f"sweep after it, one step of {len(steps)}, median", median(steps), "ms", 1.0)
    yield row("sweep after it, longest step (the new table grows)", max(steps), "ms")


def measure_memory(blocks: int) -> float:
    """MB that this process holds with so many confirmed; meant for a process of its own."""
    rng = Random(5)
    index = true_index("events")
    for _ in range(blocks // BATCH):
        keys = fresh(BATCH, rng)
        for name in rng.sample(NAMES, rng.randrange(1, 4)):
            store(index, name, keys)
    assert index.size() == blocks
    return resident_mb()


def memory_row() -> Row:
    """Ask a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.micro_truth", "memory", str(BLOCKS)],
        capture_output=True,
        check=True,
        text=True,
    )
    return row("5M blocks, each held by 1 to 3 of 8 replicas (RSS)", json.loads(done.stdout), "MB", 600.0)


def rows() -> list[Row]:
    """Every figure: name, value, unit, and the most it should be, None where nothing is asked."""
    return [*match_rows(), *request_rows(), *apply_rows(), *sweep_rows(), memory_row()]


def main() -> None:
    """Print the figures, or, told so, only what this process holds."""
    if sys.argv[1:2] == ["memory"]:
        print(json.dumps(measure_memory(int(sys.argv[2]))))
        return
    for figure in rows():
        target = "" if figure["target"] is None else f"   (at most {figure['target']:g})"
        print(f"{figure['name']:76} {figure['value']:9.2f} {figure['unit']}{target}")


if __name__ == "__main__":
    main()
