"""The control: one-off prompts alone, where no policy should win or lose, over several seeds.

Both proxies run all the time and take turns in the order a, b, b, a for each seed, so that a machine that
grows slower or faster treats them alike.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from bench import processes, report
from bench.engine_prompt import EnginePrompt
from bench.load import RANDOM_HIT_LIMIT
from bench.profiles import EngineSpec
from bench.record import hit_rate, spread
from bench.scenarios import SCENARIOS
from bench.windows import Fleet, Window, plan_window, run_window

RESULT = Path("bench/results/random_control.json")
SLOWER_LIMIT = 0.05
"""How much higher than round robin's the median TTFT may be."""


async def run(
    engines: Fleet,
    spec: EngineSpec,
    console: Console,
    policies: tuple[str, str],
    *,
    seeds: int,
    share: float,
    scale: float,
    logs: Path,
) -> int:
    """Measure, tell, write; 1 if the second policy is slower or anything hits."""
    prompt = EnginePrompt()
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "random")
    measured: list[list[Window]] = []
    urls = engines.process.urls
    first, second = (logs / f"proxy-{policy}.log" for policy in policies)
    async with (
        processes.proxy(urls, policies[0], first) as a,
        processes.proxy(urls, policies[1], second) as b,
    ):
        warm_up = plan_window(scenario, prompt, spec, share, "control/warm-up", 0.4 * scale).plan
        turns = list(zip(policies, (a, b), strict=True))
        for number in range(1, seeds + 1):
            halves = [
                plan_window(scenario, prompt, spec, share, f"control/{number}/{half}", 0.75 * scale)
                for half in "ab"
            ]
            measured.append(halves)
            for window, order in zip(halves, (turns, turns[::-1]), strict=True):
                for policy, proxy in order:
                    before = warm_up if number == 1 and window is halves[0] else ()
                    await run_window(window, policy, engines, proxy, console, before)
    return conclude(console, measured, policies, spec)


def conclude(
    console: Console, measured: Sequence[Sequence[Window]], policies: tuple[str, str], spec: EngineSpec
) -> int:
    """Figures by seed and over all of them; `measured` has the windows of each seed."""
    runs = []
    for policy in policies:
        all_of_it = [window.measured[policy] for windows in measured for window in windows]
        records = [record for one in all_of_it for record in one.records]
        seconds = sum(one.seconds for one in all_of_it)
        runs.append(report.summarise(policy, records, {"random": 0.0}, seconds))
    by_seed = []
    for number, windows in enumerate(measured, 1):
        entry: dict[str, Any] = {"seed": number}
        for policy in policies:
            records = [record for window in windows for record in window.measured[policy].records]
            entry[policy] = {"ttft": spread(r.ttft for r in records), "hit_rate": hit_rate(records)}
        entry["slower_at_p50"] = entry[policies[1]]["ttft"]["p50"] / entry[policies[0]]["ttft"]["p50"] - 1
        by_seed.append(entry)
    slower = mean(entry["slower_at_p50"] for entry in by_seed)
    most_hits = max(entry[policy]["hit_rate"] or 0.0 for entry in by_seed for policy in policies)
    workload = {
        "name": "random",
        "profile": spec.name,
        "replicas": len(runs[0]["replicas"]),
        "seeds": len(measured),
        "requests_a_seed": sum(len(window.plan) for window in measured[0]),
        "rate": measured[0][0].rate,
        "round_robin_capacity": measured[0][0].capacity,
        "engine": report.as_json(spec),
    }
    result = report.result(runs, workload=workload, simulated=True)
    result |= {"seeds": by_seed, "slower_at_p50": slower, "highest_hit_rate": most_hits}
    report.print_table(console, "One-off prompts alone", [("", runs)], simulated=True)
    each = ", ".join(f"{entry['slower_at_p50']:+.1%}" for entry in by_seed)
    console.print(
        f"{policies[1]} against {policies[0]} at P50: {slower:+.1%} on average ({each})", highlight=False
    )
    report.write(result, RESULT)
    console.print(f"wrote {RESULT}", highlight=False)
    return 1 if slower > SLOWER_LIMIT or most_hits >= RANDOM_HIT_LIMIT else 0
