"""What if: more replicas, less cache, faster prefill, more traffic, a later index, more proxies.

    python -m bench whatif --workload shared --vary replicas=2,4,8 --vary cache_tokens=20000,40000
    python -m bench whatif --trace mooncake:FILE --block-size 512 --proxies 4 --vary index_delay=0,1,never

Simulated: the product's own router, fleet, index and policies on a virtual clock, with the *ceiling* (one LRU
of the fleet's whole capacity) beside them. Each --vary is tried by itself, the others at their base; --grid
tries all together. What can be varied: replicas, cache_tokens, prefill_tokens_per_s, speed (how many times as
fast requests come), proxies, and index_delay (seconds until other proxies know; `never`: each knows only its
own).
"""

import argparse
import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import traffic
from bench.measures import ceilings, figures
from bench.profiles import PROFILES, EngineSpec, profile
from bench.report import result, write
from bench.several import simulate
from bench.simulation import pooled_hits, prepare
from bench.workloads import Arrival
from policies import registry

OUT = Path("bench/out/whatif")
NEVER = "never"
WHOLE = ("replicas", "cache_tokens", "proxies")
VARIED = (*WHOLE, "prefill_tokens_per_s", "speed", "index_delay")
Setting = dict[str, Any]


def settings(
    base: Setting, varied: Mapping[str, Sequence[Any]], *, grid: bool
) -> Iterator[tuple[str, Setting]]:
    """What is tried: for each, which knob it is about, and all values."""
    if grid:
        for chosen in itertools.product(*varied.values()):
            yield "+".join(varied), base | dict(zip(varied, chosen, strict=True))
        return
    for name, values in varied.items():
        for value in values:
            yield name, base | {name: value}


def vary(text: str) -> tuple[str, list[Any]]:
    """`name=1,2,3`."""
    name, _, values = text.partition("=")
    if name not in VARIED or not values:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=A,B with a NAME of {', '.join(VARIED)}")
    return name, [value_of(name, value) for value in values.split(",")]


def value_of(name: str, text: str) -> Any:
    """Of one knob."""
    try:
        if name == "index_delay" and text == NEVER:
            return NEVER
        value = int(text) if name in WHOLE else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name}: {text!r} is no number") from None
    if value < 0 or (value == 0 and name != "index_delay"):
        raise argparse.ArgumentTypeError(f"{name} must be positive")
    return value


