"""Runs: how they grow, split and merge. Everything else about the tree is checked against a model."""

from array import array

from proxy.index.memory import MemoryIndex
from proxy.index.tree import Run


def keys(*values: int) -> array:
    return array("Q", values)


def test_common_finds_every_length():
    stored = Run(keys(*range(1, 33)), None)
    for length in range(1, 33):
        asked = keys(77, *range(1, length + 1), *range(101, 133 - length))
        assert stored.common(asked, 1) == length
        assert stored.common(asked[: length + 1], 1) == length


def test_a_chain_grows_in_place_until_it_branches():
    index = MemoryIndex()
    index.predict("a", keys(1, 2))
    index.predict("b", keys(1, 2, 3))
    assert index.runs() == 1
    index.predict("c", keys(1, 2, 4))
    assert index.runs() == 3
    index.predict("c", keys(1, 2, 4, 5))
    assert index.runs() == 3


def test_a_split_keeps_each_holders_order():
    """The lower half is evicted before the upper one, and both before what was used later."""
    index = MemoryIndex()
    index.resize("a", 7)
    index.predict("a", keys(1, 2, 3, 4))
    index.predict("a", keys(8, 9))
    index.predict("b", keys(1, 2, 5))
    index.predict("a", keys(10, 11, 12))
    assert index.match(keys(1, 2, 3, 4)) == {"a": 2, "b": 2}
    assert index.match(keys(8, 9)) == {"a": 2}
    index.predict("a", keys(20, 21, 22))
    assert index.match(keys(1, 2, 3, 4)) == {"b": 2}
    assert index.match(keys(8, 9)) == {"a": 1}


def test_a_split_is_undone_once_its_other_branch_is_gone():
    index = MemoryIndex()
    index.predict("a", keys(1, 2, 3, 4))
    index.retract(index.predict("a", keys(1, 2, 5)))
    assert index.runs() == 2
    index.predict("a", keys(1, 2, 3, 4))
    assert index.runs() == 1
    assert index.match(keys(1, 2, 3, 4)) == {"a": 4}


def test_a_merge_waits_while_another_holder_used_the_halves_at_different_times():
    index = MemoryIndex()
    for name in "ab":
        index.predict(name, keys(1, 2, 3, 4))
    index.predict("b", keys(1, 2))
    index.predict("b", keys(8))
    index.predict("a", keys(1, 2, 3, 4))
    assert index.runs() == 3
    index.resize("b", 3)
    assert index.match(keys(1, 2, 3, 4)) == {"a": 4, "b": 2}, "b used the lower half before the upper"
    index.resize("b", 2)
    assert index.match(keys(1, 2)) == {"a": 2, "b": 1}
    assert index.match(keys(8)) == {"b": 1}


def test_a_merge_waits_for_a_holder_of_the_upper_half_alone():
    index = MemoryIndex()
    index.predict("a", keys(1, 2, 3, 4))
    index.predict("b", keys(1, 2, 5))
    index.forget("b")
    index.predict("b", keys(1, 2))
    index.predict("a", keys(1, 2, 3, 4))
    assert index.match(keys(1, 2, 3, 4)) == {"a": 4, "b": 2}
