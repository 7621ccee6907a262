"""What engines publish, in every form, and what is made of what none would."""

import json
import tracemalloc

import msgspec
import pytest

from proxy.index.dialects import decode_any
from proxy.index.events import MOST_BYTES, Batch, Cleared, Removed, Stored, decode
from tests.support.kv_events import CAPTURED, CLEARED, LIVE, frames, payload, removed, stored

encode = msgspec.msgpack.encode
TWO = [1, 2, 3, 4, 5, 6, 7, 8]


def only(raw: bytes):
    batch = decode(raw)
    assert batch is not None
    assert batch.skipped == 0
    (event,) = batch.events
    return event


def in_maps(event: list) -> dict:
    names = {
        "BlockStored": [
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
        ],
        "BlockRemoved": ["block_hashes", "medium", "group_idx"],
        "AllBlocksCleared": [],
    }
    return {"type": event[0], **dict(zip(names[event[0]], event[1:], strict=False))}


@pytest.mark.parametrize("name", LIVE)
def test_what_vllm_published_is_read_to_its_last_field(name):
    published, events, rank = json.loads((CAPTURED / f"{name}.json").read_text())
    batch = decode(frames(name)[-1])
    assert batch is not None
    assert (batch.published, batch.rank, batch.skipped) == (published, rank, 0)
    assert len(batch.events) == len(events)
    for event, said in zip(batch.events, events, strict=True):
        if said["type"] == "BlockStored":
            assert isinstance(event, Stored)
            assert event.hashes == said["block_hashes"]
            assert event.parent == said["parent_block_hash"]
            assert event.tokens == said["token_ids"]
            assert (event.block_size, event.medium, event.group) == (32, "GPU", 0)
            assert event.kind == "full_attention"
            salts = {"006_cache_salt": "A", "007_cache_salt": "B"}
            assert (event.lora, event.salt, event.extra) == (None, salts.get(name), None)
        elif said["type"] == "BlockRemoved":
            assert event == Removed(said["block_hashes"], "GPU", 0)
        else:
            assert event == Cleared()
    assert decode_any(frames(name)[-1]) == batch


@pytest.mark.parametrize("name", ["replay_dealer_0", "replay_dealer_1", "replay_dealer_2"])
def test_a_replay_has_the_payloads_that_were_published(name):
    replayed = frames(name)
    assert replayed[-1] == frames(LIVE[int.from_bytes(replayed[-2], "big")])[-1]


def test_whole_digests_are_the_integers_of_their_ends():
    first = only(frames("byteshash_0")[-1])
    assert len(first.hashes) == 5
    assert all(0 <= each < 2**64 for each in first.hashes)
    assert decode(frames("byteshash_1")[-1]).events[0].hashes != first.hashes
    digest = bytes(range(32))
    assert only(payload(removed(digest))).hashes == [int.from_bytes(digest[-8:], "big")]
    assert only(payload(stored([digest], [1, 2, 3, 4], parent=digest))).parent == 0x18191A1B1C1D1E1F


def test_signed_hashes_are_unsigned_here():
    assert only(payload(removed(-1, 5))).hashes == [2**64 - 1, 5]
    event = only(payload(stored([-(2**63), 7], TWO, parent=-2)))
    assert (event.hashes, event.parent) == ([2**63, 7], 2**64 - 2)


@pytest.mark.parametrize("inner", ["array", "map"])
@pytest.mark.parametrize("outer", ["array", "map", "map, as SGLang names the rank"])
def test_arrays_and_maps_say_the_same_at_both_levels(outer, inner):
    events = [
        ["BlockRemoved", [9], "GPU"],
        ["BlockStored", [1, 2], 9, TWO, 4, None, "GPU", "adapter", [["adapter"], None], 1, "mla_attention"],
        ["AllBlocksCleared"],
    ]
    sent = events if inner == "array" else [in_maps(event) for event in events]
    if outer == "array":
        raw = encode([1.5, sent, 3])
    else:
        raw = encode(
            {"ts": 1.5, "events": sent, "attn_dp_rank" if "SGLang" in outer else "data_parallel_rank": 3}
        )
    assert decode(raw) == Batch(
        1.5,
        [
            Removed([9]),
            Stored([1, 2], 9, TWO, 4, "adapter", None, None, "GPU", 1, "mla_attention"),
            Cleared(),
        ],
        3,
    )


