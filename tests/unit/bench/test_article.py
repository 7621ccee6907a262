"""The article's page: what is expected, what a hit takes of a miss, and how far simulated is from real."""

from bench import account, article_table
from bench.account import Slo
from bench.article import VARIANTS
from bench.endpoint import Endpoint
from bench.engine_prompt import EnginePrompt
from bench.lifecycle import Window
from bench.plan import Planned
from bench.record import Record

MACHINE = {"cores": 2, "cpu": "x", "load_average": [0.1]}
ENGINES = {"replicas": 3, "version": "1", "model": "m", "block_size": 16, "blocks": 9}
WORKLOAD = {
    "prefix": 1200, "question": 300, "concurrency": 20, "requests": 40, "output": 128, "repeats": 2
}  # fmt: skip


RECORDS = {}


def run(variant, policy, ttft, *, hit=0.5):
    records = []
    for number in range(40):
        record = Record("shared", number / 10, 0.0, number, 1500, status=200, e2e=1.0, tpot=0.01)
        warm = number % 2 == 0
        record.ttft = ttft * (0.2 if warm else 1.0)
        record.prompt_tokens, record.cached_tokens = 1500, round(2 * hit * 1500) if warm else 0
        records.append(record)
    plan = [Planned(r.due, r.group, b"", (), 1500, 5) for r in records]
    RECORDS[variant, policy, ttft] = records
    window = Window(plan, records, [], 10.0, [900] * 40, [900] * 40, {}, {}, [])
    one = account.run(policy, window, Slo()) | {"variant": variant}
    return article_table.pooled(variant, policy, [(one, records), (one, records)])


def result(*, simulated, faster=1.0):
    runs = [run("one", "round_robin", 0.3), run("one", "prefix_cost", 0.3)]
    runs += [run("thirty", "round_robin", 0.9 * faster, hit=0.2), run("thirty", "prefix_cost", 0.3 * faster)]
    told = {"simulated": simulated, "runs": runs, "workload": WORKLOAD, "engines": ENGINES, "commit": "c"}
    pairs = {
        "one": (("one", "round_robin", 0.3), ("one", "prefix_cost", 0.3)),
        "thirty": (
            ("thirty", "round_robin", 0.9 * faster),
            ("thirty", "prefix_cost", 0.3 * faster),
        ),
    }
    gain = {
        name: article_table.changes(*([RECORDS[key]] * 2 for key in keys)) for name, keys in pairs.items()
    }
    return told | {"machine": MACHINE, "command": "x", "gain": gain}


def test_the_page_has_both_policies_and_says_that_parity_is_expected_of_one_prompt():
    text = article_table.page(result(simulated=True))

    assert "SIMULATED" in text
    assert "parity is what is to be expected" in text
    assert "30 system prompts: prefix_cost's TTFT is -67% [-67%, -67%] at P50" in text
    assert "| 20% |" in text  # a hit of a miss
    assert "more than a third" not in text


def test_repeats_are_pooled():
    one = run("thirty", "prefix_cost", 0.3)
    assert one["repeats"] == 2
    assert one["groups"]["shared"]["requests"] == 80
    assert one["groups"]["shared"]["hit_rate"] == 0.5


def test_simulated_and_real_are_put_beside_each_other_with_the_error():
    text = article_table.page(result(simulated=True, faster=0.5), result(simulated=False))
    assert "| 30 system prompts | prefix_cost | 50.0% | 50.0% | +0.0pp |" in text
    assert "| -50% |" in text
    same = article_table.page(result(simulated=True), result(simulated=True))
    assert "nothing to check" in same


def test_its_requests_are_the_articles():
    prompt, first = EnginePrompt(), Endpoint("http://a", "m", block_size=16)
    plans = {variant.name: variant.plan(prompt, first, "1", 60) for variant in VARIANTS}
    assert {name: len({p.keys[:70] for p in map(_hashable, plan)}) for name, plan in plans.items()} == {
        "one": 1,
        "thirty": len({p.keys[:70] for p in map(_hashable, plans["thirty"])}),
        "random": 60,
    }
    assert all(1480 < p.prompt_tokens < 1560 and p.output_tokens == 128 for p in plans["thirty"])
    assert len({p.keys[1] for p in plans["thirty"]}) > 20


def _hashable(planned):
    return Planned(planned.due, planned.group, b"", tuple(planned.keys), planned.prompt_tokens, 128)
