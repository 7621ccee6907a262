"""What the growth bench says of growth, and that what it measures is done."""

import pytest

from bench import growth_plots, micro_growth


def grown(step, power, axis="tokens", **at):
    return [
        {"step": step, axis: n, "value": 3.0 * n**power, "bytes": n, **at} for n in (1_000, 8_000, 128_000)
    ]


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_is_the_power(power):
    points = [(float(row["tokens"]), row["value"]) for row in grown("parse", power)]
    assert micro_growth.slope(points) == pytest.approx(power)


def test_a_quadratic_step_is_over_its_target(monkeypatch):
    monkeypatch.setattr(micro_growth, "EXPONENTS", {("parse", "tokens"): 1.3, ("key", "tokens"): 1.4})
    rows = micro_growth.exponents(grown("parse", 2.0) + grown("key", 1.0))
    assert [row["value"] > row["target"] for row in rows] == [True, False]


def test_an_answer_is_relayed_to_its_end():
    cuts = micro_growth._answer(50)
    assert micro_growth.relay(cuts) > sum(map(len, cuts[1:]))


def test_every_figure_has_its_place(monkeypatch, tmp_path):
    monkeypatch.setattr(micro_growth, "BUDGET_S", 0.0)
    monkeypatch.setattr(micro_growth, "TOKENS", (64, 512))
    monkeypatch.setattr(micro_growth, "REPLICAS", (2, 20))
    monkeypatch.setattr(micro_growth, "BLOCKS", (10_000, 20_000))
    rows = micro_growth.rows()

    steps = {row["step"] for row in rows if "step" in row}
    of_a_request = {"parse", "tokenise", "key", "match", "choose", "relay"}
    assert steps == of_a_request | {"match learned", "match confirmed"}
    assert sum(row["step"] == "match" for row in rows if "step" in row) == 4
    assert all(row["value"] > 0 and row["bytes"] >= 0 for row in rows if "step" in row)
    assert len([row for row in rows if "step" not in row]) == len(micro_growth.EXPONENTS)
    assert growth_plots.draw(rows, tmp_path / "g.png", "here").read_bytes().startswith(b"\x89PNG")
    assert growth_plots.draw([], tmp_path / "g.png", "here") is None
