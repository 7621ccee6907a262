"""WARMROUTE_RECORD: a proxy's traffic as a trace that the bench replays."""

import json

import pytest

from bench import traces, traffic
from bench.simulate import main
from bench.traces import TraceError
from proxy.config import Settings
from proxy.trace_file import sidecar
from tests.support.client import exchange
from tests.support.fixtures import counts, serving
from tests.support.upstream import Upstream

SECRET = "the launch code is swordfish. "


async def test_traffic_is_recorded_and_replayed(tmp_path, capsys):
    path = tmp_path / "trace.jsonl"
    async with Upstream() as a, Upstream() as b, serving(a, b, record=path) as proxy:
        for i in range(20):
            messages = [{"role": "user", "content": SECRET * 40 + str(i % 2)}]
            body = json.dumps({"model": "m", "messages": messages}).encode()
            assert (await exchange(proxy.port, "POST", "/v1/chat/completions", body)).status == 200
        await exchange(proxy.port, "POST", "/v1/chat/completions", b'{"model": "nobody"}')
        await counts(proxy, "warmroute_requests_total", 21)
    arrivals = traces.mooncake(path)
    assert len(arrivals) == 20
    assert {arrival.group for arrival in arrivals[1:]} == {"shared"}
    everything = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"swordfish" not in everything
    assert main(["--trace", f"mooncake:{path}", "--policy", "prefix_cost", "--replicas", "2"]) == 0
    assert "prefix_cost" in capsys.readouterr().out


def test_off_is_no_file():
    assert Settings(record="off").record is None


def test_the_load_generator_reads_the_size_of_a_block_from_the_sidecar(tmp_path):
    path = tmp_path / "t.jsonl"
    line = {"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [0, 1, 2]}
    path.write_text(json.dumps(line) + "\n")
    sidecar(path).write_text('{"block_size": 16}')
    (arrival,) = traffic.read(f"mooncake:{path}", rate=1.0, seed=1)
    assert len(arrival.prompt.keys(16)) == 2
    with pytest.raises(TraceError, match="3 ids of 512 tokens"):
        traffic.read(f"mooncake:{path}", rate=1.0, seed=1, id_tokens=512)
    sidecar(path).write_text("{}")
    with pytest.raises(TraceError, match="block_size: missing"):
        traffic.read(f"mooncake:{path}", rate=1.0, seed=1)
