"""Merging batches and cutting them into calls changes nothing of what they do."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from proxy.index.handles import Delta
from proxy.shared.pending import MOST, Call, Pending, merged

few = st.integers(0, 12)
keys = st.lists(few, max_size=8, unique=True).map(lambda values: array("Q", values))
handles = st.lists(st.tuples(few, few, st.integers(1, 3)), max_size=8, unique_by=lambda each: each[0])
deltas = st.builds(
    Delta,
    cleared=st.sampled_from([False, False, False, True]),
    removed=keys,
    stored=keys,
    handles_gone=st.lists(few, max_size=8),
    handles=handles,
)
Held = tuple[set[int], dict[int, tuple[int, int]]]


def apply(change: Delta | Call, held: Held) -> None:
    blocks, table = held
    if change.begin if isinstance(change, Call) else change.cleared:
        blocks.clear()
        table.clear()
    blocks.difference_update(change.removed)
    blocks.update(change.stored)
    for handle in change.gone if isinstance(change, Call) else change.handles_gone:
        table.pop(handle, None)
    table.update({handle: (key, copies) for handle, key, copies in change.handles})


@given(st.lists(deltas, min_size=1, max_size=8), st.sets(few))
def test_merged_batches_do_what_they_did_one_after_the_other(batches: list[Delta], start: set[int]) -> None:
    expected: Held = (set(start), {each: (each, 1) for each in start})
    found: Held = (set(start), {each: (each, 1) for each in start})
    for batch in batches:
        apply(batch, expected)
    apply(merged(batches), found)
    assert found == expected


@given(st.lists(deltas, min_size=1, max_size=8), st.integers(1, 30), st.booleans())
def test_parts_and_calls_do_what_the_batches_did(batches: list[Delta], most: int, begin: bool) -> None:
    expected: Held = (set(range(6)), {})
    found: Held = (set(range(6)), {})
    if begin:
        expected[0].clear()
    pending = Pending("e", begin=begin)
    for seq, batch in enumerate(batches):
        apply(batch, expected)
        pending.add(seq, batch)
    counted, last = 0, -1
    while pending.count:
        part = pending.take(most)
        assert part.seq > last
        last = part.seq
        counted += part.batches
        calls = list(part.calls())
        assert [call.last for call in calls] == [False] * (len(calls) - 1) + [True]
        for call in calls:
            apply(call, found)
    assert found == expected
    assert (counted, last) == (len(batches), len(batches) - 1)
    assert pending.size == 0


def test_a_call_carries_no_more_than_it_may() -> None:
    pending = Pending("e", begin=True)
    stored = array("Q", range(2300))
    gone = list(range(5000, 5900))
    pending.add(
        7,
        Delta(
            cleared=False,
            removed=array("Q", range(9000, 9700)),
            stored=stored,
            handles_gone=gone,
            handles=[(key, key, 1) for key in stored],
        ),
    )
    calls = list(pending.take().calls())
    assert [call.begin for call in calls] == [True, False, False, False]
    for call in calls:
        assert len(call.removed) + len(call.stored) <= MOST
        assert len(call.gone) + len(call.handles) <= MOST
    held: Held = (set(), {})
    for call in calls:
        apply(call, held)
    assert held == (set(stored), {key: (key, 1) for key in stored})


def test_an_empty_batch_is_one_call_that_moves_the_sequence() -> None:
    pending = Pending("e", begin=False)
    pending.add(3, Delta())
    (call,) = pending.take().calls()
    assert call.last
    assert not call.begin


@given(st.lists(deltas, min_size=1, max_size=8))
def test_merging_what_waits_keeps_count_and_end(batches: list[Delta]) -> None:
    pending = Pending("e", begin=False)
    for seq, batch in enumerate(batches):
        pending.add(seq, batch)
    whole = pending.whole
    pending.merge()
    assert pending.whole == whole
    part = pending.take()
    assert (part.batches, part.seq) == (len(batches), len(batches) - 1)
    assert pending.count == 0
