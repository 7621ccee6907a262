"""Placements of other proxies."""

import random
from array import array

import pytest

from proxy.index.memory import MemoryIndex
from proxy.index.remote import QUEUED_S, Remote
from proxy.index.truth import TrueIndex

KEYS = array("Q", random.Random(0).randbytes(8 * 6))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(clock) -> TrueIndex:
    """Replica a publishes events, b does not."""
    index = TrueIndex(MemoryIndex(), clock)
    index.set_mode("a", "events")
    return index


@pytest.fixture
def remote(index) -> Remote:
    return Remote(index, receipts=3, origins=2)


@pytest.mark.parametrize("replica", ["a", "b"])
def test_a_placement_of_another_proxy_counts_until_it_is_taken_back(index, remote, replica):
    remote.predicted("p1", 1, replica, KEYS[:4])
    remote.predicted("p2", 1, replica, KEYS)
    assert index.match(KEYS) == {replica: 6}
    remote.retracted("p2", 1)
    assert index.match(KEYS) == {replica: 4}
    remote.retracted("p2", 1)
    remote.retracted("p1", 2)
    remote.retracted("p3", 1)
    assert index.match(KEYS) == {replica: 4}


def test_a_report_corrects_what_is_learned(index, remote):
    conversations = [array("Q", random.Random(number).randbytes(80)) for number in range(9)]
    for keys in conversations:
        index.predict("b", keys)
    for number in (6, 7, 8):
        remote.predicted("p1", number, "b", conversations[number])
        remote.reported("p1", number, 10, 0)
    assert [index.match(keys).get("b", 0) for keys in conversations] == [0] * 6 + [10] * 3


def test_without_a_word_of_its_first_token_it_has_time_for_a_queue(index, remote, clock):
    remote.predicted("p1", 1, "a", KEYS)
    clock.now += QUEUED_S - 1
    index.tick()
    assert index.match(KEYS) == {"a": 6}
    clock.now += 2
    index.tick()
    assert index.match(KEYS) == {}


def test_receipts_are_bounded_per_origin_and_the_newest_are_kept(index, remote):
    for number in range(5):
        remote.predicted("p1", number, "a", KEYS[number : number + 1])
    assert len(remote) == 3
    remote.retracted("p1", 0)
    remote.retracted("p1", 4)
    assert index.match(KEYS[:1]) == {"a": 1}
    assert index.match(KEYS[4:5]) == {}


def test_origins_are_bounded_and_the_one_silent_longest_goes(index, remote):
    remote.predicted("p1", 1, "a", KEYS[:1])
    remote.predicted("p2", 1, "a", KEYS[1:2])
    remote.predicted("p1", 2, "a", KEYS[2:3])
    remote.predicted("p3", 1, "a", KEYS[3:4])
    assert len(remote) == 3
    remote.retracted("p2", 1)
    assert index.match(KEYS[1:2]) == {"a": 1}


def test_an_origin_that_is_gone_leaves_its_placements_and_no_receipts(index, remote):
    remote.predicted("p1", 1, "b", KEYS)
    remote.forget("p1")
    remote.forget("p1")
    assert len(remote) == 0
    remote.retracted("p1", 1)
    assert index.match(KEYS) == {"b": 6}


def test_a_number_that_comes_again_replaces_its_receipt(index, remote):
    remote.predicted("p1", 1, "b", KEYS[:2])
    remote.predicted("p1", 1, "b", KEYS)
    assert len(remote) == 1
    remote.retracted("p1", 1)
    assert index.match(KEYS) == {"b": 2}


def test_a_replica_that_was_forgotten_is_not_brought_back(index, remote):
    remote.predicted("p1", 1, "a", KEYS)
    index.forget("a")
    remote.reported("p1", 1, 6, 0)
    assert index.match(KEYS) == {}
