"""`python -m bench breaks`: which planted breaks the finder finds among requests, and what it takes for one.

The traffic is made up (see `bench.break_traffic`); the finder is the product's, asked as `warmroute breaks`
asks it. Exit status 1 if a planted break is missed or clean traffic raises an alarm.
"""

import argparse
from pathlib import Path
from typing import Any

from bench.break_traffic import PLANTED, traffic
from bench.report import result, write
from proxy.breaks.file import find

OUT = Path("bench/out/breaks.json")


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="bench breaks", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--planted", type=int, nargs="+", default=[0, 5, 10, 100], help="of each kind")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=OUT, metavar="FILE")
    args = parser.parse_args(argv)
    runs = []
    print("| seed | planted of each kind | found and named | false alarms |")
    print("| ---: | ---: | ---: | ---: |", flush=True)
    for seed in range(1, args.seeds + 1):
        for each in args.planted:
            run = _run(args.requests, str(seed), each)
            runs.append(run)
            print(
                f"| {seed} | {each} | {len(run['kinds_found'])} of {len(PLANTED) if each else 0} "
                f"| {len(run['false_alarms'])} |",
                flush=True,
            )
    workload = {"requests": args.requests, "planted": args.planted, "seeds": args.seeds}
    write(result(runs, workload=workload, simulated=True), args.json)
    return 0 if all(run["as_it_should"] for run in runs) else 1


def _run(requests: int, seed: str, each: int) -> dict[str, Any]:
    _, told = find(traffic(requests, seed, each=each))
    found = {one["kind"]: one["path"] for one in told if PLANTED.get(str(one["kind"])) == one["path"]}
    wrong = [one for one in told if not each or PLANTED.get(str(one["kind"])) != one["path"]]
    more = len(told) - len(found) - len(wrong)
    return {
        "policy": "none",
        "groups": {},
        "seed": seed,
        "planted_of_each_kind": each,
        "found": told if each else [],
        "kinds_found": sorted(map(str, found)) if each else [],
        "false_alarms": wrong,
        "told_twice": max(more, 0) if each else 0,
        "as_it_should": not wrong and (not each or found == PLANTED),
    }
