"""Workloads: the sharing, lengths and arrivals that were asked for, under a seed."""

from collections import Counter
from itertools import pairwise

import pytest

from bench.workloads import WORKLOADS, Shape, generate

SIZE = 16


def prefix_keys(arrival, tokens):
    return tuple(arrival.prompt.keys(SIZE)[: tokens // SIZE])


@pytest.mark.parametrize("workload", WORKLOADS)
def test_equal_seeds_are_equal_and_different_seeds_share_nothing(workload):
    shape = Shape(requests=60)
    first, again, other = (generate(workload, shape, seed) for seed in (1, 1, 2))
    assert first == again
    ours = {key for arrival in first for key in arrival.prompt.keys(SIZE)}
    theirs = {key for arrival in other for key in arrival.prompt.keys(SIZE)}
    assert ours
    assert not ours & theirs
    assert [a.due for a in first] == sorted(a.due for a in first)


def test_shared_requests_share_their_system_prompt_and_nothing_else():
    shape = Shape(requests=400, groups=5, prefix=320, question=64)
    arrivals = generate("shared", shape, 1)
    assert {a.group for a in arrivals} == {"shared"}
    assert {a.prompt_tokens for a in arrivals} == {384}
    assert len({prefix_keys(a, 320) for a in arrivals}) == 5
    assert len({a.prompt.keys(SIZE)[-1] for a in arrivals}) == 400


def test_random_requests_share_no_block():
    keys = [key for a in generate("random", Shape(requests=200), 1) for key in a.prompt.keys(SIZE)]
    assert len(keys) == len(set(keys))


def test_mixed_requests_are_shared_by_the_fraction():
    arrivals = generate("mixed", Shape(requests=2000, shared_fraction=0.3), 1)
    assert 500 < sum(a.group == "shared" for a in arrivals) < 700


def test_hot_requests_have_one_system_prompt():
    assert len({prefix_keys(a, 1200) for a in generate("hot", Shape(requests=100), 1)}) == 1


def test_zipf_makes_the_first_group_the_most_popular():
    arrivals = generate("shared", Shape(requests=3000, groups=10, zipf=1.2), 1)
    counts = [n for _, n in Counter(prefix_keys(a, 1200) for a in arrivals).most_common()]
    assert len(counts) == 10
    assert counts[0] > 0.35 * 3000
    even = Counter(prefix_keys(a, 1200) for a in generate("shared", Shape(requests=3000, groups=10), 1))
    assert max(even.values()) < 0.14 * 3000


def test_lengths_are_drawn_from_their_range():
    shape = Shape(requests=300, prefix=(100, 200), question=(1, 50), output=(5, 9))
    arrivals = generate("random", shape, 1)
    assert {a.output_tokens for a in arrivals} == {5, 6, 7, 8, 9}
    assert min(a.prompt_tokens for a in arrivals) >= 101
    assert max(a.prompt_tokens for a in arrivals) <= 250
    assert len({a.prompt_tokens for a in arrivals}) > 50


def test_arrivals_come_at_the_rate():
    arrivals = generate("shared", Shape(requests=4000, rate=20), 1)
    assert 4000 / 20 * 0.93 < arrivals[-1].due < 4000 / 20 * 1.07


def test_each_turn_repeats_its_session():
    shape = Shape(requests=300, turns=(3, 4), prefix=160, question=48, output=32, turn_gap=5)
    arrivals = generate("multiturn", shape, 1)
    assert 200 < len(arrivals) < 400
    sessions: dict[str, list] = {}
    for arrival in arrivals:
        sessions.setdefault(arrival.session, []).append(arrival.prompt)
    assert max(map(len, sessions.values())) <= 4
    for turns in sessions.values():
        turns.sort(key=lambda prompt: prompt.tokens)
        for before, after in pairwise(turns):
            assert after.tokens > before.tokens
            assert after.keys(SIZE)[: len(before.keys(SIZE))] == before.keys(SIZE)
            assert after.messages()[: len(before.messages())] == before.messages()
    assert [m["role"] for m in arrivals[-1].prompt.messages()][:2] == ["system", "user"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"groups": 0},
        {"shared_fraction": 1.5},
        {"turns": (0, 2)},
        {"turns": (3, 2)},
        {"turn_gap": 0},
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must be"):
        Shape(**wrong)


def test_an_unknown_workload_is_named():
    with pytest.raises(ValueError, match="unknown workload 'shard'; there are shared, random"):
        generate("shard", Shape(), 1)


def test_an_agents_steps_repeat_its_session_and_a_sub_agent_shares_only_the_tools():
    shape = Shape(requests=600, groups=2, prefix=320, question=64, output=16)
    arrivals = generate("agents", shape, 1)
    sessions = {}
    for arrival in arrivals:
        sessions.setdefault(arrival.session, []).append(arrival)
    subs = [name for name in sessions if name.endswith("/sub")]
    assert 0.05 < len(subs) / len(arrivals) < 0.15
    assert {a.prompt_tokens for name in subs for a in sessions[name]} == {384}
    assert len({prefix_keys(a, 320) for a in arrivals}) == 2
    for steps in sessions.values():
        for before, after in pairwise(steps):
            keys = list(before.prompt.keys(SIZE))
            assert list(after.prompt.keys(SIZE))[: len(keys)] == keys
            assert after.prompt_tokens > before.prompt_tokens


def test_rag_prompts_share_until_their_documents_order_differs():
    shape = Shape(requests=500, groups=6, prefix=1600, question=32)
    arrivals = generate("rag", shape, 1)
    orders = {tuple(s.key for s in a.prompt.segments[1:-1]) for a in arrivals}
    assert all(len(set(order)) == 4 for order in orders)
    assert len({frozenset(order) for order in orders}) < len(orders)  # the same ones in another order
    assert len({prefix_keys(a, 160) for a in arrivals}) == 1
    assert {a.prompt_tokens for a in arrivals} == {160 + 4 * 360 + 32}


def test_a_clock_in_front_leaves_nothing_to_share():
    arrivals = generate("adversarial", Shape(requests=100, groups=2), 1)
    keys = [key for a in arrivals for key in a.prompt.keys(SIZE)]
    assert len(keys) == len(set(keys))
    assert {a.group for a in arrivals} == {"random"}
    texts = [a.prompt.messages()[0]["content"].partition(" is the time ") for a in arrivals]
    assert len({first for first, _, _ in texts}) == 100
    assert len({rest for _, _, rest in texts}) == 2
