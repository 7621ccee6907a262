"""What the demo sends: made-up traffic as asked, and traces whose sharing is the trace's own."""

import pytest

from bench.scenarios import MOONCAKE_SAMPLE, MOONCAKE_TOKENS, SCENARIOS, TRACES
from bench.traces import mooncake

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("name", BY_NAME)
def test_equal_seeds_give_equal_arrivals_and_as_many_as_asked(name):
    arrivals = BY_NAME[name].arrivals(40, "1")

    assert arrivals == BY_NAME[name].arrivals(40, "1")
    assert len(arrivals) == 40
    assert [a.due for a in arrivals] == sorted(a.due for a in arrivals)


def test_the_control_is_of_one_off_prompts_only():
    assert {arrival.group for arrival in BY_NAME["random"].arrivals(50, "1")} == {"random"}


def test_the_mixed_run_has_both_groups():
    groups = [arrival.group for arrival in BY_NAME["mixed"].arrivals(200, "1")]

    assert 0.5 < groups.count("shared") / len(groups) < 0.8


def test_mooncakes_conversations_are_taken_whole_or_not_at_all():
    sample = BY_NAME["mooncake"].arrivals(10**6, "1")
    everything = mooncake(TRACES / "mooncake_conversation_trace.jsonl.gz")
    taken = {arrival.prompt.ids[1] for arrival in sample if len(arrival.prompt.ids) > 1}

    assert len(sample) == sum(
        arrival.prompt.ids[1] in taken for arrival in everything if len(arrival.prompt.ids) > 1
    ) + sum(len(arrival.prompt.ids) == 1 for arrival in sample)
    assert len(sample) == pytest.approx(len(everything) / MOONCAKE_SAMPLE, rel=0.25)


def test_mooncakes_blocks_are_shortened_and_shared_alike():
    prompt = BY_NAME["mooncake"].arrivals(1, "1")[0].prompt

    assert (len(prompt.ids) - 1) * MOONCAKE_TOKENS <= prompt.tokens <= len(prompt.ids) * MOONCAKE_TOKENS
