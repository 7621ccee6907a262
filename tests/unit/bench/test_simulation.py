"""The simulation: deterministic, complete, and right where the answer is known."""

from dataclasses import replace

import pytest

from bench.measures import ceilings, figures, jain, latency, quantile, spread
from bench.profiles import EngineSpec
from bench.prompts import Conversation, Segment
from bench.simulate import main, table
from bench.simulation import pooled_hits, prepare, simulate
from bench.workloads import Arrival, Shape, generate
from policies import registry

SPEC = EngineSpec(
    cache_tokens=4096,
    prefill_tokens_per_s=10_000,
    step_s=0.01,
    step_per_sequence_s=0.0,
    block_size=16,
    name="test",
)


def arrival(due, *parts, output=1):
    return Arrival(due, "shared", Conversation(tuple(Segment("user", key, n) for key, n in parts)), output)


def run(arrivals, policy="round_robin", replicas=2, spec=SPEC, seed=1):
    jobs, _ = prepare(arrivals, spec)
    return simulate(jobs, registry.create(policy), spec, replicas, seed)


def test_a_cold_and_a_warm_request_take_the_time_of_their_uncached_tokens():
    result = run([arrival(0.0, ("a", 1600), ("b", 400)), arrival(10.0, ("a", 1600), ("c", 400))], replicas=1)
    cold, warm = result.outcomes
    assert (cold.cached, warm.cached) == (0, 1600)
    assert cold.ttft == pytest.approx(0.01 + 2000 / 10_000)
    assert warm.ttft == pytest.approx(0.01 + 400 / 10_000)
    assert result.uncached == {"r0": 2400}
    assert result.requests == {"r0": 2}


def test_time_to_first_token_counts_from_the_due_time_through_the_queue():
    result = run([arrival(0.0, (str(i), 2000)) for i in range(3)], replicas=1)
    assert [o.ttft for o in result.outcomes] == sorted(o.ttft for o in result.outcomes)
    assert result.outcomes[-1].ttft >= 6000 / 10_000


def test_round_robin_recomputes_on_each_replica_what_prefix_cost_computes_once():
    arrivals = [arrival(float(i), ("a", 1600), (str(i), 16)) for i in range(8)]
    hits = {
        name: sum(o.cached for o in run(arrivals, name).outcomes) for name in ("round_robin", "prefix_cost")
    }
    assert hits == {"round_robin": 6 * 1600, "prefix_cost": 7 * 1600}


@pytest.mark.parametrize("policy", registry.names())
def test_every_request_ends_and_the_same_seed_gives_the_same_run(policy):
    arrivals = generate("multiturn", Shape(requests=60, prefix=160, question=(16, 200), output=(1, 20)), 3)
    first, again = run(arrivals, policy, 3), run(arrivals, policy, 3)
    assert first == again
    assert len(first.outcomes) == len(arrivals)
    assert all(0 <= o.cached < o.tokens and 0 < o.ttft <= o.e2e for o in first.outcomes)
    assert sum(first.requests.values()) == len(arrivals)
    assert sum(first.uncached.values()) == sum(o.tokens - o.cached for o in first.outcomes)


def test_prompts_that_do_not_fit_are_left_out_and_counted():
    jobs, left_out = prepare([arrival(0.0, ("a", 5000)), arrival(1.0, ("b", 4000))], SPEC)
    assert (len(jobs), left_out) == (1, 1)


def test_the_ceiling_is_one_lru_whose_chains_lose_their_tail_first():
    a, b = (("a", 64),), (("b", 32),)
    jobs, _ = prepare([arrival(float(i), *parts, ("x", 1)) for i, parts in enumerate((a, b, a, a))], SPEC)
    assert pooled_hits(jobs, blocks=6, block_size=16) == [0, 0, 64, 64]
    assert pooled_hits(jobs, blocks=4, block_size=16) == [0, 0, 32, 64]


def test_a_hit_never_covers_the_last_token():
    jobs, _ = prepare([arrival(0.0, ("a", 64)), arrival(1.0, ("a", 64))], SPEC)
    assert pooled_hits(jobs, blocks=100, block_size=16) == [0, 48]
    assert [o.cached for o in simulate(jobs, registry.create("prefix_cost"), SPEC, 1, 1).outcomes] == [0, 48]


