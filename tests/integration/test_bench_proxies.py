"""`bench proxies` in small: real proxies and simulated replicas, one window an arm."""

import json

from bench import processes, proxies


async def test_one_proxy_and_private_ones_are_measured_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(proxies, "LOGS", tmp_path / "logs")
    out = tmp_path / "proxies.json"
    argv = ["--proxies", "2", "--replicas", "2", "--requests", "8", "--groups", "2", "--seeds", "1"]
    argv += ["--arms", "one,private", "--kv-events", "off", "--out", str(out)]
    assert await proxies.run(proxies.parser().parse_args(argv)) == 0

    result = json.loads(out.read_text())
    assert (result["schema"], result["simulated"]) == (1, True)
    assert [(run["policy"], run["proxies"]) for run in result["runs"]] == [("one", 1), ("private", 2)]
    for run in result["runs"]:
        assert (run["groups"]["shared"]["requests"], run["groups"]["shared"]["errors"]) == (8, 0)
        assert 0 < run["ratio"] <= 1 + 1e-9
        assert set(run["index_modes"]) == {"learned"}
    one, private = result["windows"]
    assert (one["index_modes"], private["index_modes"]) == ({"learned": 2}, {"learned": 4})


async def test_a_valkey_of_the_bench_answers_and_ends_with_it(tmp_path):
    async with processes.valkey(tmp_path / "log", options=("--maxmemory", "20mb")) as server:
        (url,) = server.urls
        port = int(url.rsplit(":", 1)[1].partition("/")[0])
        assert url == f"redis://127.0.0.1:{port}/0"
    assert processes.free_port(port) == port
