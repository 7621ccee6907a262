"""Names that cannot collide, and log entries that read back as they were written."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from proxy.shared.layout import (
    Changed,
    Followed,
    Forgotten,
    Names,
    Predicted,
    Record,
    Reported,
    Retracted,
    Unreadable,
    block_bytes,
    blocks_from,
    escape,
    fingerprint,
    handle_bytes,
    handles_from,
    pack,
    unescape,
    unpack,
)

anything = st.text(alphabet=st.characters(codec=None), max_size=20)  # lone surrogates too
awkward = st.one_of(anything, st.text(alphabet=":{}%/ar", max_size=8))
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
keys = st.lists(u64, max_size=20).map(lambda values: array("Q", values))
records = st.one_of(
    st.builds(Changed, awkward, awkward, st.booleans(), keys, keys),
    st.builds(Predicted, u64, awkward, keys),
    st.builds(Retracted, u64),
    st.builds(Reported, u64, u32, u32),
    st.builds(Forgotten, awkward),
    st.builds(Followed, awkward, awkward, st.sampled_from(["events", "stale", "learned"])),
)


@given(st.lists(records, max_size=5))
def test_an_entry_reads_back_as_it_was_written(written: list[Record]) -> None:
    assert list(unpack(b"".join(map(pack, written)))) == written


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_what_is_no_entry_is_unreadable_or_reads_as_records(
    written: list[Record], data: st.DataObject
) -> None:
    raw = bytearray(b"".join(map(pack, written)))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        read = list(unpack(cut))
    except Unreadable:
        return
    assert sum(len(pack(record)) for record in read) == len(cut)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(raw: bytes) -> None:
    try:
        list(unpack(raw))
    except Unreadable:
        pass


def test_the_keys_of_a_change_are_its_end() -> None:
    """A script reads them there."""
    record = Changed("r", "e", cleared=False, removed=array("Q", [1]), stored=array("Q", [2, 3]))
    assert pack(record).endswith(block_bytes(array("Q", [1, 2, 3])))
    assert block_bytes([1]) == b"\1\0\0\0\0\0\0\0"


@given(keys)
def test_blocks_read_back(some: array) -> None:
    assert blocks_from(block_bytes(some)) == some


@given(st.lists(st.tuples(u64, u64, st.integers(0, 255))))
def test_handles_read_back(some: list[tuple[int, int, int]]) -> None:
    raw = handle_bytes(some)
    assert list(handles_from(raw)) == some
    assert len(raw) == 17 * len(some)


def test_more_copies_than_a_byte_holds_are_fewer_copies() -> None:
    assert list(handles_from(handle_bytes([(1, 2, 1000)]))) == [(1, 2, 255)]


@pytest.mark.parametrize("read", [blocks_from, handles_from])
def test_half_a_key_is_unreadable(read) -> None:
    with pytest.raises(Unreadable):
        read(b"123")


@given(awkward)
def test_names_are_escaped_and_back(name: str) -> None:
    escaped = escape(name)
    assert not set(escaped) & set(":{} \x00")
    assert escaped.isascii()
    assert unescape(escaped.encode()) == name


@given(awkward, awkward, awkward, awkward)
def test_all_keys_of_a_pool_share_a_slot_and_no_two_are_equal(
    namespace: str, pool: str, replica: str, epoch: str
) -> None:
    names = Names(namespace, pool)
    keys = [
        *(names.meta, names.log, names.number, names.fence, names.replicas, names.load),
        *(names.rep(replica), names.own(replica), names.blocks(replica, epoch)),
        *(names.handles(replica, epoch), names.live(replica)),
    ]
    assert len(set(keys)) == len(keys)
    assert len({key_slot(key.encode()) for key in keys}) == 1


@given(st.lists(st.tuples(awkward, awkward, awkward, awkward), min_size=2, max_size=2, unique=True))
def test_different_names_make_different_keys(two: list[tuple[str, str, str, str]]) -> None:
    (a, b, c, d), (e, f, g, h) = two
    assert Names(a, b).blocks(c, d) != Names(e, f).blocks(g, h)


def test_a_fingerprint_tells_secrets_apart_and_nothing_of_them() -> None:
    secret = b"correct horse battery staple"
    assert fingerprint(secret) == fingerprint(secret)
    assert fingerprint(secret) != fingerprint(secret + b"\0")
    assert fingerprint(b"") != fingerprint(b"\0")
    assert len(fingerprint(secret)) == 16
    assert secret.hex()[:8] not in fingerprint(secret)
