"""Who speaks for a replica, and what is kept when that changes."""

import random
from array import array

import pytest

from proxy.index.memory import MemoryIndex
from proxy.index.truth import HANDED_BLOCKS, HANDED_PROMPTS, TrueIndex

NONE = array("Q")


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


def fresh(blocks: int, seed: object = 0) -> array:
    return array("Q", random.Random(repr(seed)).randbytes(8 * blocks))


def store(index: TrueIndex, replica: str, keys: array) -> None:
    index.apply(replica, cleared=False, removed=NONE, stored=keys)


def remove(index: TrueIndex, replica: str, keys: array) -> None:
    index.apply(replica, cleared=False, removed=keys, stored=NONE)


class TestEvents:
    def test_confirmed_blocks_are_continued_by_predicted_ones(self, index):
        keys = fresh(10)
        store(index, "a", keys[:4])
        index.predict("a", keys)
        assert index.match(keys) == {"a": 10}
        assert (index.confirmed_blocks("a"), index.blocks("a")) == (4, 10)

    def test_X06_a_prediction_fills_a_hole_and_what_is_confirmed_behind_it_counts(self, index):
        keys = fresh(10)
        store(index, "a", keys)
        remove(index, "a", keys[3:4])
        assert index.match(keys) == {"a": 3}
        index.predict("a", keys[:4])
        assert index.match(keys) == {"a": 10}

    def test_a_warm_hit_leaves_nothing_to_be_confirmed(self, index):
        keys = fresh(10)
        store(index, "a", keys)
        placement = index.predict("a", keys)
        assert not index._overlay
        index.first_token(placement)
        index.retract(placement)
        assert index.match(keys) == {"a": 10}

    def test_a_prediction_ends_when_its_last_block_is_confirmed(self, index):
        keys = fresh(10)
        index.predict("a", keys)
        store(index, "a", keys[:9])
        assert index._overlay
        store(index, "a", keys[9:])
        assert not index._overlay
        assert index.match(keys) == {"a": 10}

    def test_what_was_confirmed_and_evicted_is_gone_though_the_prediction_is_open(self, index):
        keys = fresh(10)
        index.predict("a", keys)
        store(index, "a", keys[:5])
        remove(index, "a", keys[4:5])
        assert index.match(keys) == {"a": 4}

    def test_requests_that_share_a_prediction_answer_for_it_together(self, index):
        keys = fresh(6)
        first = index.predict("a", keys[:4])
        second = index.predict("a", keys)
        index.retract(first)
        assert index.match(keys) == {"a": 6}
        index.retract(second)
        assert index.match(keys) == {}

    @pytest.mark.parametrize(("expected", "seconds"), [(0.0, 2.0), (1.5, 5.0), (60.0, 10.0)])
    def test_the_time_of_a_prediction_begins_with_the_first_token(self, index, clock, expected, seconds):
        keys = fresh(6)
        placement = index.predict("a", keys)
        clock.now += 3600  # in a queue
        index.tick()
        assert index.match(keys) == {"a": 6}
        index.first_token(placement, expected)
        clock.now += seconds - 0.01
        index.tick()
        assert index.match(keys) == {"a": 6}
        clock.now += 0.02
        index.tick()
        assert index.match(keys) == {}

    def test_an_answers_blocks_count_and_have_their_time_at_once(self, index, clock):
        keys = fresh(8)
        placement = index.predict("a", keys[:5])
        store(index, "a", keys[:5])
        index.predict("a", keys, after=placement)
        assert index.match(keys) == {"a": 8}
        clock.now += 3
        index.tick()
        assert index.match(keys) == {"a": 5}

    def test_a_prompt_that_was_answered_has_its_time_too(self, index, clock):
        keys = fresh(8)
        placement = index.predict("a", keys[:5])
        index.predict("a", keys, after=placement)
        clock.now += 3
        index.tick()
        assert index.match(keys) == {}

    def test_a_block_that_was_removed_was_there_before_so_it_is_not_predicted_any_more(self, index):
        keys = fresh(8)
        index.predict("a", keys)
        remove(index, "a", keys[5:6])
        assert index.match(keys) == {"a": 5}
        remove(index, "a", keys[7:])
        assert index.match(keys) == {}

    def test_predictions_are_bounded_by_the_cache_and_the_oldest_go(self, index):
        index.resize("a", 100)
        prompts = [fresh(30, number) for number in range(1000)]
        for keys in prompts:
            index.predict("a", keys)
            assert index.blocks("a") <= 100
        assert [index.match(keys) for keys in prompts[-4:]] == [{}, {"a": 30}, {"a": 30}, {"a": 30}]

    def test_what_is_confirmed_is_not_bounded_by_what_we_believe_of_the_cache(self, index):
        keys = fresh(300)
        index.resize("a", 100)
        store(index, "a", keys)
        assert index.match(keys) == {"a": 300}

    def test_a_report_changes_nothing_that_is_confirmed(self, index):
        keys = fresh(50)
        store(index, "a", keys)
        for _ in range(10):
            index.confirm(index.predict("a", keys), 50, 0)
        assert index.match(keys) == {"a": 50}

    def test_replicas_with_and_without_events_are_matched_side_by_side(self, index):
        keys = fresh(10)
        store(index, "a", keys[:7])
        index.predict("b", keys[:9])
        assert index.match(keys) == {"a": 7, "b": 9}
        assert index._learned.blocks("a") == 0


