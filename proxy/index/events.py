"""Decoding what engines publish about their KV cache: the bytes of one payload to one `Batch`.

Pure. Never raises, whatever the bytes, and never builds more than a bounded multiple of them: payloads and
lists have a longest length, and what is not needed is not built. An event that cannot be read is skipped and
counted; the others of its batch count.

What today's vLLM sends (an array of maps, unsigned hashes) is decoded here in one go; all else is left to
`dialects`, event by event. Both say the same of the same batch.
"""

import math
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
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
    Unsigned,
    apart,
)
from proxy.index.dialects import MOST_EVENTS, UNREADABLE, Tokens, decode_any

__all__ = ["GPU", "Batch", "Cleared", "Event", "Removed", "Stored", "decode"]

MOST_BYTES: Final = 16 << 20
"""A larger payload is not read: a step that stores a million tokens takes about 5 MB."""


class UsualStored(Struct, tag="BlockStored", kw_only=True):
    """As vLLM sends it; the names are the wire's."""

    block_hashes: Annotated[list[Unsigned], Meta(max_length=MOST_BLOCKS)]
    parent_block_hash: Unsigned | None = None
    token_ids: Tokens
    block_size: int
    lora_id: int | None = None
    medium: str = GPU
    lora_name: str | None = None
    extra_keys: ExtraKeys | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None


class UsualBatch(Struct, array_like=True):
    """As vLLM sends it."""

    ts: float
    events: Annotated[list[UsualStored | Removed | Cleared], Meta(max_length=MOST_EVENTS)]
    rank: int | None = None


_usual = Decoder(UsualBatch).decode


def decode(payload: bytes) -> Batch | None:
    """Read a payload; None for what is no batch, or is larger than any engine's."""
    if len(payload) > MOST_BYTES:
        return None
    try:
        batch = _usual(payload)
    except UNREADABLE:
        return decode_any(payload)
    events: list[Event] = [
        _stored(event) if isinstance(event, UsualStored) else event for event in batch.events
    ]
    return Batch(batch.ts if math.isfinite(batch.ts) else 0.0, events, batch.rank)


def _stored(event: UsualStored) -> Stored:
    blocks = len(event.block_hashes)
    lora, salt = event.lora_name, event.cache_salt
    extra: list[Any] | None = None
    if event.extra_keys is not None:
        begins = event.parent_block_hash is None
        salt, extra = apart(event.extra_keys, blocks, lora=lora, salt=salt, begins=begins)
    if lora is None and event.lora_id is not None:
        extra = [UNNAMED] * blocks
    return Stored(
        event.block_hashes,
        event.parent_block_hash,
        event.token_ids,
        event.block_size,
        lora,
        salt,
        extra,
        event.medium,
        event.group_idx,
        event.kv_cache_spec_kind,
    )
