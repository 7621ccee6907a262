"""Plans, ceilings and capacity: counted with the engines' tokenizer, worked out before anything is sent."""

import json

import pytest

from bench.capacity import round_robin_capacity
from bench.engine_prompt import EnginePrompt
from bench.plan import Planned, ceilings, prepare, tokens_per_word
from bench.profiles import profile
from bench.windows import at_rate
from bench.workloads import Shape, generate

PROMPT = EnginePrompt()


def planned(due, group, keys, tokens, output=1):
    return Planned(due, group, b"", keys, tokens, output)


def test_lengths_come_out_as_asked_with_the_engines_tokenizer():
    shape = Shape(requests=20, prefix=600, question=100)
    plan = prepare(generate("random", shape, 1), PROMPT, model="m", block_size=16)

    mean = sum(p.prompt_tokens for p in plan) / len(plan)
    assert mean == pytest.approx(700, rel=0.05)
    assert tokens_per_word(PROMPT) > 0.9


def test_a_body_asks_for_a_stream_of_fixed_length_with_usage():
    (first,) = prepare(generate("random", Shape(requests=1, output=7), 1), PROMPT, model="m", block_size=16)
    body = json.loads(first.body)

    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ("m", 7, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert len(first.keys) == first.prompt_tokens // 16


def test_the_ceiling_counts_a_repeat_but_for_its_last_block():
    plan = [planned(0, "shared", [1, 2], 20), planned(1, "shared", [1, 2], 20)]

    assert ceilings(plan, blocks=10, block_size=10) == {"shared": 10 / 40}


def test_the_ceiling_knows_the_fleets_size():
    plan = [
        planned(0, "shared", [1, 2], 21),
        planned(1, "random", [5, 6], 21),
        planned(2, "shared", [1, 2], 21),
    ]

    assert ceilings(plan, blocks=6, block_size=10)["shared"] == 20 / 42
    assert ceilings(plan, blocks=3, block_size=10)["shared"] == 0.0


def test_outputs_take_room_under_the_ceiling():
    plan = [
        planned(0, "shared", [1], 11, output=30),
        planned(1, "random", [9], 11, output=30),
        planned(2, "shared", [1], 11, output=30),
    ]

    assert ceilings(plan, blocks=12, block_size=10)["shared"] == 10 / 22
    assert ceilings(plan, blocks=4, block_size=10)["shared"] == 0.0


def test_requests_count_in_the_order_they_are_due():
    late, early = planned(1, "late", [1], 11), planned(0, "early", [1], 11)

    assert ceilings([late, early], blocks=9, block_size=10) == {"early": 0.0, "late": 10 / 11}


def test_twice_the_replicas_carry_about_twice_as_much():
    spec = profile("h100x2-32b", cache_tokens=64_000)
    plan = [planned(i, "random", [], 3200) for i in range(80)]
    two, four = (round_robin_capacity(plan, spec, replicas) for replicas in (2, 4))

    assert four == pytest.approx(2 * two, rel=0.1)
    assert two == pytest.approx(2 * spec.prefill_tokens_per_s / 3200, rel=0.15)


def test_at_rate_keeps_the_rhythm():
    plan = at_rate([planned(due, "g", [], 1) for due in (3, 4, 7, 13)], rate=2.0)

    assert [p.due for p in plan] == pytest.approx([0, 0.15, 0.6, 1.5])
