"""What every index does, whatever keeps its entries. A new index joins by adding its factory below.

LEARNING indexes know of a replica's cache only what placements and reports tell; they must bound it by its
size and correct it by reports. FED ones are told by the replica's events, and leave that to them.
"""

from array import array
from collections.abc import Callable

import pytest
import xxhash

from proxy.index.base import PrefixIndex
from proxy.index.memory import MemoryIndex
from proxy.index.truth import Mode, TrueIndex


def true_index(mode: Mode) -> TrueIndex:
    index = TrueIndex(MemoryIndex(), clock=lambda: 0.0)
    for name in ("a", "b", "c", "d", "e", "ghost"):
        index.set_mode(name, mode)
    return index


LEARNING: dict[str, Callable[[], PrefixIndex]] = {
    "memory": MemoryIndex,
    "true, learned": lambda: true_index("learned"),
}
FED: dict[str, Callable[[], PrefixIndex]] = {"true, events": lambda: true_index("events")}


@pytest.fixture(params=[*LEARNING, *FED])
def make(request) -> Callable[[], PrefixIndex]:
    return (LEARNING | FED)[request.param]


@pytest.fixture
def index(make) -> PrefixIndex:
    return make()


@pytest.fixture(params=LEARNING)
def learning(request) -> PrefixIndex:
    return LEARNING[request.param]()


def chain(*blocks: object, seed: int = 0) -> array:
    """Chained keys of the blocks, as the keyer makes them: each seeds the next."""
    keys = array("Q")
    for block in blocks:
        seed = xxhash.xxh3_64_intdigest(repr(block).encode(), seed=seed)
        keys.append(seed)
    return keys


class TestMatch:
    def test_an_empty_index_matches_nothing(self, index):
        assert index.match(chain(1, 2, 3)) == {}

    def test_what_was_predicted_is_matched(self, index):
        index.predict("a", chain(*range(5)))
        assert index.match(chain(*range(5))) == {"a": 5}

    def test_prefix_property_the_match_is_the_common_prefix_in_both_directions(self, index):
        index.predict("a", chain(*range(10)))
        for length in range(1, 10):
            assert index.match(chain(*range(length))) == {"a": length}
            assert index.match(chain(*range(length), "other", *range(length + 1, 10))) == {"a": length}
        assert index.match(chain(*range(20))) == {"a": 10}

    def test_T12_a_block_from_the_middle_of_a_prompt_never_matches(self, index):
        x, y = ["x0", "x1", "x2"], ["y0", "y1"]
        index.predict("a", chain(*x))
        index.predict("b", chain(*y))
        assert index.match(chain(*y, *x)) == {"b": len(y)}
        assert index.match(chain(*x, *y)) == {"a": len(x)}

    def test_T12_keys_from_the_middle_of_a_stored_chain_are_no_prefix(self, learning):
        """No prompt has such keys, as each stands for all before it: a table without order may match them."""
        keys = chain(*range(6))
        learning.predict("a", keys)
        assert learning.match(keys[3:]) == {}

    def test_T12_equal_blocks_at_other_positions_are_other_blocks(self, index):
        index.predict("a", chain("same", 1, 2, 3))
        assert index.match(chain(1, 2, 3, "same")) == {}
        index.predict("b", chain("same", "same", "same"))
        assert index.match(chain("same", "same")) == {"a": 1, "b": 2}

    def test_each_replica_has_its_own_depth(self, index):
        system = ["s"] * 4
        index.predict("a", chain(*system, "p", "q"))
        index.predict("b", chain(*system, "p"))
        index.predict("c", chain(*system))
        index.predict("d", chain("s"))
        index.predict("e", chain("t"))
        assert index.match(chain(*system, "p", "q", "r")) == {"a": 6, "b": 5, "c": 4, "d": 1}

    def test_the_order_of_predictions_does_not_matter(self, index, make):
        prompts = [("a", (1, 2, 3)), ("b", (1, 2)), ("a", (1, 9)), ("c", (1, 2, 3, 4, 5)), ("b", (7,))]
        other = make()
        for replica, blocks in prompts:
            index.predict(replica, chain(*blocks))
        for replica, blocks in reversed(prompts):
            other.predict(replica, chain(*blocks))
        for blocks in [(1, 2, 3, 4, 5, 6), (1, 9, 9), (1,), (7, 7), (8,)]:
            assert index.match(chain(*blocks)) == other.match(chain(*blocks))
        assert index.size() == other.size() == 7

    def test_matching_changes_nothing(self, index):
        index.predict("a", chain(1, 2, 3))
        before = (index.size(), index.blocks("a"))
        for _ in range(3):
            assert index.match(chain(1, 2, 4)) == {"a": 2}
        assert (index.size(), index.blocks("a")) == before

    def test_no_keys(self, index):
        assert index.match(array("Q")) == {}
        placement = index.predict("a", array("Q"))
        index.confirm(placement, 0, 0)
        index.retract(placement)
        assert (index.size(), index.blocks("a")) == (0, 0)

    def test_a_huge_prompt(self, index):
        keys = chain(*range(50_000))
        index.predict("a", keys)
        index.predict("b", keys[:30_000])
        assert index.match(keys) == {"a": 50_000, "b": 30_000}
        assert index.size() == 50_000

    def test_R06_no_least_length_a_single_block_counts(self, index):
        for turn in (1, 2, 3):
            assert index.match(chain(*range(turn))) == ({"a": turn - 1} if turn > 1 else {})
            index.predict("a", chain(*range(turn)))

    def test_the_callers_array_is_not_kept(self, index):
        keys = chain(1, 2, 3)
        index.predict("a", keys)
        index.predict("a", chain(1, 2, 3, 4))
        assert keys == chain(1, 2, 3)


