"""Several proxies over one fleet: how windows become figures, and what counts as missed."""

import pytest
from rich.console import Console

from bench import proxies
from bench.proxies_table import Pooled, compare, missed, spread, summary, table
from bench.record import Record


def record(replica, prompt, cached, error=None):
    return Record(
        "shared", 0.0, 0.0, 200, error, ttft=0.1, prompt_tokens=prompt, cached_tokens=cached, replica=replica
    )


def pooled(cached, modes):
    window = {"index_modes": modes}
    return Pooled([record("r1", 100, cached), record("r2", 100, 50)], 2.0, [window, window])


def test_spread_is_the_most_uncached_tokens_over_the_mean_of_all_replicas():
    records = [record("r1", 100, 40), record("r1", 100, None), record("r2", 100, 60), record(None, 100, 0)]
    assert spread(records, 2) == pytest.approx(160 / 100)
    assert spread(records, 4) == pytest.approx(160 / 50)  # two did nothing
    assert spread([], 2) is None


def runs(**cached):
    made = []
    for events in (True, False):
        for name, hits in cached.items():
            count = 1 if name == "one" else 8
            one = summary(name, count, pooled(hits, {"events": 2}), 0.9, 2)
            made.append({**one, "events": events})
    compare(made)
    return made


def test_ratios_are_to_one_proxy_in_the_same_mode():
    made = runs(one=90, shared=89, private=20)
    assert [run["ratio"] for run in made[:3]] == pytest.approx([1.0, 139 / 140, 70 / 140])
    assert made[0]["index_modes"] == {"events": 4}
    assert missed(made) == []
    text = Console(width=100, record=True)
    text.print(table(made, 2))
    shown = text.export_text()
    assert "SIMULATED" in shown
    assert "0.993" in shown


def test_too_few_hits_are_said_once_for_each_mode():
    reasons = missed(runs(one=90, shared=80, private=20))
    assert len(reasons) == 2
    assert "with events" in reasons[0]
    assert "without events" in reasons[1]


def test_the_system_prompts_exceed_one_cache_and_fit_four():
    working_set = proxies.SHAPE.groups * proxies.SHAPE.prefix
    assert proxies.CACHE_TOKENS < working_set < 4 * proxies.CACHE_TOKENS


def test_only_proxies_that_share_get_the_redis_and_each_window_a_namespace_of_its_own():
    one, shared, private = proxies.arms(8)
    settings = [shared.settings("redis://there", number, "s" * 32) for number in (1, 2)]
    assert all("redis://there" in each for each in settings)
    assert settings[0] != settings[1]
    for arm in (one, private):
        assert arm.settings("redis://there", 1, "s")[:2] == ["--redis-url", "none"]
