"""Round robin against prefix_cost on running replicas: the medians and the page."""

import pytest

from bench import real


def window(policy, p50, *, group="shared", hits=0.5, errors=0):
    times = {"p50": p50, "p95": 2 * p50, "p99": 3 * p50, "mean": p50}
    figures = {"requests": 10, "errors": errors, "hit_rate": hits, "ceiling": 0.8}
    figures |= {"ttft": times, "tpot": None, "e2e": times}
    return {
        "workload": group,
        "policy": policy,
        "seed": "s/1",
        "groups": {group: figures},
        "throughput": 4.0,
        "replicas": {"r1": 6, "r2": 4},
        "began": "2026-01-02T03:04:05+00:00",
        "busy_cores_before": 0.25,
    }


def test_a_run_is_the_median_of_its_windows():
    windows = [window("a", p50, hits=hits) for p50, hits in ((0.1, 0.2), (0.9, None), (0.3, 0.4))]
    run = real.medians([*windows, window("a", 7.0, group="random", errors=1)])
    shared, random = run["groups"]["shared"], run["groups"]["random"]
    assert shared["ttft"]["p50"] == 0.3
    assert shared["ttft"]["p99"] == pytest.approx(0.9)
    assert shared["hit_rate"] == pytest.approx(0.3)  # unknown is not zero
    assert "tpot" not in shared
    assert (shared["requests"], random["requests"], random["errors"]) == (30, 10, 1)
    assert run["replicas"] == {"r1": 24, "r2": 16}


def test_hits_that_no_replica_told_are_unknown():
    assert real.medians([window("a", 1.0, hits=None)])["groups"]["shared"]["hit_rate"] is None
