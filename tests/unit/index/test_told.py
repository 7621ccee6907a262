"""What other proxies are told of placements, and what they need not be told."""

from array import array

import pytest

from proxy.index.memory import MemoryIndex
from proxy.index.remote import Remote
from proxy.index.told import ToldIndex
from proxy.index.truth import TrueIndex


class Ears:
    """Another proxy, told without a network between."""

    def __init__(self) -> None:
        self.index = TrueIndex(MemoryIndex(100), lambda: 0.0)
        self.remote = Remote(self.index)
        self.heard: list[str] = []

    def predicted(self, number, replica, keys):
        self.heard.append("predicted")
        self.remote.predicted("other", number, replica, keys)

    def retracted(self, number):
        self.heard.append("retracted")
        self.remote.retracted("other", number)

    def reported(self, number, predicted, reported):
        self.heard.append("reported")
        self.remote.reported("other", number, predicted, reported)


@pytest.fixture
def ears():
    return Ears()


@pytest.fixture
def index():
    return TrueIndex(MemoryIndex(100), lambda: 0.0)


@pytest.fixture
def told(index, ears):
    return ToldIndex(index, {"a": ears}.get)


def keys(*numbers: int) -> array:
    return array("Q", numbers)


def test_a_placement_is_known_to_the_others(told, ears):
    told.predict("a", keys(1, 2, 3))
    assert ears.index.match(keys(1, 2, 3, 4)) == told.match(keys(1, 2, 3, 4)) == {"a": 3}


def test_a_placement_that_came_to_nothing_is_taken_back_there_too(told, ears):
    told.predict("a", keys(1))
    told.retract(told.predict("a", keys(1, 2, 3)))
    assert ears.index.match(keys(1, 2, 3)) == told.match(keys(1, 2, 3)) == {"a": 1}


def test_an_answer_is_known_to_the_others(told, ears):
    placement = told.predict("a", keys(1))
    told.predict("a", keys(1, 2), after=placement)
    assert ears.index.match(keys(1, 2)) == {"a": 2}


def test_a_shortfall_is_learned_there_too(told, ears):
    for start in range(10, 100, 10):
        told.predict("a", keys(*range(start, start + 10)))
    placement = told.predict("a", keys(*range(10, 20)))
    told.confirm(placement, 10, 0)
    assert ears.heard[-1] == "reported"
    assert ears.index.capacity("a") == told.capacity("a") < 100


def test_what_bears_a_prediction_out_is_not_told(told, ears):
    told.confirm(told.predict("a", keys(1, 2)), 2, 1)
    assert ears.heard == ["predicted"]


def test_what_events_have_confirmed_is_not_told(told, index, ears):
    index.set_mode("a", "events")
    index.apply("a", cleared=False, removed=[], stored=[1, 2])
    told.predict("a", keys(1, 2))
    assert ears.heard == []
    placement = told.predict("a", keys(1, 2, 3))
    assert ears.heard == ["predicted"]
    told.predict("a", keys(1, 2, 3, 4), after=placement)
    told.confirm(placement, 2, 0)
    assert ears.heard == ["predicted"]


def test_a_replica_that_nobody_shares_is_told_to_nobody(told, ears):
    told.confirm(told.predict("b", keys(1, 2)), 2, 0)
    told.retract(told.predict("b", keys(3)))
    assert ears.heard == []


def test_placements_of_both_kinds_have_names_of_their_own(told, index, ears):
    first = told.predict("a", keys(1))
    index.set_mode("a", "events")
    told.predict("a", keys(2))
    index.set_mode("a", "learned")
    told.retract(first)
    assert ears.heard == ["predicted", "predicted", "retracted"]
    assert len(ears.remote) == 1
