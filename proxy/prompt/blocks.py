"""The chained block keys.

    key[i] = xxh3_64(tokens of block i as little-endian uint32, seed = key[i-1])

key[-1], the seed, is derived from everything that keeps two equal token sequences apart: the secret, the
model, the adapter, the salts, the block size and where the tokens come from. Each part is tagged and carries
its length, so that no two sets of parts read the same. A partial last block has no key. A block matches only
if all before it do.
"""

import struct
from array import array
from hashlib import blake2b

from xxhash import xxh3_64_intdigest

TOKEN_BYTES = 4


def seed(secret: bytes, *, block_size: int, **parts: str | bytes | None) -> int:
    """Derive key[-1], 64 bits. A part that is None is not the same as an empty one."""
    digest = blake2b(key=blake2b(secret).digest(), digest_size=8, person=b"warmroute")
    for name, value in sorted(parts.items()):
        if value is None:
            continue
        kind = b"t" if isinstance(value, str) else b"b"
        raw = value.encode() if isinstance(value, str) else value
        digest.update(struct.pack("<I", len(name)) + name.encode() + kind + struct.pack("<Q", len(raw)) + raw)
    digest.update(struct.pack("<Q", block_size))
    return int.from_bytes(digest.digest(), "little")


def chain(tokens: bytes, block_size: int, previous: int) -> "tuple[array[int], bytes]":
    """Hash the full blocks of `tokens` (uint32, little-endian), continuing from key `previous`.

    Returns array('Q') of keys, and the tokens that did not fill a block.
    """
    size = block_size * TOKEN_BYTES
    full = len(tokens) - len(tokens) % size
    keys: list[int] = []
    for (block,) in struct.iter_unpack(f"{size}s", memoryview(tokens)[:full]):
        previous = xxh3_64_intdigest(block, previous)
        keys.append(previous)
    return array("Q", keys), tokens[full:]