class TestCounts:
    def test_blocks_are_counted_per_replica_and_once_over_all(self, index):
        index.predict("a", chain(1, 2, 3))
        index.predict("b", chain(1, 2, 4))
        index.predict("b", chain(1, 2, 4))
        assert (index.blocks("a"), index.blocks("b"), index.size()) == (3, 3, 4)
        assert index.blocks("nobody") == 0

    def test_a_replica_never_holds_more_than_its_capacity(self, index):
        index.resize("a", 10)
        for prompt in range(50):
            index.predict("a", chain(*[prompt] * 4))
            index.predict("b", chain(*[prompt] * 4))
            assert index.blocks("a") <= index.capacity("a") == 10
        assert index.blocks("b") == 200
        assert index.match(chain(*[49] * 4)) == {"a": 4, "b": 4}
        assert index.match(chain(*[0] * 4)) == {"b": 4}

    def test_a_prompt_larger_than_the_cache_keeps_its_head(self, index):
        index.resize("a", 10)
        index.predict("a", chain(*range(25)))
        assert index.match(chain(*range(25))) == {"a": 10}

    def test_a_smaller_cache_takes_effect_at_once(self, learning):
        learning.predict("a", chain(*range(100)))
        learning.resize("a", 30)
        assert learning.match(chain(*range(100))) == {"a": 30}

    @pytest.mark.parametrize("blocks", [0, -1])
    def test_a_cache_without_blocks_is_refused(self, index, blocks):
        with pytest.raises(ValueError, match="at least 1 block"):
            index.resize("a", blocks)


class TestRetract:
    def test_a_failed_request_leaves_nothing(self, index):
        index.retract(index.predict("a", chain(1, 2, 3)))
        assert index.match(chain(1, 2, 3)) == {}
        assert index.size() == 0

    def test_what_was_held_before_stays(self, index):
        index.predict("a", chain(1, 2))
        index.predict("b", chain(1, 2, 3, 4))
        index.retract(index.predict("a", chain(1, 2, 3, 4, 5)))
        assert index.match(chain(1, 2, 3, 4, 5)) == {"a": 2, "b": 4}

    def test_what_a_later_request_uses_too_stays(self, index):
        first = index.predict("a", chain(1, 2, 3, 4))
        index.predict("a", chain(1, 2, 9))
        index.retract(first)
        assert index.match(chain(1, 2, 3, 4)) == {"a": 2}
        assert index.match(chain(1, 2, 9)) == {"a": 3}

    def test_twice_is_once(self, index):
        index.predict("a", chain(1))
        placement = index.predict("a", chain(1, 2, 3))
        index.retract(placement)
        index.predict("a", chain(1, 2, 3))
        index.retract(placement)
        assert index.match(chain(1, 2, 3)) == {"a": 3}


