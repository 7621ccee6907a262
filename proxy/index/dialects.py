"""Event payloads in every form that an engine has used, decoded event by event.

    batch    [published, events, rank] or a map of the same
    event    [tag, fields ...] (vLLM before June 2026, SGLang before September 2026) or {"type": tag, fields}

Both forms at both levels, from whichever engine. Slower than what `events` does for today's vLLM, and more
patient. A field whose type differs by engine is kept raw until it is its turn; a list that is not understood
costs what it says and no more.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Raw, Struct
from msgspec.msgpack import Decoder

from proxy.index.batch import (
    GPU,
    MOST_BLOCKS,
    UNNAMED,
    Batch,
    Cleared,
    Event,
    ExtraKeys,
    Removed,
    Stored,
    apart,
)

T = TypeVar("T")
U = TypeVar("U")

UNREADABLE: Final = (ValueError, OverflowError, RecursionError)
"""What msgspec raises: its own errors are ValueErrors."""
MOST_EVENTS: Final = 1 << 16
"""Events of one batch."""
MOST_TOKENS: Final = 1 << 22
"""Tokens of one event."""
BITS: Final = (1 << 64) - 1
NIL: Final = Raw(b"\xc0")
UNKNOWN: Final = ("extra keys that were not understood",)

Hashes = Annotated[list[Raw], Meta(max_length=MOST_BLOCKS)]
Tokens = Annotated[list[int], Meta(max_length=MOST_TOKENS)]
Events = Annotated[list[Raw], Meta(max_length=MOST_EVENTS)]


class StoredArray(Struct, tag="BlockStored", array_like=True):
    """["BlockStored", hashes, parent, ...]; the order is the wire's."""

    block_hashes: Annotated[list[int | bytes], Meta(max_length=MOST_BLOCKS)]
    parent_block_hash: int | bytes | None
    token_ids: Tokens
    block_size: int
    lora_id: Raw = NIL
    medium: str | None = None
    lora_name: Raw = NIL
    """vLLM: a string. SGLang for a while: a map with the salt."""
    extra_keys: Raw = NIL
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class StoredMap(Struct, tag="BlockStored", kw_only=True):
    """{"type": "BlockStored", ...}; fields at their defaults are left out."""

    block_hashes: Annotated[list[int | bytes], Meta(max_length=MOST_BLOCKS)]
    parent_block_hash: int | bytes | None = None
    token_ids: Tokens
    block_size: int
    lora_id: Raw = NIL
    medium: str | None = None
    lora_name: Raw = NIL
    extra_keys: Raw = NIL
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None


class RemovedArray(Struct, tag="BlockRemoved", array_like=True):
    """["BlockRemoved", hashes, medium, ...]."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None


class RemovedMap(Struct, tag="BlockRemoved"):
    """{"type": "BlockRemoved", ...}."""

    block_hashes: Hashes
    medium: str | None = None
    group_idx: int | None = None


class ClearedArray(Struct, tag="AllBlocksCleared", array_like=True):
    """["AllBlocksCleared"]."""


class Salted(Struct):
    """What SGLang has put where vLLM has the adapter's name."""

    cache_salt: str | None = None


class BatchArray(Struct, array_like=True):
    """[published, events, rank]."""

    ts: Raw
    events: Events
    rank: Raw = NIL


class BatchMap(Struct):
    """The same as a map."""

    events: Events
    ts: Raw = NIL
    data_parallel_rank: Raw = NIL
    attn_dp_rank: Raw = NIL


_batch_of_array = Decoder(BatchArray).decode
_batch_of_map = Decoder(BatchMap).decode
_event_of_array = Decoder(StoredArray | RemovedArray | ClearedArray).decode
_event_of_map = Decoder(StoredMap | RemovedMap | Cleared).decode
_hash: Callable[[Raw], Any] = Decoder(int | bytes).decode
_name: Callable[[Raw], Any] = Decoder(str | Salted | None).decode
_extra_keys: Callable[[Raw], Any] = Decoder(ExtraKeys | None).decode
_float = Decoder(float).decode
_int = Decoder(int).decode


def decode_any(payload: bytes) -> Batch | None:
    """Read a payload; None for what is no batch."""
    try:
        batch = _batch_of_map(payload) if _is_map(payload) else _batch_of_array(payload)
    except UNREADABLE:
        return None
    events: list[Event] = []
    skipped = 0
    for raw in batch.events:
        event, unread = _event(raw)
        skipped += unread
        if event is not None:
            events.append(event)
    published = _read(_float, batch.ts, 0.0)
    if isinstance(batch, BatchMap):
        rank = _read(_int, batch.data_parallel_rank, _read(_int, batch.attn_dp_rank, None))
    else:
        rank = _read(_int, batch.rank, None)
    return Batch(published if math.isfinite(published) else 0.0, events, rank, skipped)


def _event(raw: Raw) -> tuple[Event | None, bool]:
    """Read one event: what could be read, and whether anything could not."""
    try:
        event = _event_of_map(raw) if _is_map(raw) else _event_of_array(raw)
    except UNREADABLE:
        return None, True
    if isinstance(event, StoredArray | StoredMap):
        return _stored(event), False
    if isinstance(event, RemovedArray | RemovedMap):
        hashes = [_read(_hash, each, None) for each in event.block_hashes]
        known = [_unsigned(each) for each in hashes if each is not None]
        return Removed(known, event.medium or GPU, event.group_idx), len(known) != len(hashes)
    return Cleared(), False


def _stored(event: StoredArray | StoredMap) -> Stored:
    blocks = len(event.block_hashes)
    parent = event.parent_block_hash
    salt = event.cache_salt if isinstance(event, StoredMap) else None
    lora = None
    extra: list[Any] | None
    try:
        name = _name(event.lora_name)
        if isinstance(name, Salted):
            salt = name.cache_salt
        else:
            lora = name
        salt, extra = apart(
            _extra_keys(event.extra_keys), blocks, lora=lora, salt=salt, begins=parent is None
        )
    except UNREADABLE:
        extra = [UNKNOWN] * blocks
    if lora is None and bytes(event.lora_id) != bytes(NIL):
        extra = [UNNAMED] * blocks
    return Stored(
        [_unsigned(each) for each in event.block_hashes],
        None if parent is None else _unsigned(parent),
        event.token_ids,
        event.block_size,
        lora,
        salt,
        extra,
        event.medium or GPU,
        event.group_idx,
        event.kv_cache_spec_kind,
    )


def _read(decoder: Callable[[Raw], T], raw: Raw, otherwise: U) -> T | U:
    try:
        return decoder(raw)
    except UNREADABLE:
        return otherwise


def _is_map(raw: bytes | Raw) -> bool:
    first = bytes(memoryview(raw)[:1])
    return b"\x80" <= first <= b"\x8f" or first in {b"\xde", b"\xdf"}


def _unsigned(given: int | bytes) -> int:
    return given & BITS if isinstance(given, int) else int.from_bytes(given[-8:], "big")
