"""Admission in the simulation: the product's own, on a virtual clock."""

import json

from bench.admission import ONE_CLASS, PATIENT, Fleet, by_class, chats, cold, main
from bench.profiles import EngineSpec
from bench.simulation import prepare, simulate
from policies import registry
from proxy.priority import Priority

SPEC = EngineSpec(
    cache_tokens=40_000,
    prefill_tokens_per_s=20_000,
    step_s=0.01,
    step_per_sequence_s=0.0001,
    max_seqs=16,
    max_batched_tokens=2048,
    name="test",
)
RATE, BATCH = 4.0, 60.0


def run(arrivals, **how):
    jobs, _ = prepare(sorted(arrivals, key=lambda arrival: arrival.due), SPEC)
    return simulate(jobs, registry.create("prefix_cost"), SPEC, 2, 1, **how)


def test_a_flood_does_not_keep_chats_waiting_and_nothing_starves():
    talk, work = chats(RATE, 1), cold(BATCH, (100, 400), (50, 150), 1)
    alone = by_class(run(talk, concurrency="adaptive", priority=PATIENT))
    both = by_class(run([*talk, *work], concurrency="adaptive", priority=PATIENT))
    assert both["interactive"]["ttft"]["p95"] < 3 * alone["interactive"]["ttft"]["p95"]
    assert both["batch"]["longest_gap"] < 5.0
    served = both["batch"]["callers"]
    assert max(served.values()) < 1.3 * min(served.values())  # although one asks four times as often
    without = Fleet(SPEC, 2).run([*talk, *work], 1, concurrency="none", priority=ONE_CLASS)
    assert without["interactive"]["ttft"]["p95"] > 20 * both["interactive"]["ttft"]["p95"]


def test_without_contention_admission_changes_nothing():
    talk = chats(RATE, 2)
    runs = [run(talk, concurrency=how) for how in ("none", "adaptive", 1000)]
    assert runs[0].outcomes == runs[1].outcomes == runs[2].outcomes
    assert not any(outcome.queue or outcome.shed for outcome in runs[0].outcomes)


def test_who_waits_for_too_long_or_comes_to_a_full_queue_is_turned_away():
    work = cold(BATCH, (100, 400), (50, 150), 1)
    rules = Priority(queue={"batch": 20}, wait={"batch": 2.0})
    outcomes = run(work, concurrency=4, priority=rules).outcomes
    shed = [outcome for outcome in outcomes if outcome.shed]
    assert shed
    assert all(not outcome.replica for outcome in shed)
    assert all(outcome.e2e for outcome in outcomes if not outcome.shed)
    assert all(outcome.queue < 3.1 for outcome in outcomes)  # the limit, and the second between two looks


def test_a_limit_that_starts_far_too_low_is_soon_no_worse_than_the_right_one():
    work = cold(BATCH, (100, 400), (50, 150), 1, seconds=30.0)
    fleet = Fleet(SPEC, 2, seconds=30.0)
    right = fleet.run(work, 1, concurrency=SPEC.max_seqs)["batch"]
    low = fleet.run(work, 1, untold=1)["batch"]
    kept = fleet.run(work, 1, concurrency=1)["batch"]
    assert low["throughput"] > 0.95 * right["throughput"] > 1.5 * kept["throughput"]


def test_the_command_writes_what_it_found(tmp_path, capsys):
    out = tmp_path / "a.json"
    short = ["--seeds", "1", "--replicas", "2", "--seconds", "24"]
    assert main(["--parts", "long", *short, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["simulated"] is True
    assert [entry["policy"] for entry in found["long"]] == ["prefix_cost", "least_load", "round_robin"]
    assert "interactive TTFT" in capsys.readouterr().out