def test_the_oldest_events_lack_what_came_later():
    raw = encode([1, [["BlockStored", [1, 2], None, TWO, 4, None], ["BlockRemoved", [1]]]])
    assert decode(raw) == Batch(1.0, [Stored([1, 2], None, TWO, 4), Removed([1])])


def test_fields_left_out_of_a_map_are_at_their_defaults():
    raw = payload({"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2, 3, 4], "block_size": 4})
    assert only(raw) == Stored([1], None, [1, 2, 3, 4], 4)


def test_what_is_new_in_an_event_is_passed_over():
    event = stored([1], [1, 2, 3, 4], locality={"node": [1, 2]}, ownership="local", session_id="s")
    assert only(payload(event)) == Stored([1], None, [1, 2, 3, 4], 4)
    long = [
        "BlockStored",
        [1],
        None,
        [1, 2, 3, 4],
        4,
        None,
        "GPU",
        None,
        None,
        0,
        "full_attention",
        None,
        {"a": 1},
    ]
    assert only(payload(long)) == Stored([1], None, [1, 2, 3, 4], 4, group=0, kind="full_attention")
    assert only(encode([1.5, [CLEARED], 0, "and more"])) == Cleared()


def test_sglangs_map_in_the_place_of_the_adapter_is_a_salt():
    raw = payload(["BlockStored", [-1], None, TWO, 8, None, "GPU", {"cache_salt": "s", "session_id": "t"}])
    assert only(raw) == Stored([2**64 - 1], None, TWO, 8, salt="s")
    raw = payload(["BlockStored", [-1], None, TWO, 8, None, "GPU", {"session_id": "t"}])
    assert only(raw) == Stored([2**64 - 1], None, TWO, 8)
    assert only(payload(stored([1], TWO, size=8, cache_salt="s"))) == Stored([1], None, TWO, 8, salt="s")


def test_a_store_off_the_gpu_may_have_no_tokens():
    event = only(payload(stored([1, 2], [], size=0, medium="CPU")))
    assert (event.tokens, event.block_size, event.medium) == ([], 0, "CPU")


def test_a_medium_that_is_not_named_is_the_gpu():
    assert only(payload(removed(1, medium=None))) == Removed([1], "GPU")
    assert only(payload(stored([1], TWO, size=8, medium=None))).medium == "GPU"


@pytest.mark.parametrize(
    ("given", "salt", "extra"),
    [
        ([None, None], None, None),
        ([[], []], None, None),
        ([["s"], None], "s", None),
        ([["adapter", "s"], ["adapter"]], "s", None),
        ([["adapter"], ["adapter"]], None, None),
        ([None, ["image"]], None, [None, ["image"]]),
        ([["image", "s"], None], None, [["image", "s"], None]),
        ([[["image", 3]], [["image", -1]]], None, [[["image", 3]], [["image", -1]]]),
        ([["s"], ["image"]], "s", [None, ["image"]]),
        ([["s"]], None, [[["s"]]] * 2),
    ],
)
def test_extra_keys_are_a_salt_an_adapter_or_what_cannot_be_keyed(given, salt, extra):
    sent = stored([1, 2], TWO, extra_keys=given, lora_name="adapter", lora_id=1)
    event = only(payload(sent))
    assert (event.lora, event.salt, event.extra) == ("adapter", salt, extra)
    assert decode_any(payload(sent)).events == [event]


def test_a_salt_begins_a_prompt():
    assert only(payload(stored([1, 2], TWO, parent=5, extra_keys=[["s"], None]))).extra == [["s"], None]


@pytest.mark.parametrize("odd", [3, {"a": 1}, [3], [b"digest", None], [[b"digest"], None], [{"a": 1}, None]])
def test_blocks_whose_extra_keys_are_not_understood_are_kept_apart(odd):
    event = only(payload(stored([1, 2], TWO, extra_keys=odd)))
    assert event.hashes == [1, 2]
    assert all(event.extra)


@pytest.mark.parametrize("number", [1, "uuid"])
def test_an_adapter_without_a_name_keeps_its_blocks_apart(number):
    event = only(payload(stored([1, 2], TWO, lora_id=number)))
    assert event.lora is None
    assert all(event.extra)
    assert all(only(payload(["BlockStored", [1, 2], None, TWO, 4, number])).extra)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "BlockEvicted", "block_hashes": [1]},
        ["BlockMoved", [1], "CPU"],
        {"block_hashes": [1]},
        {},
        [],
        [3],
        None,
        "AllBlocksCleared",
        7,
        stored(["name"], TWO),
        stored([1], None),
        stored([1], [1.5]),
        stored([1], TWO, parent="name"),
        stored([1], TWO, group_idx="0"),
        {"type": "BlockStored", "block_hashes": [1]},
        ["BlockStored", [1], None],
        removed(1, medium=7),
        msgspec.Raw(b"\xd6\xff\x00\x00\x00\x00"),
        msgspec.Raw(b"\x81\xa4type\xab\xffBlockStore"),
    ],
)
def test_one_bad_event_never_costs_its_batch(bad):
    for events in ([stored([1], TWO, size=8), bad, removed(2)], [bad, ["BlockRemoved", [1]], bad]):
        batch = decode(payload(*events))
        assert batch.skipped == events.count(bad)
        assert len(batch.events) == len(events) - batch.skipped
        assert batch.rank == 0