class TestForgotten:
    def test_E04_late_events_of_a_replica_that_was_removed_add_nothing(self, index):
        keys = fresh(10)
        store(index, "a", keys)
        index.forget("a")
        assert index.match(keys) == {}
        for _ in range(3):
            store(index, "a", keys)
        assert (index.match(keys), index.blocks("a"), index.late) == ({}, 0, 3)
        index.set_mode("a", "events")  # another one takes the address
        assert index.match(keys) == {}

    def test_E04_what_the_old_one_was_to_compute_is_not_held_by_the_new_one(self, index):
        keys = fresh(10)
        old = index.predict("a", keys)
        index.forget("a")
        index.set_mode("a", "events")
        index.first_token(old)
        index.predict("a", keys, after=old)
        assert index.match(keys) == {}
        index.predict("a", keys[:2])
        index.retract(old)
        assert index.match(keys) == {"a": 2}

    def test_E05_a_flush_leaves_what_was_stored_since(self, index):
        keys = fresh(5)
        index.set_mode("b", "events")
        store(index, "a", keys)
        store(index, "b", keys)
        index.apply("a", cleared=True, removed=NONE, stored=keys[:1])
        assert index.match(keys) == {"a": 1, "b": 5}
        while index.tick():
            pass
        assert index.match(keys) == {"a": 1, "b": 5}
        assert index.size() == 5

    def test_E05_a_flush_ends_what_was_predicted(self, index):
        keys = fresh(5)
        index.predict("a", keys)
        index.apply("a", cleared=True, removed=NONE, stored=NONE)
        assert index.match(keys) == {}


