"""The arithmetic of `bench scale`: volumes add up, and what breaks a large cell is what the page says."""

from dataclasses import replace

import pytest

from bench.scale import BUSY, Costs, Load, main, plan

COSTS = Costs(
    request=100e-6,
    token=0.01e-6,
    chunk=50e-6,
    write=1e-6,
    hear=0.5e-6,
    master=1e-6,
    stored=100,
    known=80,
    when="never",
)
LOAD = Load(replicas=100, requests=1000, prompt=1600, output=160, hits=0.5, block=16, blocks=1000)


def test_volumes_follow_from_tokens():
    assert LOAD.changes == 2 * 1000 * (50 + 10)
    assert LOAD.told == 8 * LOAD.changes + 1000 * (32 + 8 * 100)
    assert replace(LOAD, hits=1.0, output=0).changes == 0


def test_what_a_request_costs_is_the_same_however_the_fleet_is_divided():
    quiet = replace(COSTS, hear=0.0, write=0.0)
    proxies = {size: plan(LOAD, quiet, size) for size in (10, 20, 50)}
    whole = LOAD.requests * (100e-6 + 1600 * 0.01e-6 + 160 * 50e-6) / BUSY
    for it in proxies.values():
        assert it.proxies is not None
        assert it.cells * it.proxies == pytest.approx(whole, abs=it.cells)


def test_what_is_heard_and_held_grows_with_the_cell():
    small, large = plan(LOAD, COSTS, 10), plan(LOAD, COSTS, 50)
    assert large.hearing == pytest.approx(5 * small.hearing)
    assert large.master == pytest.approx(5 * small.master)
    assert large.proxy == 5 * small.proxy == 50 * 1000 * 80
    assert large.log == pytest.approx(5 * small.log)


def test_a_cell_whose_proxies_only_hear_has_none():
    assert plan(replace(LOAD, requests=1e6), COSTS, 100).proxies is None


def test_the_committed_results_have_every_cost(capsys):
    costs = Costs.measured()
    for what in ("request", "token", "chunk", "write", "hear", "master"):
        assert 0 < getattr(costs, what) < 1e-3, what
    assert 50 < costs.known < costs.stored < 200
    assert main(["--cell", "16", "1000", "--replicas", "2000"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2,000 replicas, 100,000 requests a second")
    assert "| 16 | 125 |" in said
