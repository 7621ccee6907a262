"""Routers beside each other: one that works, one that does not start, none at all; a restart midway."""

import json
import sys
from dataclasses import replace

import pytest

from bench import peers, peers_cases, routers
from bench.workloads import Shape

OURS = (
    f"second={sys.executable} -m proxy serve --port {{port}} --shutdown-delay 0 --redis-url none "
    "--replicas {commas}"
)
SMALL = Shape(groups=4, prefix=200, question=20, output=4, turns=(2, 3), turn_gap=0.2)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    cases = [replace(case, shape=SMALL, rate=20.0) for case in peers_cases.CASES]
    monkeypatch.setattr(peers_cases, "CASES", cases)
    monkeypatch.setattr(routers, "SETTLE_SECONDS", 0.1)


def run(tmp_path, *arguments):
    flags = ("--repeats", "1", "--duration", "1", "--warm-up", "0.2", "--out", str(tmp_path))
    status = peers.main(["run", *arguments, *flags])
    return status, json.loads((tmp_path / "peers.json").read_text())


def test_each_router_gets_the_same_requests_and_one_that_does_not_start_is_told(tmp_path, capsys):
    status, result = run(
        tmp_path, OURS, f"broken={sys.executable} -c 0", "--routers", "direct", "--cases", "shared"
    )

    windows = {one["router"]: one for one in result["windows"]}
    assert status == 1
    assert set(windows) == {"direct", "second"}
    assert windows["direct"]["requests"] == windows["second"]["requests"] > 10
    assert windows["direct"]["errors"] == windows["second"]["errors"] == 0
    assert windows["second"]["hit_rate"] > windows["direct"]["hit_rate"]
    assert windows["second"]["cpu_ms_per_request"] > 0
    assert windows["second"]["memory_mib"] > 20
    assert "ended with status 0" in result["left_out"]["broken"]
    page = (tmp_path / "peers.md").read_text()
    assert "SIMULATED" in page
    assert "`broken`" in page


def test_what_is_measured_after_a_restart_of_the_router_is_its_second_half(tmp_path):
    status, result = run(tmp_path, OURS, "--routers", "direct", "--cases", "router")

    sent = {one["router"]: one["requests"] for one in result["windows"]}
    assert status == 0
    assert 5 < sent["second"] == sent["direct"] <= 16
    assert result["runs"][0]["ceiling"] > 0.5  # what the first half left in the caches counts


@pytest.mark.parametrize("argument", ["--cases=nope", "--routers=nope"])
def test_what_is_not_there_is_named(argument, capsys):
    assert peers.main(["run", argument]) == 2
    assert "nope" in capsys.readouterr().err
