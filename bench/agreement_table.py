"""The page that goes with a result of `python -m bench agreement`. Pure; all of it comes from the result."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def page(result: Mapping[str, Any], reasons: Sequence[str] = ()) -> str:
    """Markdown. `reasons`: what was missed, or why the run does not count."""
    return "\n\n".join(_parts(result, reasons)) + "\n"


def _parts(result: Mapping[str, Any], reasons: Sequence[str]) -> Iterator[str]:
    engines, machine = result["engines"], result["machine"]
    simulated = " (SIMULATED)" if result["simulated"] else ""
    version = f"vLLM {engines['version']}" if engines["version"] else "vLLM"
    yield f"# What is foretold and what is found, on {engines['replicas']} replicas{simulated}"
    if reasons:
        yield f"**Missed:** {'; '.join(reasons)}."
    yield "\n".join(_table(result))
    yield f"""\
Of the requests for which cached tokens were foretold or found, those where the two differ by at most one
block of {engines["block_size"]} tokens. *Over*: more was foretold; *under*: less. What is foretold is the
proxy's header `x-warmroute-predicted-cached-tokens`, fixed before the request is sent; what is found is
`cached_tokens` in the usage of the same answer. *Turnover*: prompt tokens that had to be computed, over the
room of all caches: above 1 something was evicted."""
    yield "## How"
    yield f"""\
{result["date"]}, commit {result["commit"]}, {machine["cores"]} cores ({machine["cpu"]}). Replicas: {version}
on the CPU, a small model of random weights, {engines["blocks"]} blocks each. {result["requests"]} requests in
each mode, {result["concurrency"]} at once: system prompts that several share, conversations that repeat the
answers they got, one-off prompts; half of them streams. Caches are emptied and a new proxy is started before
each mode."""
    yield f"    {result['command']}"
    yield "## By kind"
    yield "\n".join(_by_kind(result))
    wrong = [(mode["events"], each) for mode in result["modes"] for each in mode["largest"]]
    if wrong:
        yield "## The farthest off"
        yield "\n".join(_farthest(wrong))


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    target = result["target"]
    names = [
        "events",
        "requests",
        "failed",
        "counted",
        "within a block",
        "target",
        "exactly",
        "over",
        "under",
    ]
    yield f"| {' | '.join([*names, 'hits', 'turnover'])} |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for mode in result["modes"]:
        figures = mode["all"]
        yield (
            f"| {_on(mode['events'])} | {mode['requests']} | {mode['failed']} | {figures['considered']} | "
            f"{_percent(figures['share'])} | {_percent(target['events' if mode['events'] else 'learned'])} | "
            f"{figures['exactly']} | {figures['over']} | {figures['under']} | {_percent(mode['hit_rate'])} | "
            f"{mode['turnover']:.1f} |"
        )


def _by_kind(result: Mapping[str, Any]) -> Iterator[str]:
    yield "| events | kind | counted | within a block | over | under |"
    yield "|---|---|---:|---:|---:|---:|"
    for mode in result["modes"]:
        for name, figures in {**mode["kinds"], **mode["ways"]}.items():
            share = _percent(figures["share"])
            yield (
                f"| {_on(mode['events'])} | {name} | {figures['considered']} | {share} | "
                f"{figures['over']} | {figures['under']} |"
            )


def _farthest(wrong: Sequence[tuple[bool, Mapping[str, Any]]]) -> Iterator[str]:
    yield "| events | kind | stream | replica | decision | foretold | found | prompt |"
    yield "|---|---|---|---|---|---:|---:|---:|"
    for events, each in wrong:
        yield (
            f"| {_on(events)} | {each['kind']} | {'yes' if each['stream'] else 'no'} | {each['replica']} | "
            f"{each['decision']} | {each['predicted']} | {each['reported']} | {each['prompt_tokens']} |"
        )


def _on(events: bool) -> str:  # noqa: FBT001 - a column of the table
    return "on" if events else "off"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
