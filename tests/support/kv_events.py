"""Captured event messages, and payloads as engines build them."""

import struct
from pathlib import Path
from typing import Any

import msgspec

CAPTURED = Path(__file__).parents[1] / "data" / "kv_events"
LIVE = sorted(path.stem for path in CAPTURED.glob("0*.bin"))


def frames(name: str) -> list[bytes]:
    """The frames of a captured message."""
    raw = (CAPTURED / f"{name}.bin").read_bytes()
    (count,) = struct.unpack_from(">I", raw)
    found, at = [], 4
    for _ in range(count):
        (length,) = struct.unpack_from(">I", raw, at)
        found.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def payload(*events: Any, rank: int | None = 0, published: float = 1.5) -> bytes:
    """An array of a time, events and a rank."""
    return msgspec.msgpack.encode([published, events, rank])


def stored(hashes: list[Any], tokens: list[int], parent: Any = None, size: int = 4, **more: Any) -> dict:
    """A store as vLLM's map has it."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes: Any, **more: Any) -> dict:
    """A removal as vLLM's map has it."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}
