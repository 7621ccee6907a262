"""Records to figures, figures to the promised file, and pictures that exist."""

import json

import pytest
from rich.console import Console

from bench import report
from bench.load import failed
from bench.record import Record, hit_rate, quantile, spread


def record(group="shared", **fields):
    known = {"status": 200, "ttft": 0.1, "tpot": 0.01, "e2e": 0.3, "prompt_tokens": 100, "cached_tokens": 50}
    return Record(group, due=0.0, lag=0.0, **{**known, "output_tokens": 20, "replica": "a", **fields})


def two_runs():
    slow = [record(ttft=0.2 + i / 100, cached_tokens=0) for i in range(10)] + [
        record("random", cached_tokens=0)
    ]
    fast = [record(ttft=0.05 + i / 100) for i in range(10)] + [record("random", cached_tokens=0)]
    ceilings = {"shared": 0.6, "random": 0.0}
    runs = [
        report.summarise(policy, records, ceilings, seconds=2.0)
        for policy, records in (("round_robin", slow), ("prefix_cost", fast))
    ]
    return runs, {"round_robin": slow, "prefix_cost": fast}


def test_unknown_cached_tokens_are_not_zero():
    assert hit_rate([record(cached_tokens=None), record()]) == 0.5
    assert hit_rate([record(cached_tokens=None)]) is None


def test_quantiles_are_interpolated():
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1], 0.99) == 1
    assert spread([None, 1.0, 3.0]) == {
        "p50": 2.0,
        "p95": pytest.approx(2.9),
        "p99": pytest.approx(2.98),
        "mean": 2,
    }
    assert spread([None]) is None


def test_the_file_has_the_promised_schema():
    runs, _ = two_runs()
    result = json.loads(json.dumps(report.result(runs, workload={"name": "mixed"}, simulated=True)))

    assert result["schema"] == 1
    assert result["simulated"] is True
    assert {"commit", "versions", "machine", "workload", "runs"} <= set(result)
    run = result["runs"][0]
    assert {"policy", "groups", "throughput", "replicas"} <= set(run)
    shared = run["groups"]["shared"]
    assert {"requests", "errors", "hit_rate", "ceiling", "ttft", "tpot", "e2e"} <= set(shared)
    assert set(shared["ttft"]) == {"p50", "p95", "p99", "mean"}
    assert (run["throughput"], run["replicas"]) == (5.5, {"a": 11})


def test_failed_requests_are_counted_and_kept_out_of_the_figures():
    run = report.summarise("p", [record(), record(error="reset", ttft=9.0)], {}, seconds=1.0)
    shared = run["groups"]["shared"]

    assert (shared["requests"], shared["errors"], shared["ttft"]["mean"]) == (2, 1, 0.1)
    assert run["throughput"] == 1.0


def test_the_gain_is_how_much_lower_the_time_and_how_many_points_more_hits():
    runs, _ = two_runs()
    gain = report.gain({"runs": runs}, "shared", "round_robin", "prefix_cost")

    assert gain["ttft_p50"] == pytest.approx(1 - 0.095 / 0.245)
    assert gain["hit_rate_points"] == pytest.approx(50)
    assert report.gain({"runs": runs}, "nobody", "round_robin", "prefix_cost") is None


def test_tables_say_simulated_and_show_every_policy():
    runs, _ = two_runs()
    console = Console(record=True, width=80)
    report.print_table(console, "mixed", [("", runs)], simulated=True)
    report.print_shares(console, runs)
    text = console.export_text()

    assert "SIMULATED" in text
    assert "a: 11" in text
    assert "round_robin" in text
    assert "prefix_cost" in text
    assert "50.0%" in text


def test_result_and_pictures_are_written(tmp_path):
    runs, records = two_runs()
    content = report.result(runs, workload={"name": "mixed"}, simulated=True)
    paths = report.save(content, tmp_path / "out", records)

    assert json.loads(paths[0].read_text()) == json.loads(json.dumps(content))
    assert {path.name for path in paths[1:]} >= {"ttft.png", "hit_rate.png", "replicas.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths[1:])


def test_a_run_with_errors_or_with_hits_on_random_prompts_does_not_count():
    assert failed([record(), record("random", cached_tokens=0)]) == []
    assert "1 of 2 requests failed" in failed([record(), record(error="reset")])[0]
    assert "random prompts hit" in failed([record("random", cached_tokens=2)])[0]
