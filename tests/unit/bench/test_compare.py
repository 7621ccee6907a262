"""Gates: what fails, what passes, what is noise, and what may not be compared."""

import json
from random import Random

import pytest

from bench import account, compare, report
from bench.account import Slo
from bench.lifecycle import Window
from bench.load_files import line
from bench.plan import Planned
from bench.record import Record


def write(folder, *, lag=0.0, slower=1.0, noise=0.0, hit=0.5, seed=1, n=200, requests=True, errors=0, **more):
    """A result with its requests, TTFTs around 100 ms."""
    rng, other = Random(1), Random(f"{seed}/{slower}")
    records = []
    for number in range(n):
        record = Record("shared" if number % 2 else "random", number / 10, lag, number, 1000, status=200)
        ttft = rng.lognormvariate(-2.3, 0.3) * slower * (1 + noise * other.gauss(0, 1))
        record.ttft, record.e2e, record.tpot = max(ttft, 0.001), 1.0, 0.01
        shared = record.group == "shared"
        record.prompt_tokens, record.cached_tokens, record.output_tokens = (
            1000,
            round(1000 * hit * shared),
            20,
        )
        if number < errors:
            record.error = "status 500: broken"
        records.append(record)
    plan = [Planned(r.due, r.group, b"", (), 1000, 20) for r in records]
    window = Window(plan, records, [], 20.0, [0] * n, [0] * n, {}, {}, [])
    run = account.run("p", window, Slo())
    workload = {"name": "mixed", "rate": 10, "seed": seed, **more.pop("workload", {})}
    result = report.result([run], workload=workload, simulated=more.pop("simulated", True))
    report.write(result, folder / "result.json")
    if requests:
        (folder / "requests.jsonl").write_text("".join(line(record) for record in records))
    return str(folder / "result.json")


def judged(capsys, *arguments):
    status = compare.main(list(arguments))
    told = capsys.readouterr()
    return status, told.out + told.err


def test_a_clear_regression_fails(tmp_path, capsys):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", slower=1.2)
    status, told = judged(capsys, a, b, "--gate", "ttft_p95:+5%")

    assert status == 1
    assert told.count("**failed**") == 2  # both groups
    assert "paired" in told


def test_a_change_within_the_gate_passes_though_it_is_sure(tmp_path, capsys):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", slower=1.03)

    assert judged(capsys, a, b, "--gate", "ttft_p95:+5%")[0] == 0


def test_getting_better_passes(tmp_path, capsys):
    a, b = write(tmp_path / "a", hit=0.3), write(tmp_path / "b", slower=0.5, hit=0.9)

    assert judged(capsys, a, b)[0] == 0


def test_noise_does_not_fail_a_release_but_is_told(tmp_path, capsys):
    """Same distribution, other draws: some figure is above a narrow gate, and its interval has zero."""
    a = write(tmp_path / "a", n=40, seed=1, noise=0.6, slower=1.0)
    b = write(tmp_path / "b", n=40, seed=2, noise=0.6, slower=1.0001)
    gates = [x for name in ("p50", "p90", "p95", "mean") for x in ("--gate", f"ttft_{name}:+0.1%")]
    status, told = judged(capsys, a, b, *gates)

    assert status == 0
    assert "| undecided |" in told
    assert judged(capsys, a, b, *gates, "--strict")[0] == 1


def test_fewer_hits_fail(tmp_path, capsys):
    a, b = write(tmp_path / "a", hit=0.5), write(tmp_path / "b", hit=0.47)

    status, told = judged(capsys, a, b, "--gate", "shared.hit_rate:-2pp")
    assert (status, "-3.0pp" in told) == (1, True)
    assert judged(capsys, a, b, "--gate", "shared.hit_rate:-4pp")[0] == 0


def test_errors_can_be_gated(tmp_path, capsys):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", errors=40)

    assert judged(capsys, a, b, "--gate", "error_rate:+1pp")[0] == 1


def test_without_the_requests_the_intervals_in_the_results_decide(tmp_path, capsys):
    a = write(tmp_path / "a", requests=False)
    b = write(tmp_path / "b", slower=2.0, requests=False)
    status, told = judged(capsys, a, b, "--gate", "ttft_p50:+5%")

    assert status == 1
    assert "paired" not in told


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"workload": {"rate": 11}}, "rate: 10 and 11"),
        ({"workload": {"name": "shared"}}, "'mixed' and 'shared'"),
        ({"simulated": False}, "simulated"),
    ],
)
def test_different_workloads_are_refused(tmp_path, capsys, change, says):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", **change)
    status, told = judged(capsys, a, b)

    assert status == 2
    assert says in told


def test_another_seed_is_the_same_workload_and_not_paired(tmp_path, capsys):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", seed=2, slower=1.5)
    status, told = judged(capsys, a, b, "--gate", "ttft_p50:+5%")

    assert status == 1
    assert "paired" not in told


@pytest.mark.parametrize("gate", ["ttft_p95", "ttft_p96:+5%", "speed:+5%", "ttft_p95:5%", "ttft_p95:+5pp"])
def test_what_is_no_gate_is_refused(tmp_path, capsys, gate):
    a = write(tmp_path / "a")
    assert judged(capsys, a, a, "--gate", gate)[0] == 2


def test_a_figure_that_is_not_there_is_refused_and_not_passed(tmp_path, capsys):
    a = write(tmp_path / "a")
    status, told = judged(capsys, a, a, "--gate", "queue_p95:+5%")

    assert status == 2
    assert "queue_p95 is not in A" in told


def test_a_baseline_is_found_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "BASELINES", tmp_path)
    a = write(tmp_path / "a")
    (tmp_path / "mine.json").write_text((tmp_path / "a" / "result.json").read_text())
    (tmp_path / "mine.requests.jsonl").write_text((tmp_path / "a" / "requests.jsonl").read_text())

    status, told = judged(capsys, a, "--baseline", "mine")
    assert status == 0
    assert "paired" in told


def test_a_file_that_is_no_result_is_named(tmp_path, capsys):
    (tmp_path / "x.json").write_text(json.dumps({"schema": 1}))
    status, told = judged(capsys, str(tmp_path / "x.json"), str(tmp_path / "x.json"))

    assert status == 2
    assert "x.json: not a result" in told


def test_a_run_whose_load_was_late_decides_no_latency_but_hits(tmp_path, capsys):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", slower=2.0, hit=0.1, lag=0.2)

    status, told = judged(capsys, a, b, "--gate", "ttft_p95:+5%")
    assert (status, told.count("| undecided |")) == (0, 2)
    assert judged(capsys, a, b, "--gate", "shared.hit_rate:-2pp")[0] == 1