class TestModes:
    def test_E12_a_replica_that_stops_publishing_keeps_its_latest_prompts_as_far_as_they_are_true(
        self, index
    ):
        old, recent, failed = fresh(20, "old"), fresh(20, "recent"), fresh(20, "failed")
        for keys in (old, recent):
            index.predict("a", keys)
            store(index, "a", keys)
        remove(index, "a", recent[15:])
        remove(index, "a", old)
        index.predict("a", failed)
        index.set_mode("a", "learned")
        assert index.match(recent) == {"a": 15}
        assert index.match(old) == index.match(failed) == {}
        assert (index.confirmed_blocks("a"), index.blocks("a")) == (0, 15)

    def test_E12_from_then_on_it_is_learned_as_any_other(self, index):
        keys = [fresh(20, number) for number in range(5)]
        for prompt in keys:
            index.predict("a", prompt)
            store(index, "a", prompt)
        index.set_mode("a", "learned")
        index.resize("a", 50)
        assert [index.match(prompt).get("a", 0) for prompt in keys] == [0, 0, 10, 20, 20]

    def test_what_is_handed_over_is_bounded(self, index):
        for number in range(2 * HANDED_PROMPTS):
            index.predict("a", fresh(2, number))
        feed = index._feeds["a"]
        assert (len(feed.prompts), feed.blocks) == (HANDED_PROMPTS, 2 * HANDED_PROMPTS)
        index.predict("a", fresh(HANDED_BLOCKS))
        assert (len(feed.prompts), feed.blocks) == (1, HANDED_BLOCKS)
        index.predict("a", fresh(HANDED_BLOCKS + 1))
        assert (len(feed.prompts), feed.blocks) == (0, 0)

    def test_a_feed_that_becomes_whole_replaces_what_was_learned(self, index):
        keys, other = fresh(10), fresh(10, "other")
        index.predict("b", keys)
        index.set_mode("b", "stale")
        store(index, "b", other[:6])
        assert index.match(other) == {"b": 6}
        assert index.match(keys) == {"b": 5}, "a share of what is learned"
        index.set_mode("b", "events")
        assert index.match(other) == {"b": 6}
        assert index.match(keys) == {}

    def test_a_request_that_began_before_the_feed_was_whole_ends_after_it(self, index):
        keys = fresh(10)
        placement = index.predict("b", keys[:8])
        index.set_mode("b", "events")
        index.first_token(placement)
        index.confirm(placement, 8, 0)
        index.predict("b", keys, after=placement)
        index.retract(placement)
        assert index.match(keys) == {"b": 10}

    def test_a_request_that_began_before_the_feed_died_ends_after_it(self, index):
        keys = fresh(10)
        placement = index.predict("a", keys[:8])
        index.set_mode("a", "learned")
        index.first_token(placement)
        index.confirm(placement, 8, 0)
        index.predict("a", keys, after=placement)
        index.retract(placement)
        assert index.match(keys) == {"a": 10}

    def test_the_size_of_its_cache_is_known_in_every_mode(self, index):
        index.resize("a", 1234)
        for mode in ("stale", "learned", "events", "learned"):
            index.set_mode("a", mode)
            assert index.capacity("a") == 1234

    def test_saying_so_again_changes_nothing(self, index):
        keys = fresh(4)
        index.predict("a", keys)
        index.set_mode("a", "events")
        index.predict("b", keys)
        index.set_mode("b", "learned")
        assert index.match(keys) == {"a": 4, "b": 4}


class TestStale:
    @pytest.fixture
    def keys(self, index) -> array:
        keys = fresh(10)
        store(index, "a", keys)
        index.set_mode("a", "stale")
        return keys

    def test_what_was_confirmed_still_counts(self, index, keys):
        assert (index.mode("a"), index.match(keys)) == ("stale", {"a": 10})

    def test_of_what_is_learned_a_share(self, index, keys):
        other = fresh(9, "other")
        index.predict("a", other)
        assert index.match(other) == {"a": 5}
        store(index, "a", other[:7])
        assert index.match(other) == {"a": 7}

    def test_R06_a_single_block_counts(self, index, keys):
        other = fresh(1, "other")
        index.predict("a", other)
        assert index.match(other) == {"a": 1}

    def test_E14_what_was_confirmed_is_given_up_when_the_replica_lacks_it_again_and_again(self, index, keys):
        index.confirm(index.predict("a", keys), 10, 0)
        assert index.confirmed_blocks("a") == 10
        index.confirm(index.predict("a", keys), 10, 9)  # a hit in between: one block is no evidence
        index.confirm(index.predict("a", keys), 10, 0)
        assert index.confirmed_blocks("a") == 10
        index.confirm(index.predict("a", keys), 10, 0)
        assert index.confirmed_blocks("a") == 0
        assert index.match(keys) == {"a": 5}, "the request itself has computed them"