def test_a_removal_counts_as_far_as_it_can_be_read():
    batch = decode(payload(removed(1, "name", None, -1, b"\x07", 2.5)))
    assert batch.events == [Removed([1, 2**64 - 1, 7])]
    assert batch.skipped == 1


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None, "now"])
def test_a_time_that_is_none_is_zero(odd):
    batch = decode(encode([odd, [CLEARED], 2]))
    assert (batch.published, batch.rank, batch.events) == (0.0, 2, [Cleared()])


@pytest.mark.parametrize("odd", ["0", 1.5, [], {}])
def test_a_rank_that_is_none_is_unknown(odd):
    assert decode(encode([1.5, [CLEARED], odd])) == Batch(1.5, [Cleared()])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x90",
        b"\x80",
        b"\xc0",
        b"\xc1",
        b"BlockStored",
        encode([1.5]),
        encode([1.5, None]),
        encode([1.5, {}]),
        encode({"ts": 1.5}),
        encode([1.5, [CLEARED], 0])[:-3],
        encode([1.5, [CLEARED], 0]) + b"\x00",
        encode([1.5, [CLEARED], 0]) + bytes(MOST_BYTES),
        b"\x91" * 100_000,
        b"\x93\xca\x00\x00\x00\x00" + b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
    ],
)
def test_what_is_no_batch_is_none(raw):
    assert decode(raw) is None


HUGE = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"]
MANY = 1 << 20


@pytest.mark.parametrize(
    "raw",
    [
        *HUGE,
        *(b"\x93\x01" + each for each in HUGE),
        *(b"\x93\x01\x91" + each for each in HUGE),
        *(b"\x93\x01\x91\x82\xa4type\xacBlockRemoved\xacblock_hashes" + each for each in HUGE),
        b"\x93\x01\xdd" + MANY.to_bytes(4, "big") + b"\x90" * MANY + b"\x00",
        b"\x93\x01\x91\xdd" + MANY.to_bytes(4, "big") + b"\x90" * MANY + b"\x00",
        encode([1, [stored([1], TWO, size=8, extra_keys=[[]] * MANY)], 0]),
        encode([1, [stored([1], TWO, size=8, junk=[{}] * MANY)], 0]),
        encode([1, [stored([1], TWO, size=8, lora_name=[{}] * MANY)], 0]),
        encode([1, [removed(*[b""] * MANY)], 0]),
        encode([1, [{"type": "BlockRemoved", **{str(each): 0 for each in range(MANY // 8)}}], 0]),
    ],
    ids=range(23),
)
def test_memory_is_bounded_by_what_came(raw):
    tracemalloc.start()
    try:
        decode(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000 + 16 * len(raw)
