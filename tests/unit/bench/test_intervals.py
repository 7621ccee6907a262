"""Bootstrap intervals: they hold what they should about as often as they say, and are the same each time."""

import numpy as np
import pytest

from bench import intervals


def test_figures_have_their_intervals_round_them():
    figures = intervals.latency([i / 100 for i in range(200)] + [None])

    assert figures["count"] == 200
    assert figures["p50"] == pytest.approx(0.995)
    assert figures["p99"] == pytest.approx(1.9701)
    for name, (low, high) in figures["intervals"].items():
        assert low <= figures[name] <= high


def test_nothing_and_too_little_are_said_to_be():
    assert intervals.latency([]) is None
    assert intervals.latency([None]) is None
    assert "intervals" not in intervals.latency([1.0] * 7)
    assert intervals.ratio([1.0] * 7, [2.0] * 7) is None
    assert intervals.pooled([[], []]) is None


def test_equal_input_gives_equal_output():
    values = list(np.random.default_rng(3).lognormal(size=300))
    assert intervals.latency(values) == intervals.latency(values)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    """95 % of independent samples; a little less for so few of them."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        low, high = intervals.latency(list(rng.exponential(size=120)))["intervals"]["mean"]
        held += low <= 1.0 <= high
    assert 0.86 <= held / 200 <= 0.99


def test_values_that_stay_alike_for_a_while_have_wider_intervals():
    rng = np.random.default_rng(5)
    alike = list(np.repeat(rng.exponential(size=40), 10))
    mixed = list(rng.permutation(alike))

    def width(values):
        low, high = intervals.latency(values)["intervals"]["mean"]
        return high - low

    assert width(alike) > 1.5 * width(mixed)


def test_many_values_a_request_are_drawn_request_by_request():
    """Ten requests of a hundred equal gaps are ten observations, not a thousand."""
    clusters = [[float(i)] * 100 for i in range(10)]
    low, high = intervals.pooled(clusters)["intervals"]["mean"]
    assert high - low > 2


def test_a_ratio_is_of_sums():
    low, high = intervals.ratio([0.0, 90.0] * 50, [10.0, 100.0] * 50)
    assert low <= 90 / 110 <= high
    assert high - low < 0.2


def test_pairing_takes_out_what_both_have_in_common():
    rng = np.random.default_rng(1)
    a = rng.lognormal(sigma=1.0, size=200)
    b = a * 1.1
    mean = intervals.statistic("mean")
    change, paired = intervals.change(a, b, mean, relative=True)
    _, alone = intervals.change(a, b[:-1], mean, relative=True)

    assert change == pytest.approx(0.1)
    assert paired == pytest.approx([0.1, 0.1])
    assert alone[0] < 0 < alone[1]


def test_repeats_are_judged_by_students_t():
    middle, (low, high) = intervals.paired_mean([1.0, 2.0, 3.0])
    assert middle == 2
    assert high - low == pytest.approx(2 * 4.30 / 3**0.5)
    assert intervals.paired_mean([1.0]) == (1.0, None)
