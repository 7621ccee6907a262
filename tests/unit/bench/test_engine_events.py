"""KV events as engines encode them: vLLM's against captured frames byte for byte, the others by shape."""

import struct
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine_events import DIALECTS, SGLANG_STORE, Change, Encoder, Source
from bench.engine_model import EngineModel, EngineSpec

CAPTURES = Path(__file__).parents[2] / "data" / "kv_events"
"""Frames of a real vLLM 0.32: a count, then each frame behind its length, all 32-bit big-endian."""


def payload(name):
    """The third frame of a captured live message."""
    raw, at, frames = (CAPTURES / f"{name}.bin").read_bytes(), 4, []
    for _ in range(struct.unpack(">I", raw[:4])[0]):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        frames.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return frames[2]


def changes_of(events, block_size):
    """What the engine's cache must have done for these events; one change a store."""
    removed, changes = [], []
    for event in events:
        if event["type"] == "BlockRemoved":
            removed += event["block_hashes"]
        elif event["type"] == "BlockStored":
            parent = event["parent_block_hash"]
            before = [] if parent is None else [parent]
            keys = [*before, *event["block_hashes"]]
            tokens = array("I", [0] * block_size * len(before) + event["token_ids"])
            salt = event["extra_keys"][0] and event["extra_keys"][0][0]
            changes.append(Change(removed, keys, len(before), len(keys), Source(tokens, salt)))
            removed = []
    assert not removed
    return changes


@pytest.mark.parametrize(
    "name", ["003_extend_prefix", "006_cache_salt", "015_evict_many", "020_reset_prefix_cache"]
)
def test_vllms_batches_are_those_of_the_real_engine_byte_for_byte(name):
    captured = payload(name)
    published, events, _ = msgspec.msgpack.decode(captured)
    cleared = events[0]["type"] == "AllBlocksCleared"

    assert Encoder("vllm", 32).batch(published, changes_of(events, 32), cleared=cleared) == captured


def test_hashes_in_bytes_have_the_real_engines_form_and_the_integers_in_them():
    _, (real,), _ = msgspec.msgpack.decode(payload("byteshash_1"))
    (ours,) = events("vllm", change(), bytes_hashes=True)

    assert list(real) == list(ours)
    for event in (real, ours):
        assert {len(one) for one in [*event["block_hashes"], event["parent_block_hash"]]} == {32}
    assert [int.from_bytes(one[-8:], "big") for one in ours["block_hashes"]] == KEYS[1:3]


KEYS = [1, (1 << 64) - 1, 1 << 63, 77]


def change(removed=(), first=1, last=3, salt=None, lora=None):
    return Change(removed, KEYS, first, last, Source(array("I", range(8)), salt, lora))


def events(dialect, *changes, cleared=False, **options):
    """The events of one batch, decoded; blocks of two tokens."""
    whole = msgspec.msgpack.decode(Encoder(dialect, 2, **options).batch(1.5, changes, cleared=cleared))
    assert (whole[0], whole[2], len(whole)) == (1.5, 0, 3)
    return whole[1]


def test_older_vllms_events_are_positional():
    assert events("vllm-arrays", change([5, 6], salt="S"), cleared=True) == [
        ["AllBlocksCleared"],
        ["BlockRemoved", [5], "GPU"],
        ["BlockRemoved", [6], "GPU"],
        ["BlockStored", KEYS[1:3], 1, [2, 3, 4, 5], 2, None, "GPU", None, [None, None]],
    ]
    ((*_, extra),) = events("vllm-arrays", change(first=0, salt="S"))
    assert extra == [["S"], None, None]


def test_sglangs_hashes_are_signed_and_its_removals_one_event():
    signed = [-1, -(1 << 63)]
    assert events("sglang-arrays", change([1 << 63, 6]), cleared=True) == [
        ["AllBlocksCleared"],
        ["BlockRemoved", [-(1 << 63), 6], "GPU"],
        ["BlockStored", signed, 1, [2, 3, 4, 5], 2, None, "GPU"],
    ]
    assert events("sglang-maps", change([6]), cleared=True) == [
        {"type": "AllBlocksCleared"},
        {"type": "BlockRemoved", "block_hashes": [6], "medium": "GPU"},
        {
            "type": "BlockStored",
            "block_hashes": signed,
            "parent_block_hash": 1,
            "token_ids": [2, 3, 4, 5],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
        },
    ]