class TestConfirm:
    @pytest.mark.parametrize(("predicted", "reported"), [(0, 0), (0, 4), (3, 4), (4, 3), (4, 0), (0, 9)])
    def test_the_requests_own_blocks_stay_whatever_was_reported(self, index, predicted, reported):
        index.predict("a", chain(1, 2, 3, 4))
        placement = index.predict("a", chain(1, 2, 3, 4, 5))
        index.confirm(placement, predicted, reported)
        assert index.match(chain(1, 2, 3, 4, 5)) == {"a": 5}

    def test_R10_one_block_of_difference_is_no_evidence(self, index):
        """A hit never counts the last token, and rounding to blocks may cost another one."""
        index.predict("a", chain("old", 1, 2, 3))
        for _ in range(20):
            index.predict("a", chain(*range(40)))
            index.confirm(index.predict("a", chain(*range(40))), 39, 38)
        assert index.match(chain("old", 1, 2, 3)) == {"a": 4}

    def test_E14_a_replica_that_lost_everything_is_not_believed_for_long(self, learning):
        conversations = [chain(number, *range(9)) for number in range(40)]
        for keys in conversations:
            learning.predict("a", keys)
            learning.predict("b", keys)
        for keys in conversations[-3:]:  # the most recently used: an LRU would have dropped these last
            learning.confirm(learning.predict("a", keys), 9, 0)
        assert [learning.match(keys).get("a", 0) for keys in conversations] == [0] * 37 + [10] * 3
        assert all(learning.match(keys)["b"] == 10 for keys in conversations)


class TestFirstToken:
    def test_a_prediction_stays_when_its_first_token_comes(self, index):
        placement = index.predict("a", chain(1, 2, 3))
        index.first_token(placement, 0.5)
        assert index.match(chain(1, 2, 3)) == {"a": 3}

    def test_what_has_failed_before_is_not_brought_back(self, index):
        placement = index.predict("a", chain(1, 2, 3))
        index.retract(placement)
        index.first_token(placement)
        assert index.match(chain(1, 2, 3)) == {}


class TestForget:
    def test_a_forgotten_replica_is_gone_at_once(self, index):
        index.resize("a", 7)
        index.predict("a", chain(1, 2, 3))
        index.predict("b", chain(1, 2))
        index.forget("a")
        assert index.match(chain(1, 2, 3)) == {"b": 2}
        assert (index.blocks("a"), index.size()) == (0, 2)
        assert index.capacity("a") == index.capacity("never seen")

    def test_an_unknown_name_is_no_error(self, index):
        index.forget("nobody")
        assert index.match(chain(1)) == {}

    def test_R07_no_ghost_comes_back_with_an_answer_that_ends_later(self, index):
        placement = index.predict("ghost", chain(1, 2, 3))
        index.predict("b", chain(1))
        index.forget("ghost")
        index.confirm(placement, 0, 3)
        index.predict("ghost", chain(1, 2, 3, 4), after=placement)
        index.retract(placement)
        assert index.match(chain(1, 2, 3, 4)) == {"b": 1}
        assert index.blocks("ghost") == 0

    def test_D03_a_new_replica_of_the_same_name_inherits_nothing(self, index):
        old = index.predict("a", chain(1, 2, 3))
        index.forget("a")
        index.predict("a", chain("new", 1, 2))
        index.predict("a", chain(1, 2))
        assert index.match(chain(1, 2, 3)) == {"a": 2}
        # What the old one's requests still have to say does not touch the new one.
        index.predict("a", chain(1, 2, 3, 4), after=old)
        index.confirm(old, 3, 0)
        index.retract(old)
        assert index.match(chain(1, 2, 3)) == {"a": 2}
        assert index.match(chain("new", 1, 2)) == {"a": 3}

    def test_forgetting_all_leaves_nothing(self, index):
        for name in "abc":
            for prompt in range(20):
                index.predict(name, chain(prompt % 3, prompt, name))
        for name in "abc":
            index.forget(name)
        assert index.size() == 0


class TestIsolation:
    def test_one_replicas_losses_are_not_anothers(self, index):
        for name in "ab":
            index.resize(name, 20)
            for prompt in range(5):
                index.predict(name, chain(prompt, 1, 2))
        for prompt in range(100):
            index.predict("a", chain("burst", prompt, 1))
        assert [index.match(chain(prompt, 1, 2)) for prompt in range(5)] == [{"b": 3}] * 5

    def test_other_replicas_in_the_same_chain_keep_theirs(self, learning):
        keys = chain(*range(8))
        learning.predict("a", keys)
        learning.predict("b", keys[:5])
        learning.retract(learning.predict("c", keys))
        learning.resize("a", 3)
        assert learning.match(keys) == {"a": 3, "b": 5}
        learning.forget("b")
        assert learning.match(keys) == {"a": 3}
        assert learning.size() == 3
