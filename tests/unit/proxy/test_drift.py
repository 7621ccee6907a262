"""When reports lie too far from predictions, and when they do not."""

import pytest

from proxy.drift import WINDOW, Drift


@pytest.fixture
def drift():
    return Drift()


def observe(drift, predicted, reported, times=WINDOW):
    return [drift.observe("a", predicted, reported, 16) for _ in range(times)]


def test_reports_as_predicted_are_no_drift(drift):
    assert not any(observe(drift, 160, 160))
    assert drift.share("a") == 0.0


def test_a_block_of_difference_is_none(drift):
    assert not any(observe(drift, 160, 144))


@pytest.mark.parametrize(("predicted", "reported"), [(160, 0), (0, 160), (320, 160)])
def test_far_reports_are_drift_once_a_window(drift, predicted, reported):
    told = observe(drift, predicted, reported, 2 * WINDOW)
    assert [at for at, far in enumerate(told, 1) if far] == [WINDOW, 2 * WINDOW]
    assert drift.share("a") == abs(predicted - reported) / max(predicted, reported)


def test_a_few_far_reports_among_many_are_tolerated(drift):
    told = [*observe(drift, 160, 160, WINDOW - 10), *observe(drift, 160, 0, 10)]
    assert not any(told)
    assert drift.shares() == {"a": 0.05}


def test_nothing_at_stake_is_no_drift(drift):
    assert not any(observe(drift, 0, 0))


def test_a_forgotten_replica_begins_anew(drift):
    observe(drift, 160, 0, WINDOW - 1)
    drift.forget("a")
    assert not any(observe(drift, 160, 0, 1))
    assert drift.share("a") == 0.0
