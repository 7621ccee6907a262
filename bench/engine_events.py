"""KV events as engines encode them: what a step did to the cache becomes one msgpack payload. Pure.

Shapes: vLLM 0.32's were captured from the real engine; its older positional ones and SGLang's follow the
public definitions of their event types. Every event is of the GPU's tier and of the one full-attention group
that the simulated engine has.

Where a step both evicts and stores, each sequence's evictions come before what it stored, as in vLLM.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, get_args

import msgspec

Dialect = Literal["vllm", "vllm-arrays", "sglang-maps", "sglang-arrays"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)

SGLANG_STORE = 64
"""Hashes in one of SGLang's BlockStored at most, as captured."""

_ENCODE = msgspec.msgpack.Encoder().encode
_MEDIUM = "GPU"


@dataclass(frozen=True, slots=True)
class Source:
    """What a sequence's keys were made from."""

    tokens: "array[int]"
    """Prompt and output, array('I')."""
    salt: str | None = None
    lora: str | None = None
    base_keys: Sequence[int] | None = None
    """The keys without the adapter, where there is one: SGLang's event hashes do not know of adapters."""


class Change(NamedTuple):
    """What one sequence's part in a step did to the cache: first it removed, then it stored."""

    removed: Sequence[int]
    """Keys, in the order of their eviction."""
    keys: Sequence[int]
    """The chain of the sequence; those from `first` to before `last` are new in the cache."""
    first: int
    last: int
    source: Source | None


class _Store(NamedTuple):
    hashes: list[Any]
    parent: Any
    tokens: list[int]
    source: Source


class Encoder:
    """One engine's form of its events."""

    def __init__(
        self, dialect: Dialect, block_size: int, *, bytes_hashes: bool = False, rank: int = 0
    ) -> None:
        """`bytes_hashes`: 32 bytes a hash, as vLLM does with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.

        `rank`: the data-parallel rank whose cache is told of.
        """
        if dialect not in DIALECTS:
            raise ValueError(f"unknown dialect {dialect!r}; there are {', '.join(DIALECTS)}")
        self.sglang = dialect.startswith("sglang")
        if bytes_hashes and self.sglang:
            raise ValueError("SGLang has no hashes in bytes")
        self._hash = _as_digest if bytes_hashes else _as_signed if self.sglang else _as_it_is
        self._arrays = dialect.endswith("-arrays")
        self._block_size = block_size
        self._rank = rank
        self._shared: dict[int, int] = {}
        """Of cached blocks whose hash is not their key: SGLang's of an adapter, told as the base model's."""
        forms: dict[Dialect, Callable[[_Store], list[Any] | dict[str, Any]]] = {
            "vllm": self._vllm_map,
            "vllm-arrays": self._vllm_array,
            "sglang-maps": self._sglang_map,
            "sglang-arrays": self._sglang_array,
        }
        self._store = forms[dialect]

    def batch(self, published: float, changes: Sequence[Change], *, cleared: bool = False) -> bytes:
        """The payload of one step's changes at `published`, in Unix seconds; `cleared` comes before them."""
        events: list[Any] = []
        if cleared:
            self.forget()
            events.append(["AllBlocksCleared"] if self._arrays else {"type": "AllBlocksCleared"})
        for change in changes:
            events += map(self._remove, self._removals(change.removed))
            events += map(self._store, self._stores(change))
        return _ENCODE([published, events, self._rank])

    def forget(self) -> None:
        """Nothing is cached any more."""
        self._shared.clear()

    # ---- how much goes into one event --------------------------------------------------------------------

    def _removals(self, keys: Sequence[int]) -> list[list[Any]]:
        """Hashes event by event: vLLM tells of each evicted block in its own, SGLang of each evicted node."""
        hashes = [self._hash(self._shared.pop(key, key)) for key in keys]
        if self.sglang:
            return [hashes] if hashes else []
        return [[one] for one in hashes]

    def _stores(self, change: Change) -> list[_Store]:
        keys, first, last, source = change.keys, change.first, change.last, change.source
        assert source is not None, "events need the tokens of what is submitted"
        if self.sglang and source.base_keys is not None:
            self._shared.update(zip(keys[first:last], source.base_keys[first:last], strict=True))
            keys = source.base_keys
        size = self._block_size
        step = SGLANG_STORE if self.sglang else max(1, last - first)
        return [
            _Store(
                hashes=list(map(self._hash, keys[start : min(start + step, last)])),
                parent=self._hash(keys[start - 1]) if start else None,
                tokens=source.tokens[start * size : min(start + step, last) * size].tolist(),
                source=source,
            )
            for start in range(first, last, step)
        ]

    # ---- forms -------------------------------------------------------------------------------------------

    def _remove(self, hashes: list[Any]) -> list[Any] | dict[str, Any]:
        if self._arrays:
            return ["BlockRemoved", hashes, _MEDIUM]
        event = {"type": "BlockRemoved", "block_hashes": hashes, "medium": _MEDIUM}
        return event if self.sglang else {**event, "group_idx": 0}

    def _map(self, store: _Store) -> dict[str, Any]:
        return {
            "type": "BlockStored",
            "block_hashes": store.hashes,
            "parent_block_hash": store.parent,
            "token_ids": store.tokens,
            "block_size": self._block_size,
            "lora_id": _lora_id(store) if not self.sglang else None,
            "medium": _MEDIUM,
        }

    def _vllm_map(self, store: _Store) -> dict[str, Any]:
        return {
            **self._map(store),
            "lora_name": store.source.lora,
            "extra_keys": _extra_keys(store),
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _vllm_array(self, store: _Store) -> list[Any]:
        return ["BlockStored", *list(self._map(store).values())[1:], store.source.lora, _extra_keys(store)]

    def _sglang_map(self, store: _Store) -> dict[str, Any]:
        return self._map(store) | _sglang_salt(store)

    def _sglang_array(self, store: _Store) -> list[Any]:
        event: list[Any] = ["BlockStored", *list(self._map(store).values())[1:]]
        salt = _sglang_salt(store)
        return [*event, salt] if salt else event


def _extra_keys(store: _Store) -> list[list[str] | None]:
    """vLLM's: the adapter in every block, the salt in a chain's first."""
    lora = [] if store.source.lora is None else [store.source.lora]
    keys: list[list[str] | None] = [lora or None for _ in store.hashes]
    if store.parent is None and store.source.salt is not None:
        keys[0] = [*lora, store.source.salt]
    return keys


def _lora_id(store: _Store) -> int | None:
    return None if store.source.lora is None else 1


def _sglang_salt(store: _Store) -> dict[str, str]:
    """SGLang's: in every event of a salted chain, and left out where there is none."""
    return {} if store.source.salt is None else {"cache_salt": store.source.salt}


def _as_it_is(key: int) -> int:
    return key


def _as_signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def _as_digest(key: int) -> bytes:
    """32 bytes whose last eight are the key, which is how vLLM's two forms go together."""
    number = key.to_bytes(8, "big")
    return blake2b(number, digest_size=24).digest() + number
