"""WARMROUTE_RECORD: a proxy's traffic as a trace that the bench replays."""

import json

from bench import traces
from bench.simulate import main
from proxy.config import Settings
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
