"""The events of one engine about its KV cache, as the index reads them, whoever sent them in which form.

Hashes are the engine's own names of blocks, unsigned 64 bits here: a signed one is its two's complement, and
of a whole digest the last eight bytes, read big-endian, are what the engine sends when it sends integers.
"""

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

GPU: Final = "GPU"
"""The medium of blocks that the engine can attend to at once; the medium where an event names none."""
MOST_BLOCKS: Final = 1 << 17
"""Blocks of one event."""
UNNAMED: Final = ("an adapter without a name",)

Unsigned = Annotated[int, Meta(ge=0)]
Scalar = str | int | float | bool | None
ExtraKey = Scalar | Annotated[list[Scalar], Meta(max_length=8)]
ExtraKeys = Annotated[
    list[Annotated[list[ExtraKey], Meta(max_length=64)] | None], Meta(max_length=MOST_BLOCKS)
]
"""Per block what keeps it apart from others of the same tokens, as vLLM tells it."""


class Stored(Struct, frozen=True):
    """Blocks that the engine keeps from now on, one after the other in one chain."""

    hashes: list[int]
    parent: int | None
    """The block before the first; None: the first begins a prompt."""
    tokens: list[int]
    """Token ids of all blocks, flat. Empty where the engine does not tell (blocks stored off the GPU)."""
    block_size: int
    """Tokens a block; 0 where the engine does not tell."""
    lora: str | None = None
    salt: str | None = None
    extra: list[Any] | None = None
    """Per block what else keeps it apart (an image, an embedding, an adapter without a name), or None; such a
    block cannot have a key of ours. None for the whole list: no block has any."""
    medium: str = GPU
    group: int | None = None
    """Hybrid models: which group of layers."""
    kind: str | None = None
    """What its layers attend to: `full_attention`, `sliding_window` and so on."""


class Removed(
    Struct, frozen=True, tag="BlockRemoved", rename={"hashes": "block_hashes", "group": "group_idx"}
):
    """Blocks, or copies of them, that the engine no longer keeps."""

    hashes: Annotated[list[Unsigned], Meta(max_length=MOST_BLOCKS)]
    medium: str = GPU
    group: int | None = None


class Cleared(Struct, frozen=True, tag="AllBlocksCleared"):
    """The engine keeps nothing any more."""


Event = Stored | Removed | Cleared


class Batch(Struct, frozen=True):
    """What one payload says; the events in their order."""

    published: float
    """Seconds since 1970, by the engine's clock; 0.0 where it does not tell."""
    events: list[Event]
    rank: int | None = None
    """The data-parallel rank."""
    skipped: int = 0
    """Events that were not understood, or not wholly: unknown, or malformed."""


def apart(
    extra_keys: list[Any] | None, blocks: int, *, lora: str | None, salt: str | None, begins: bool
) -> tuple[str | None, list[Any] | None]:
    """Tell a salt and an adapter's name in vLLM's extra keys from all else: (salt, `Stored.extra`).

    vLLM puts the adapter's name first in every block, and the salt last in the first block of a prompt. The
    identifier of an image in that block, alone, reads like a salt: then its key is that of the same tokens
    under that salt, which is what vLLM's own hash says too.
    """
    if not extra_keys or not any(extra_keys):
        return salt, None
    if len(extra_keys) != blocks:  # nobody knows which block is kept apart
        return salt, [extra_keys] * blocks
    left = [keys[1:] if keys and lora is not None and keys[0] == lora else keys for keys in extra_keys]
    first = left[0]
    if begins and first and len(first) == 1 and isinstance(first[0], str) and salt in {None, first[0]}:
        salt, left[0] = first[0], None
    return salt, left if any(left) else None
