"""`python -m bench.sessions_whole FILE`: how even prefill can be where sessions of coding agents stay whole.

What a router without caches that fill up could reach: every session is computed once, on one replica.
*In order* gives each to the replica that has computed least when it begins; *in hindsight* knows all lengths
before. Prints max over mean of the computed tokens. Pure but for the file; nothing is evicted, so a real run
computes more.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

from bench import traces
from bench.measures import spread
from bench.profiles import profile
from bench.simulation import Job, prepare


def in_order(work: Iterable[tuple[str, int]], replicas: int) -> list[int]:
    """Tokens by replica for (session, tokens) in order of time; a session is given away at its first."""
    done, homes = [0] * replicas, dict[str, int]()
    for session, tokens in work:
        home = homes.setdefault(session, done.index(min(done)))
        done[home] += tokens
    return done


def in_hindsight(work: Iterable[tuple[str, int]], replicas: int) -> list[int]:
    """The same with the longest sessions given away first, each whole to the replica with least."""
    done, sessions = [0] * replicas, dict[str, int]()
    for session, tokens in work:
        sessions[session] = sessions.get(session, 0) + tokens
    for tokens in sorted(sessions.values(), reverse=True):
        done[done.index(min(done))] += tokens
    return done


def computed(jobs: Iterable[Job], block_size: int) -> list[tuple[str, int]]:
    """(session, tokens that no earlier prompt of it began with), job by job."""
    seen: dict[str, set[int]] = {}
    work = []
    for arrival, keys, tokens in jobs:
        session = arrival.session or ""
        held, found = seen.setdefault(session, set()), 0
        while found < len(keys) and keys[found] in held:
            found += 1
        held.update(keys)
        work.append((session, max(1, tokens - found * block_size)))
    return work


def main(argv: list[str]) -> int:
    """A row for 8 and for 16 replicas and each seed, in the traffic of `results/simulate-traces.md`."""
    parser = ArgumentParser(prog="bench.sessions_whole", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args(argv)
    spec = profile("h100x2-32b", block_size=512, cache_tokens=1_000_000)
    print("| replicas | seed | largest prompt / mean of a replica | in order | in hindsight |")
    print("|---:|---:|---:|---:|---:|")
    for replicas in (8, 16):
        for seed in range(1, args.seeds + 1):
            arrivals = traces.agentic(args.file, rate=0.0025 * replicas, seed=seed, limit=400)
            jobs, _ = prepare([arrival for arrival in arrivals if arrival.due <= 12_000], spec)
            work = computed(jobs, spec.block_size)
            mean = sum(tokens for _, tokens in work) / replicas
            print(
                f"| {replicas} | {seed} | {max(tokens for _, tokens in work) / mean:.3f} "
                f"| {spread(in_order(work, replicas)):.3f} | {spread(in_hindsight(work, replicas)):.3f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
