"""The page that goes with a result of `python -m bench real`.

Figures, how they came about, how far to trust them. Pure; everything on it comes from the result.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def page(result: Mapping[str, Any], reasons: Sequence[str] = ()) -> str:
    """Markdown. `reasons`: why the result does not count, if it does not."""
    return "\n\n".join(_parts(result, reasons)) + "\n"


def _parts(result: Mapping[str, Any], reasons: Sequence[str]) -> Iterator[str]:
    engines, workload, machine = result["engines"], result["workload"], result["machine"]
    simulated = " (SIMULATED)" if result["simulated"] else ""
    version = f"vLLM {engines['version']}" if engines["version"] else "vLLM"
    yield f"# Round robin against prefix_cost on {engines['replicas']} replicas{simulated}"
    if reasons:
        yield f"**This run does not count:** {'; '.join(reasons)}."
    yield "\n".join(_medians(result))
    yield f"""\
Medians of {workload["repeats"]} windows of {workload["duration"]:g} s each. Time to first token counts from
the moment a request was due. Hits are the prompt tokens that the replicas reported as taken from their
caches; the best possible is one LRU of all their caches together."""
    yield "\n".join(
        f"- `{group}`: time to first token {-gain['ttft_p50']:+.0%} at P50 and {-gain['ttft_p95']:+.0%} "
        f"at P95, hits {gain.get('hit_rate_points', 0.0):+.1f} points."
        for group, gain in result["gain"].items()
        if gain
    )
    yield "## How"
    yield f"""\
{result["date"]}, commit {result["commit"]}, {machine["cores"]} cores ({machine["cpu"]}). The replicas
({version} on the CPU, a small model of random weights, {engines["blocks"]} blocks of {engines["block_size"]}
tokens = {engines["cache_tokens"]:,} tokens of cache each), both proxies and the load share these cores."""
    yield f"    {result['command']}"
    yield f"""\
`shared`: each prompt is one of {workload["groups"]} system prompts of {workload["prefix"]:,} tokens and a
question of {workload["question"]}; `random`: as long, and nothing shared. Poisson arrivals,
{workload["output"]} tokens out. Both policies run through a proxy of their own and get the same prompts at
the same times, window by window in turn; caches and index are emptied before each."""
    yield "## Every window, in the order measured"
    yield "\n".join(_windows(result["windows"]))
    yield "## How far to trust it"
    spread = _spread(result["windows"])
    yield f"""\
Between repeats of one policy, traffic and rate (each with other prompts and arrivals) the P50 differs by up
to {spread:.1f} times; differences of latency within that factor are noise. *Busy before*: cores in use just
before a window, while the replicas had nothing to do. Replicas that share a few cores slow each other down,
so a policy that computes less makes all of them faster; replicas with cores or GPUs of their own show less of
that. Hit rates hardly depend on speed."""


def _medians(result: Mapping[str, Any]) -> Iterator[str]:
    rates = result["workload"]["rates"]
    yield "| traffic | policy | requests | failed | hits | best possible | TTFT P50 | P95 | by replica |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---|"
    for group in ("shared", "random"):
        for run in result["runs"]:
            figures = run["groups"].get(group)
            if figures is None:
                continue
            of_group = [
                one
                for one in result["windows"]
                if one["workload"] == group and one["policy"] == run["policy"]
            ]
            counts = [sum(one["replicas"].get(name, 0) for one in of_group) for name in run["replicas"]]
            yield (
                f"| {group}, {rates[group]:g}/s | {run['policy']} | {figures['requests']} | "
                f"{figures['errors']} | {_percent(figures['hit_rate'])} | {_percent(figures['ceiling'])} | "
                f"{_ms(figures, 'p50')} | {_ms(figures, 'p95')} | {', '.join(map(str, counts))} |"
            )


def _windows(windows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| began (UTC) | traffic | policy | seed | hits | TTFT P50 | P95 | busy before |"
    yield "|---|---|---|---|---:|---:|---:|---:|"
    for one in windows:
        figures, busy = one["groups"][one["workload"]], one["busy_cores_before"]
        yield (
            f"| {one['began'][11:19]} | {one['workload']} | {one['policy']} | {one['seed']} | "
            f"{_percent(figures['hit_rate'])} | {_ms(figures, 'p50')} | {_ms(figures, 'p95')} | "
            f"{'unknown' if busy is None else f'{busy:.1f}'} |"
        )


def _spread(windows: Sequence[Mapping[str, Any]]) -> float:
    """The largest P50 over the smallest, in the cell of traffic and policy where they are farthest apart."""
    cells: dict[tuple[str, str], list[float]] = {}
    for one in windows:
        if times := one["groups"][one["workload"]]["ttft"]:
            cells.setdefault((one["workload"], one["policy"]), []).append(times["p50"])
    return max((max(cell) / min(cell) for cell in cells.values()), default=1.0)


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def _ms(figures: Mapping[str, Any], name: str) -> str:
    times = figures.get("ttft")
    return f"{1000 * times[name]:.0f} ms" if times else "-"
