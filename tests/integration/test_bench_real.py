"""`bench real` on replicas that run: what is measured, in which order, and what is written."""

import json

from bench import real
from bench.engine import serve
from bench.profiles import EngineSpec
from bench.real_table import page

SPEC = EngineSpec(
    name="test", cache_tokens=16384, prefill_tokens_per_s=1e5, step_s=0.001, step_per_sequence_s=0.0
)


async def test_a_run_on_replicas_that_run(tmp_path, monkeypatch):
    monkeypatch.setattr(real, "LOOK_SECONDS", 0.01)
    async with serve(SPEC, ports=(0, 0)) as engines:
        urls = ",".join(engine.url for engine in engines)
        argv = ["--engines", urls, "--duration", "0.5", "--warm-up", "0.2", "--repeats", "2"]
        argv += ["--shared-rate", "24", "--random-rate", "8"]
        arguments = real.parser().parse_args([*argv, "--out", str(tmp_path), "--logs", str(tmp_path)])
        assert await real.run(arguments, "python -m bench real") == 0

    result = json.loads((tmp_path / "vllm-cpu.json").read_text())
    assert result["schema"] == 1
    assert result["simulated"]
    assert [run["policy"] for run in result["runs"]] == ["round_robin", "prefix_cost"]
    for run in result["runs"]:
        assert (run["groups"]["shared"]["requests"], run["groups"]["random"]["requests"]) == (24, 8)
        assert run["groups"]["shared"]["errors"] == 0
        assert 0 < run["groups"]["shared"]["hit_rate"] <= run["groups"]["shared"]["ceiling"] + 1e-9
        assert run["groups"]["random"]["hit_rate"] == 0
    order = [(one["workload"], one["policy"]) for one in result["windows"]]
    assert order == [(w, p) for w in ("shared", "random") for _ in range(2) for p in real.POLICIES]
    text = (tmp_path / "vllm-cpu.md").read_text()
    assert "(SIMULATED)" in text
    assert text.count("| shared, 24/s |") == 2
    assert "does not count" not in text
    assert "does not count:** shared: broke" in page(result, ["shared: broke"])
