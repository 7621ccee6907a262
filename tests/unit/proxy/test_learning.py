"""What is learned of prefill: the true line where replies show it, the prior where they cannot."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.learning import FORGET, PRIOR_BASE_SECONDS, PRIOR_TOKENS_PER_SECOND, FleetLine

seeds = st.integers(0, 2**32)


def by_prior(tokens: float) -> float:
    return PRIOR_BASE_SECONDS + tokens / PRIOR_TOKENS_PER_SECOND


def off(line: FleetLine) -> float:
    """How far the slope is from the prior's, as a share of it."""
    return abs(PRIOR_TOKENS_PER_SECOND / line.tokens_per_second - 1)


@given(tokens=st.integers(1, 100_000), most=st.floats(0, 0.2), seed=seeds)
def test_prompts_of_one_length_leave_the_rate_where_it_began_whatever_the_noise(tokens, most, seed):
    random, line = Random(seed), FleetLine()
    weight = mean = 0.0
    for _ in range(300):
        noise = max(random.uniform(-most, most), -by_prior(tokens))
        weight = FORGET * weight + 1
        mean += (noise - mean) / weight
        line.observe(tokens, by_prior(tokens) + noise)
        assert off(line) <= abs(mean) / (2 * PRIOR_BASE_SECONDS) + 1e-6


@given(tokens=st.integers(1, 100_000), seconds=st.floats(0, 0.03))
def test_hits_that_are_answered_faster_than_the_prior_s_base_say_little_of_prefill(tokens, seconds):
    line = FleetLine()
    tokens = tokens % 32  # less than two blocks: all else was cached
    for _ in range(1000):
        line.observe(tokens, seconds)
    assert off(line) <= 0.5 + 1e-6
    for _ in range(1000):
        line.observe(500, 0.5)
        line.observe(2500, 2.5)
    assert line.tokens_per_second == pytest.approx(1000, rel=0.05), "it was not ready to learn any more"


@given(
    tokens=st.integers(20, 5000),
    share=st.floats(0, 0.1),
    noise=st.floats(0.005, 0.1),
    seed=st.integers(0, 99),
)
def test_prompts_of_nearly_one_length_do_not_let_the_noise_be_taken_for_the_rate(tokens, share, noise, seed):
    random, line = Random(seed), FleetLine()
    rates: list[float] = []
    for _ in range(600):
        length = round(tokens * (1 + random.uniform(-share, share)))
        line.observe(length, max(by_prior(length) + random.uniform(-noise, noise), 0.001))
        rates.append(line.tokens_per_second)
    middle = sorted(rates)[len(rates) // 2]
    assert PRIOR_TOKENS_PER_SECOND / 2 < middle < 2 * PRIOR_TOKENS_PER_SECOND


@given(rate=st.floats(500, 50_000), base=st.floats(0.005, 0.2), longest=st.integers(1000, 30_000), seed=seeds)
def test_prompts_of_several_lengths_still_find_the_true_line(rate, base, longest, seed):
    random, line = Random(seed), FleetLine()
    for _ in range(400):
        tokens = random.randint(0, longest)
        line.observe(tokens, base + tokens / rate)
    assert 1 / line.tokens_per_second == pytest.approx(1 / rate, rel=0.1, abs=2e-6)
    assert line.base_seconds == pytest.approx(base, rel=0.1, abs=0.02)
