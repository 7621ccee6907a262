"""What counts as reached when a proxy is killed, and when one starts against a large index."""

import json

import pytest

from bench import takeover, warmup


def killed(**changes):
    run = {"seed": "s/1", "claimed": 5.1, "following": 5.2, "agree": True, "failed": 2, "errors": ["reset"]}
    return {**run, "blocks": {}, **changes}


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"claimed": 10.1}, "10.1 s"), ({"following": 12}, "12.0 s"), ({"agree": False}, "differ")],
)
def test_a_takeover_that_is_late_or_counts_otherwise_is_said(changes, word):
    (reason,) = takeover.reasons([killed(**changes)], most_in_flight=16)
    assert word in reason


def test_what_was_in_flight_at_the_killed_proxy_may_fail_and_no_more():
    assert takeover.reasons([killed()], most_in_flight=2) == []
    assert len(takeover.reasons([killed()], most_in_flight=1)) == 1


def test_counts_agree_only_if_everybody_counts_the_same():
    same = {"cached": 7, "redis": 7, "survivor 1": 7}
    assert takeover.agree({"r1": same}, 3)
    assert not takeover.agree({"r1": {**same, "redis": 14}}, 3)
    assert not takeover.agree({"r1": {"cached": 7, "redis": 7}}, 3)


def test_prompts_fill_the_blocks_that_were_asked_for_and_share_none():
    bodies = [json.loads(body) for body in warmup.prompts(4000, 16, "seed")]
    lengths = [len(body["prompt"]) for body in bodies]
    assert sum(lengths) == 4000 * 16
    assert max(lengths) <= warmup.PROMPT
    assert len({tuple(body["prompt"][:16]) for body in bodies}) == len(bodies)


def test_a_start_that_is_late_or_answers_nothing_is_said():
    good = {"warm": 4.9, "errors": [], "answers": 20}
    assert warmup.reasons([good]) == []
    assert len(warmup.reasons([{**good, "warm": 5.1}])) == 1
    assert len(warmup.reasons([{**good, "answers": 0}, {**good, "errors": ["status 503"]}])) == 2