def test_sglang_has_the_salt_in_every_event_of_its_chain():
    assert events("sglang-arrays", change(salt="S"))[0][7:] == [{"cache_salt": "S"}]
    assert events("sglang-maps", change(salt="S"))[0]["cache_salt"] == "S"


def test_vllm_has_the_adapter_in_every_block_and_the_salt_in_the_first():
    (event,) = events("vllm", change(first=0, lora="L", salt="S"))
    assert event["extra_keys"] == [["L", "S"], ["L"], ["L"]]
    assert (event["lora_name"], event["lora_id"]) == ("L", 1)


def test_sglang_tells_an_adapters_blocks_as_the_base_models_and_so_removes_them():
    encoder = Encoder("sglang-maps", 2)

    def batch(*changes, **options):
        return msgspec.msgpack.decode(encoder.batch(0.0, changes, **options))[1]

    source = Source(array("I", range(8)), lora="L", base_keys=[11, 12, 13, 14])
    (event,) = batch(Change((), KEYS, 1, 3, source))
    assert (event["block_hashes"], event["parent_block_hash"], event["lora_id"]) == ([12, 13], 11, None)
    (event,) = batch(Change(KEYS[2:0:-1], KEYS, 0, 0, source))
    assert event["block_hashes"] == [13, 12]
    batch(Change((), KEYS, 1, 3, source), cleared=True)
    batch(cleared=True)
    (event,) = batch(Change([1], KEYS, 0, 0, source))
    assert event["block_hashes"] == [1]
    assert not encoder._shared


def test_sglang_stores_at_most_64_hashes_an_event():
    keys = list(range(1, 2 * SGLANG_STORE + 2))
    whole = Change((), keys, 0, len(keys), Source(array("I", range(2 * len(keys)))))
    stores = events("sglang-maps", whole)

    assert [len(event["block_hashes"]) for event in stores] == [64, 64, 1]
    assert [event["parent_block_hash"] for event in stores] == [None, keys[63], keys[127]]
    assert [token for event in stores for token in event["token_ids"]] == list(range(2 * len(keys)))


@pytest.mark.parametrize(("dialect", "options"), [("trt", {}), ("sglang-maps", {"bytes_hashes": True})])
def test_what_no_engine_speaks_is_refused(dialect, options):
    with pytest.raises(ValueError):
        Encoder(dialect, 2, **options)


# Prompts as paths in a small tree, so that they share beginnings; a block's key is its path.
paths = st.lists(st.integers(0, 1), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(paths, st.integers(0, 12), st.floats(0, 0.05)), min_size=1, max_size=12),
    blocks=st.integers(8, 14),
    dialect=st.sampled_from(DIALECTS),
)
def test_whoever_follows_the_changes_knows_what_is_cached(requests, blocks, dialect):
    spec = EngineSpec(
        cache_tokens=4 * blocks,
        block_size=4,
        prefill_tokens_per_s=1e4,
        step_s=0.01,
        step_per_sequence_s=0.0,
        max_seqs=2,
        max_batched_tokens=10,
    )
    encoder, known, order = Encoder(dialect, 4), set(), {"BlockStored": 0, "BlockRemoved": 0}

    def follow(changes):
        for change in changes:
            assert known.issuperset(change.removed), "only what is known is removed"
            known.difference_update(change.removed)
            new = change.keys[change.first : change.last]
            assert not known & set(new), "nothing is stored twice"
            assert change.first == 0 or change.keys[change.first - 1] in known, "its parent is known"
            known.update(new)
        for event in msgspec.msgpack.decode(encoder.batch(0.0, changes))[1]:
            order[event["type"] if isinstance(event, dict) else event[0]] += 1

    model, now = EngineModel(spec, changed=follow), 0.0
    for number, (path, output, pause) in enumerate(requests):
        now += pause
        model.advance(now)
        keys = [hash(tuple(path[: end + 1])) & (1 << 64) - 1 for end in range(len(path))]
        model.submit(now, str(number), keys, 4 * len(path), output, Source(array("I", range(4 * len(path)))))
    model.advance(1e6)
    assert known == set(model.cache._evictable)
    assert order["BlockStored"] >= 1
    assert model.reset_cache()
