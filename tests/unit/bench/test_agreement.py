"""Foretold against found: what counts, what is equal, what the page says."""

import pytest

from bench import agreement
from bench.agreement import Run, summary
from bench.agreement_table import page
from bench.mixed import Outcome

BLOCK = 32


def outcome(predicted, reported, kind="shared", error=None, stream=False):
    return Outcome(
        kind,
        stream,
        None if error else 200,
        error,
        "r1",
        "hit",
        predicted,
        reported,
        counted=100,
        prompt_tokens=100,
    )


def test_only_where_something_was_foretold_or_found_counts_and_a_block_is_allowed():
    pairs = [(0, 0), (64, 64), (64, 32), (32, 64), (0, 32), (0, 64), (96, 0)]
    figures = agreement.agreement([outcome(*pair) for pair in pairs], BLOCK)
    assert (figures["considered"], figures["equal"], figures["exactly"]) == (6, 4, 1)
    assert (figures["over"], figures["under"]) == (1, 1)
    assert figures["share"] == pytest.approx(4 / 6)
    assert agreement.agreement([outcome(0, 0)], BLOCK)["share"] is None


def made(*outcomes, events=True):
    return summary(Run(events, list(outcomes), 2.0), BLOCK, cache_tokens=50)


def test_what_failed_and_what_no_engine_told_is_left_out_and_said():
    figures = made(outcome(64, 64), outcome(64, None), outcome(None, None, error="status 500"))
    assert (figures["requests"], figures["failed"], figures["unknown"]) == (3, 1, 1)
    assert figures["all"]["considered"] == 1
    assert figures["turnover"] == pytest.approx((200 - 64) / 50)
    assert len(agreement.reasons([figures])) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "events", "missed"),
    [(99, 1, True, 0), (98, 2, True, 1), (90, 10, False, 0), (89, 11, False, 1), (0, 0, False, 1)],
)
def test_the_targets(right, wrong, events, missed):
    figures = made(*[outcome(64, 64)] * right, *[outcome(96, 0)] * wrong, events=events)
    assert len(agreement.reasons([figures])) == missed


def test_the_page_has_each_mode_by_kind_and_what_was_farthest_off():
    modes = [
        made(outcome(64, 64), outcome(96, 0, "random", stream=True)),
        made(outcome(64, 64, "conversation"), events=False),
    ]
    result = {
        "simulated": True,
        "commit": "c",
        "date": "2026-01-02",
        "machine": {"cores": 2, "cpu": "x"},
        "engines": {"replicas": 3, "version": None, "model": "m", "block_size": BLOCK, "blocks": 512},
        "requests": 2,
        "concurrency": 4,
        "command": "python -m bench agreement",
        "target": {"events": 0.99, "learned": 0.9},
        "modes": modes,
    }
    text = page(result, agreement.reasons(modes))
    assert "(SIMULATED)" in text
    assert "**Missed:** with events: 50.0%" in text
    assert "| on | 2 | 0 | 2 | 50.0 % | 99.0 % | 1 | 1 | 0 |" in text
    assert "| off | conversation | 1 | 100.0 % | 0 | 0 |" in text
    assert "| on | random | yes | r1 | hit | 96 | 0 | 100 |" in text
