"""Several proxies on a virtual clock, and the knobs that are tried."""

import json

import pytest

from bench import whatif
from bench.profiles import EngineSpec
from bench.several import simulate
from bench.simulation import prepare
from bench.workloads import Shape, generate
from policies import registry

SPEC = EngineSpec(
    name="test", cache_tokens=16_000, prefill_tokens_per_s=8000, step_s=0.01, step_per_sequence_s=0.0
)
SHAPE = Shape(rate=12, requests=300, groups=12, prefix=1000, question=100, output=8)


def cost():
    return registry.create("prefix_cost", {})


def run(**more):
    jobs, _ = prepare(generate("shared", SHAPE, 1), SPEC)
    return simulate(jobs, cost, SPEC, 3, 1, **more)


def hits(one):
    return sum(o.cached for o in one.outcomes) / sum(o.tokens for o in one.outcomes)


def test_every_request_ends_and_equal_input_gives_equal_output():
    one, again = run(proxies=4, delay=0.1), run(proxies=4, delay=0.1)

    assert len(one.outcomes) == 300
    assert sum(one.requests.values()) == 300
    assert all(0 < o.ttft <= o.e2e for o in one.outcomes)
    assert [(o.replica, o.ttft) for o in one.outcomes] == [(o.replica, o.ttft) for o in again.outcomes]


def test_proxies_that_share_hit_nearly_as_one_and_those_that_do_not_hit_less():
    alone, shared, private = hits(run()), hits(run(proxies=4)), hits(run(proxies=4, delay=None))

    assert alone > 0.8
    assert shared > alone - 0.03
    assert private < shared - 0.03


def test_what_is_told_too_late_is_like_what_is_never_told():
    assert hits(run(proxies=4, delay=1e6)) == pytest.approx(hits(run(proxies=4, delay=None)), abs=0.03)


def test_one_proxy_does_not_care_how_late_others_would_know():
    assert hits(run(delay=5.0)) == hits(run(delay=None)) == hits(run())


def test_knobs_are_tried_one_by_one_or_all_together():
    base = {"replicas": 4, "proxies": 1}
    varied = {"replicas": [2, 8], "proxies": [3]}

    alone = list(whatif.settings(base, varied, grid=False))
    assert alone == [
        ("replicas", {"replicas": 2, "proxies": 1}),
        ("replicas", {"replicas": 8, "proxies": 1}),
        ("proxies", {"replicas": 4, "proxies": 3}),
    ]
    together = list(whatif.settings(base, varied, grid=True))
    assert [setting for _, setting in together] == [
        {"replicas": 2, "proxies": 3},
        {"replicas": 8, "proxies": 3},
    ]


@pytest.mark.parametrize(
    "text", ["wheels=4", "replicas", "replicas=", "replicas=x", "replicas=0", "speed=-1"]
)
def test_knobs_that_do_not_exist_are_refused(text, capsys):
    with pytest.raises(SystemExit) as refused:
        whatif.main(["--vary", text])
    assert refused.value.code == 2


def test_the_command_prints_a_row_a_setting_and_policy_and_writes_its_result(tmp_path, capsys):
    arguments = ("--requests", "60", "--prefix", "600", "--out", str(tmp_path), "--seconds", "5")
    status = whatif.main([*arguments, "--vary", "replicas=2,3", "--vary", "index_delay=0,never"])

    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| ")][1:]
    result = json.loads((tmp_path / "whatif.json").read_text())
    assert status == 0
    assert len(rows) == len(result["runs"]) == 8
    assert result["simulated"] is True
    assert {path.name for path in tmp_path.glob("*.png")} == {"replicas.png", "index_delay.png"}


def test_a_block_size_that_does_not_fit_the_traces_is_named(tmp_path, capsys):
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}
    trace.write_text(json.dumps(row) + "\n")
    arguments = ("--trace", f"mooncake:{trace}", "--block-size", "48", "--vary", "replicas=2")

    assert whatif.main([*arguments, "--out", str(tmp_path)]) == 2
    assert "blocks of 48 tokens do not fit" in capsys.readouterr().err
