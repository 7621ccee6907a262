"""The five workloads: what is compared with what, and that the command writes what it shows."""

import json

import pytest

from bench import five, simulate


def row(mean, p95):
    return {"hit_rate": 0.5, "ceiling": 0.6, "mean": mean, "p95": p95}


def test_ours_is_compared_with_the_best_of_each_figure():
    found = {"hot": {"prefix_cost": [row(1.0, 2.0), row(1.2, 2.4)], "a": [row(1.0, 3.0)], "b": [row(2, 2.0)]}}
    verdict = five.verdicts(found)["hot"]
    assert verdict["mean"] == {"best": "a", "ratio": pytest.approx(1.1), "within_5_percent": False}
    assert verdict["p95"] == {"best": "b", "ratio": pytest.approx(1.1), "within_5_percent": False}
    del found["hot"]["b"]
    assert five.verdicts(found)["hot"]["p95"] == {
        "best": "prefix_cost",
        "ratio": 1.0,
        "within_5_percent": True,
    }


def test_a_fleet_of_prefill_alone_carries_what_its_rate_says():
    _, shape = five.HOT["prefill only"]
    each = 1400 / five.TOY.prefill_tokens_per_s
    assert five.capacity(five.TOY, shape) == pytest.approx(five.REPLICAS / each, rel=0.08)


def test_the_command_writes_tables_and_figures(tmp_path, capsys):
    out, page = tmp_path / "five.json", tmp_path / "five.md"
    how = ["--five", "--seeds", "2", "--scale", "0.002", "--policy", "round_robin", "prefix_cost"]
    assert simulate.main([*how, "--json", str(out), "--markdown", str(page)]) == 0
    found = json.loads(out.read_text())
    assert found["simulated"] is True
    assert list(found["five"]) == list(found["verdicts"]) == list(five.FIVE)
    assert all(len(policies["prefix_cost"]) == 2 for policies in found["five"].values())
    assert page.read_text() == capsys.readouterr().out[:-1]
    assert " ".join(how) in page.read_text()


def test_without_ours_there_is_nothing_to_compare(capsys):
    assert simulate.main(["--five", "--policy", "round_robin"]) == 2
    assert "prefix_cost" in capsys.readouterr().err
