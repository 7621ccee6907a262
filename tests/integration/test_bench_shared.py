"""`bench proxies`, `takeover` and `warmup` in small, with real proxies, a real Valkey and simulated replicas.

How long anything takes is the benches' business; here everything must only come true.
"""

import json

from bench import proxies, takeover, warmup


async def test_proxies_that_share_know_every_replica_by_its_events(tmp_path, monkeypatch):
    monkeypatch.setattr(proxies, "LOGS", tmp_path / "logs")
    out = tmp_path / "proxies.json"
    argv = ["--proxies", "2", "--replicas", "2", "--requests", "8", "--groups", "2", "--seeds", "1"]
    argv += ["--arms", "one,shared", "--kv-events", "on", "--out", str(out)]
    await proxies.run(proxies.parser().parse_args(argv))

    result = json.loads(out.read_text())
    for run in result["runs"]:
        assert run["groups"]["shared"]["errors"] == 0
        assert set(run["index_modes"]) == {"events"}
    assert result["runs"][1]["index_modes"] == {"events": 4}


async def test_a_killed_proxy_is_followed_by_another_and_nothing_is_counted_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(takeover, "LOGS", tmp_path / "logs")
    out = tmp_path / "takeover.json"
    argv = ["--proxies", "2", "--replicas", "2", "--rate", "4", "--duration", "15", "--repeats", "1"]
    await takeover.run(takeover.parser().parse_args([*argv, "--out", str(out)]))

    (run,) = json.loads(out.read_text())["runs"]
    assert run["agree"], run["blocks"]
    for counts in run["blocks"].values():
        assert set(counts) == {"cached", "redis", "survivor 1"}
    assert sum(counts["cached"] for counts in run["blocks"].values()) == run["index_blocks"][0] > 0


async def test_a_proxy_that_starts_late_comes_to_know_what_is_in_redis_and_answers_meanwhile(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(warmup, "LOGS", tmp_path / "logs")
    out = tmp_path / "warmup.json"
    argv = ["--blocks", "6000", "--replicas", "2", "--repeats", "1", "--out", str(out)]
    await warmup.run(warmup.parser().parse_args(argv))

    result = json.loads(out.read_text())
    (run,) = result["runs"]
    assert result["simulated"]
    assert run["index_blocks"] >= 6000
    assert run["errors"] == []
    assert run["answers"] > 0
    assert 0 < run["ready"] <= run["warm"]