def run_one(
    setting: Setting, arrivals: Sequence[Arrival], spec: EngineSpec, policies: Sequence[str], seed: int
) -> list[dict[str, Any]]:
    """All policies under one setting."""
    spec = replace(
        spec,
        cache_tokens=setting["cache_tokens"],
        prefill_tokens_per_s=setting["prefill_tokens_per_s"],
    )
    faster = [replace(arrival, due=arrival.due / setting["speed"]) for arrival in arrivals]
    jobs, too_long = prepare(faster, spec)
    if not jobs:
        raise ValueError(f"no request fits into a cache of {spec.cache_tokens:,} tokens")
    hits = pooled_hits(jobs, spec.blocks * setting["replicas"], spec.block_size)
    best = ceilings(jobs, hits)
    delay = None if setting["index_delay"] == NEVER else setting["index_delay"]
    runs = []
    for name in policies:
        kind, _, params = name.partition(":")
        chosen = dict(pair.split("=") for pair in params.split(",") if pair)
        run = simulate(
            jobs,
            partial(registry.create, kind, chosen),
            spec,
            setting["replicas"],
            seed,
            proxies=setting["proxies"],
            delay=delay,
        )
        runs.append(figures(name, run, best) | {"setting": dict(setting), "left_out": too_long})
    return runs


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, a row a setting and policy."""
    lines = [
        "| varied | value | policy | hits | of ceiling | TTFT P50 | P95 | P99 | max/mean uncached | Jain |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        every = run["groups"]["all"]
        ttft, ceiling = every["ttft"], every["ceiling"]
        names = run["varied"].split("+")
        cells = [
            run["varied"],
            ", ".join(_text(run["setting"][name]) for name in names),
            run["policy"],
            f"{every['hit_rate']:.1%}",
            f"{every['hit_rate'] / ceiling:.1%}" if ceiling else "-",
            *(f"{1000 * ttft[name]:,.0f}" for name in ("p50", "p95", "p99")),
            f"{run['uncached_spread']:.3f}",
            f"{run['uncached_jain']:.3f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench whatif`."""
    options = argparse.ArgumentParser(
        prog="python -m bench whatif",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    traffic.add_options(options)
    options.add_argument("--requests", type=int, default=1000, help="of a made-up workload")
    options.add_argument("--seconds", type=float, help="only what is due by then")
    fleet = options.add_argument_group("fleet")
    fleet.add_argument("--policy", nargs="+", default=["round_robin", "prefix_cost"])
    fleet.add_argument("--profile", choices=list(PROFILES), default="h100x2-32b")
    fleet.add_argument("--block-size", type=int)
    fleet.add_argument("--vary", type=vary, action="append", required=True, metavar="NAME=A,B,...")
    fleet.add_argument("--grid", action="store_true", help="all --vary together")
    base = options.add_argument_group("base")
    for name, default in (("replicas", 4), ("proxies", 1)):
        base.add_argument(f"--{name}", type=int, default=default)
    for name, what in (("cache_tokens", int), ("prefill_tokens_per_s", float)):
        base.add_argument(f"--{name.replace('_', '-')}", type=what, help="default: the profile's")
    base.add_argument(
        "--index-delay", type=lambda text: value_of("index_delay", text), default=0.0, help="seconds"
    )
    options.add_argument("--out", type=Path, default=OUT, help="a folder")
    return options


def main(argv: Sequence[str]) -> int:
    """Run the command; 2 if it was asked for something that is not there."""
    arguments = parser().parse_args(argv)
    changes = {"block_size": arguments.block_size} if arguments.block_size else {}
    runs: list[dict[str, Any]] = []
    try:
        spec = profile(arguments.profile, **changes)
        wanted = traffic.from_arguments(arguments, requests=arguments.requests, duration=arguments.seconds)
        arrivals = wanted.plan()
        if arguments.seconds is not None:
            arrivals = [arrival for arrival in arrivals if arrival.due <= arguments.seconds]
        base: Setting = {
            "replicas": arguments.replicas,
            "cache_tokens": arguments.cache_tokens or spec.cache_tokens,
            "prefill_tokens_per_s": arguments.prefill_tokens_per_s or spec.prefill_tokens_per_s,
            "speed": 1.0,
            "proxies": arguments.proxies,
            "index_delay": arguments.index_delay,
        }
        tried = list(settings(base, dict(arguments.vary), grid=arguments.grid))
        for varied, setting in tried:
            one = run_one(setting, arrivals, spec, arguments.policy, arguments.seed)
            runs += [run | {"varied": varied} for run in one]
            print(f"{varied}: {setting}", file=sys.stderr, flush=True)
    except ValueError as error:
        print(f"bench whatif: {error}", file=sys.stderr)
        return 2
    name = wanted.described()["name"]
    print(f"Simulated: {name}, {len(arrivals):,} requests, {spec.name}; base {base}. Milliseconds.\n")
    print(table(runs))
    content = result(
        runs,
        workload=wanted.described() | {"requests": len(arrivals), "base": base, "profile": spec.name},
        simulated=True,
        command=shlex.join(["python", "-m", "bench", "whatif", *argv]),
    )
    write(content, arguments.out / "whatif.json")
    from bench import whatif_plots  # noqa: PLC0415 - matplotlib takes a second

    for path in whatif_plots.draw(content, arguments.out):
        print(f"wrote {path}")
    return 0