def test_no_policy_passes_the_unlimited_ceiling():
    arrivals = generate("mixed", Shape(requests=150, prefix=320, question=32, groups=6, output=4), 1)
    jobs, _ = prepare(arrivals, SPEC)
    best = pooled_hits(jobs, blocks=10**9, block_size=16)
    for policy in registry.names():
        outcomes = simulate(jobs, registry.create(policy), SPEC, 2, 1).outcomes
        assert sum(o.cached for o in outcomes) <= sum(best)


def test_measures_of_known_values():
    assert quantile([1, 2, 3, 4], 0.5) == 2
    assert quantile([1, 2, 3, 4], 0.95) == 4
    assert quantile(list(range(1, 101)), 0.95) == 95
    assert quantile([7], 0.01) == 7
    assert latency([]) == {}
    assert latency([3.0, 1.0]) == {"p50": 1.0, "p95": 3.0, "p99": 3.0, "mean": 2.0}
    assert spread([1, 1, 4]) == 2
    assert spread([0, 0]) == 1
    assert jain([1, 1, 1, 1]) == 1
    assert jain([4, 0, 0, 0]) == 0.25


def test_figures_are_told_by_group_and_have_the_promised_shape():
    jobs, _ = prepare(generate("mixed", Shape(requests=80, prefix=320, output=3), 1), SPEC)
    best = ceilings(jobs, pooled_hits(jobs, 512, 16))
    entry = figures("least_load", simulate(jobs, registry.create("least_load"), SPEC, 2, 1), best)
    assert set(entry) >= {"policy", "groups", "throughput", "replicas"}
    groups = entry["groups"]
    assert list(groups) == ["all", "random", "shared"]
    assert groups["all"]["requests"] == groups["random"]["requests"] + groups["shared"]["requests"] == 80
    assert groups["random"]["hit_rate"] == groups["random"]["ceiling"] == 0
    assert 0 < groups["shared"]["hit_rate"] <= groups["shared"]["ceiling"]
    assert set(groups["all"]["ttft"]) == set(groups["all"]["tpot"]) == {"p50", "p95", "p99", "mean"}
    rows = table([entry]).splitlines()
    assert len(rows) == 5
    assert len({len(row) for row in rows}) == 1


def test_the_command_prints_a_table_called_simulated_and_writes_the_result(tmp_path, capsys):
    out = tmp_path / "r.json"
    argv = [
        "--workload",
        "shared",
        "--requests",
        "40",
        "--replicas",
        "2",
        "--policy",
        "round_robin",
        "prefix_cost:alpha=2",
    ]
    assert main([*argv, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Simulated: shared, 40 requests")
    assert "| prefix_cost:alpha=2 |" in printed
    text = out.read_text()
    assert '"simulated": true' in text
    assert '"schema": 1' in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--policy", "prefix_csot"], "did you mean 'prefix_cost'"),
        (["--policy", "prefix_cost:alhpa=1"], "did you mean 'alpha'"),
        (["--trace", "mooncake:nothing"], "nothing"),
        (["--trace", "moon:x"], "--trace is FORMAT:PATH"),
        (["--rate", "-1"], "must be positive"),
        (["--prefix", "600000"], "no request fits"),
    ],
)
def test_what_cannot_be_simulated_is_said(argv, message, capsys):
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_trace_can_be_played_faster(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    row = '{{"timestamp": {}, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}}\n'
    path.write_text("".join(row.format(at) for at in (0, 1000, 4000)))
    argv = ["--trace", f"mooncake:{path}", "--block-size", "512", "--policy", "random", "--speed", "2"]
    assert main(argv) == 0
    assert "3 requests, 600 prompt tokens each, 900 a second" in capsys.readouterr().out
    assert main([*argv, "--seconds", "1.9"]) == 0
    assert "2 requests, 600 prompt tokens each, 2,400 a second" in capsys.readouterr().out
    assert replace(SPEC, block_size=32).blocks == 128
