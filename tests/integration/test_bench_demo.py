"""The demo as `make demo` runs it, only shorter: real processes, the promised file, nothing left behind."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench import processes
from bench.scenarios import CACHE_TOKENS, SHAPE
from tests.support.eventually import eventually

ROOT = Path(__file__).parents[2]
SHORT = ("--only", "mixed", "--scale", "0.06", "--port", "0")


def running():
    """Every process there is."""
    return {int(path.name) for path in Path("/proc").glob("[0-9]*")}


def children(pid):
    """The processes that `pid` started and that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def test_it_measures_both_policies_and_writes_the_promised_file(tmp_path):
    command = [sys.executable, "-m", "bench", "demo", *SHORT, "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["schema"], result["simulated"]) == (1, True)
    assert [run["policy"] for run in result["runs"]] == ["round_robin", "prefix_cost"]
    for run in result["runs"]:
        assert sum(group["requests"] for group in run["groups"].values()) == 14
        assert all(group["errors"] == 0 for group in run["groups"].values())
        assert set(run["replicas"]) <= {"r1", "r2", "r3", "r4"}
        assert sum(run["replicas"].values()) == 14
    assert result["workload"]["share_of_capacity"] <= 0.8
    assert result["scenarios"] == []
    assert (tmp_path / "overview.png").exists()
    assert "SIMULATED" in done.stdout


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
async def test_ended_early_it_leaves_no_process_behind(tmp_path):
    command = [sys.executable, "-m", "bench", "demo", *SHORT, "--out", str(tmp_path)]
    quiet = asyncio.subprocess.DEVNULL
    demo = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=quiet, stderr=quiet)
    try:
        started = await eventually(lambda: children(demo.pid), within=30)
        demo.terminate()
        status = await asyncio.wait_for(demo.wait(), 30)
    finally:
        if demo.returncode is None:
            demo.kill()

    assert status == 143
    await eventually(lambda: not set(started) & running())


def test_more_than_the_allowed_share_is_refused():
    command = [sys.executable, "-m", "bench", "demo", "--share", "0.9"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "above 0.8" in done.stderr


def test_the_system_prompts_exceed_one_cache_and_fit_four():
    working_set = SHAPE.groups * SHAPE.prefix

    assert CACHE_TOKENS < working_set < 4 * CACHE_TOKENS


async def test_a_proxy_that_cannot_start_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="ended with status"):
        async with processes.proxy(["http://127.0.0.1:1"], "no_such_policy", tmp_path / "log"):
            pass


def test_a_preferred_port_is_taken_only_if_it_is_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert processes.free_port(number) != number
    assert processes.free_port(number) == number
