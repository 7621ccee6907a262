"""The decoder against arbitrary bytes, and its short way against the long one."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.index.dialects import decode_any
from proxy.index.events import Batch, Cleared, Removed, Stored, decode
from tests.support.kv_events import CLEARED, LIVE, frames

names = st.one_of(st.integers(0, 2**64 - 1), st.integers(-(2**63), -1), st.binary(max_size=33))
extra_keys = st.lists(
    st.none() | st.lists(st.sampled_from(["s", "adapter", 3, ["image", 4]]), max_size=3), max_size=3
)
stores = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": st.lists(names, max_size=3),
        "token_ids": st.lists(st.integers(-1, 2**33), max_size=6),
        "block_size": st.integers(-1, 4),
    },
    optional={
        "parent_block_hash": st.none() | names,
        "lora_id": st.none() | st.integers(0, 2),
        "medium": st.none() | st.sampled_from(["GPU", "CPU"]),
        "lora_name": st.none() | st.just("adapter"),
        "extra_keys": st.none() | extra_keys,
        "group_idx": st.none() | st.integers(0, 2),
        "kv_cache_spec_kind": st.none() | st.just("full_attention"),
        "cache_salt": st.none() | st.just("t"),
    },
)
removals = st.fixed_dictionaries(
    {"type": st.just("BlockRemoved"), "block_hashes": st.lists(names, max_size=3)},
    optional={"medium": st.none() | st.just("CPU"), "group_idx": st.none() | st.integers(0, 2)},
)
anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary()
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
events = st.one_of(stores, removals, st.just(CLEARED), anything)
batches = st.tuples(st.floats() | anything, st.lists(events, max_size=4), st.none() | st.integers(0, 3))


def check(batch: Batch | None) -> None:
    """What is handed on is what it says, and everything is there to be keyed or is not claimed to be."""
    if batch is None:
        return
    assert batch.skipped >= 0
    for event in batch.events:
        if isinstance(event, Cleared):
            continue
        assert isinstance(event, Stored | Removed)
        assert all(type(each) is int and 0 <= each < 2**64 for each in event.hashes)
        assert isinstance(event.medium, str)
        if isinstance(event, Stored):
            assert event.parent is None or 0 <= event.parent < 2**64
            assert event.extra is None or len(event.extra) == len(event.hashes)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_batch_or_none(raw):
    check(decode(raw))


@given(st.sampled_from(LIVE), st.data())
@settings(max_examples=200)
def test_a_broken_message_is_a_batch_or_none(name, data):
    raw = bytearray(frames(name)[-1])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    check(decode(bytes(raw[: data.draw(st.integers(0, len(raw)))])))
    check(decode(bytes(raw)))


@given(batches)
@settings(max_examples=300)
def test_the_short_way_says_what_the_long_one_says(batch):
    raw = msgspec.msgpack.encode(batch)
    found = decode(raw)
    assert found is not None
    check(found)
    assert found == decode_any(raw)
    assert len(found.events) + found.skipped >= len(batch[1])
