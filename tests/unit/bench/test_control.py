"""The control's verdict: slower than round robin by more than five per cent, or any hit, fails it."""

import json

import pytest
from rich.console import Console

from bench import control
from bench.load import Measured
from bench.profiles import profile
from bench.record import Record
from bench.scenarios import SCENARIOS
from bench.windows import Window

POLICIES = ("round_robin", "prefix_cost")


def windows(*pairs, cached=0):
    """One window a seed, given both policies' TTFT in seconds."""
    out = []
    for pair in pairs:
        window = Window(SCENARIOS[1], plan=[], rate=1.0, capacity=2.0)
        for policy, ttft in zip(POLICIES, pair, strict=True):
            record = Record("random", 0.0, 0.0, status=200, ttft=ttft, tpot=0.01, e2e=1.0, replica="r1")
            record.prompt_tokens, record.cached_tokens, record.output_tokens = 100, cached, 5
            window.measured[policy] = Measured([record], {"random": 0.0}, 1.0)
        out.append([window])
    return out


@pytest.fixture
def conclude(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "RESULT", tmp_path / "control.json")

    def run(seeds):
        status = control.conclude(Console(quiet=True), seeds, POLICIES, profile("cpu"))
        return status, json.loads((tmp_path / "control.json").read_text())

    return run


def test_a_little_slower_passes_and_the_mean_over_seeds_is_told(conclude):
    status, result = conclude(windows((0.1, 0.104), (0.1, 0.096)))

    assert status == 0
    assert result["slower_at_p50"] == pytest.approx(0.0)
    assert [entry["slower_at_p50"] for entry in result["seeds"]] == pytest.approx([0.04, -0.04])
    assert result["simulated"] is True


def test_more_than_five_per_cent_slower_fails(conclude):
    assert conclude(windows((0.1, 0.11), (0.1, 0.104)))[0] == 1


def test_hits_on_one_off_prompts_fail(conclude):
    status, result = conclude(windows((0.1, 0.1), cached=2))

    assert (status, result["highest_hit_rate"]) == (1, 0.02)
