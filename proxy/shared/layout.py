"""What Redis holds, by name and by byte. Pure.

All names of a pool begin with one literal hash tag, `{<namespace>:v1:<pool>}:`, so that a pool is one slot of
a cluster and one script may touch several of its keys:

    meta                 hash    what every proxy of the namespace must have alike
    log, number          stream  what proxies tell each other; how many entries it has ever had
    fence, replicas      counter of claims; set of the replicas that have a `rep`
    rep:<replica>        hash    epoch, last event sequence, how much the next two hold
    r:<replica>:<epoch>  set     the blocks it holds, 8 bytes each
    h:<replica>:<epoch>  hash    engine handle -> block and copies, 8 -> 9 bytes
    own:<replica>        the claim of whoever ingests its feed
    load, live:<origin>  hash    load by proxy; which proxies live

Invariants: every name that is not ours is percent-encoded, so that neither a colon nor a brace of it can be
taken for one of ours, and different names never make equal keys. All numbers are little-endian.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import quote, unquote

VERSION = "1"
"""Of the key names and all encodings; another version lives beside this one."""
CHANGED, PREDICTED, RETRACTED, REPORTED, FORGOTTEN, MODE = range(1, 7)
MOST_COPIES = 255
"""More copies of a block are counted as this many: rather absent too early than held for ever."""

_U32, _U64, _REPORT = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<QII")


def escape(name: str) -> str:
    """Percent-encode a name: injective, and free of ':', '{' and '}'."""
    return quote(name, safe="/@", errors="surrogatepass")


def unescape(name: bytes) -> str:
    """Undo `escape`."""
    return unquote(name.decode(), errors="surrogatepass")


def fingerprint(secret: bytes) -> str:
    """What tells two secrets apart without telling either: 64 bits of a keyed hash, in hex."""
    key = blake2b(secret).digest()
    return blake2b(b"namespace", key=key, digest_size=8, person=b"warmroute").hexdigest()


class Names:
    """The keys of one pool."""

    def __init__(self, namespace: str, pool: str) -> None:
        self.tag = f"{{{escape(namespace)}:v{VERSION}:{escape(pool)}}}:"
        self.meta = f"{self.tag}meta"
        self.log = f"{self.tag}log"
        self.number = f"{self.tag}number"
        self.fence = f"{self.tag}fence"
        self.replicas = f"{self.tag}replicas"
        self.load = f"{self.tag}load"

    def rep(self, replica: str) -> str:
        """What is known of a replica."""
        return f"{self.tag}rep:{escape(replica)}"

    def own(self, replica: str) -> str:
        """Who ingests its feed."""
        return f"{self.tag}own:{escape(replica)}"

    def blocks(self, replica: str, epoch: str) -> str:
        """The blocks it holds."""
        return f"{self.tag}r:{escape(replica)}:{escape(epoch)}"

    def handles(self, replica: str, epoch: str) -> str:
        """What its engine calls them."""
        return f"{self.tag}h:{escape(replica)}:{escape(epoch)}"

    def live(self, origin: str) -> str:
        """Whether a proxy lives."""
        return f"{self.tag}live:{escape(origin)}"


@dataclass(slots=True, frozen=True)
class Changed:
    """What a replica's engine stored and removed."""

    replica: str
    epoch: str
    cleared: bool
    removed: array[int]
    stored: array[int]


@dataclass(slots=True, frozen=True)
class Predicted:
    """Where a prompt was sent."""

    number: int
    replica: str
    keys: array[int]


@dataclass(slots=True, frozen=True)
class Retracted:
    """A placement that came to nothing."""

    number: int


@dataclass(slots=True, frozen=True)
class Reported:
    """A placement for which the engine found more or fewer blocks than predicted."""

    number: int
    predicted: int
    reported: int


@dataclass(slots=True, frozen=True)
class Forgotten:
    """A replica that was removed."""

    replica: str


@dataclass(slots=True, frozen=True)
class Followed:
    """How well a replica's feed is followed."""

    replica: str
    epoch: str
    mode: str


Record = Changed | Predicted | Retracted | Reported | Forgotten | Followed


class Unreadable(ValueError):
    """Not a record of this layout."""


def pack(record: Record) -> bytes:
    """One record. The keys of a `Changed` are its end, removed before stored: a script reads them there."""
    match record:
        case Changed(replica, epoch, cleared, removed, stored):
            counts = _U32.pack(len(removed)) + _U32.pack(len(stored))
            head = bytes((CHANGED, cleared)) + _text(replica) + _text(epoch) + counts
            return head + block_bytes(removed) + block_bytes(stored)
        case Predicted(number, replica, keys):
            head = bytes((PREDICTED,)) + _U64.pack(number) + _text(replica) + _U32.pack(len(keys))
            return head + block_bytes(keys)
        case Retracted(number):
            return bytes((RETRACTED,)) + _U64.pack(number)
        case Reported(number, predicted, reported):
            return bytes((REPORTED,)) + _REPORT.pack(number, predicted, reported)
        case Forgotten(replica):
            return bytes((FORGOTTEN,)) + _text(replica)
        case Followed(replica, epoch, mode):
            return bytes((MODE,)) + _text(replica) + _text(epoch) + _text(mode)


def unpack(body: bytes) -> Iterator[Record]:
    """The records of one log entry; `Unreadable` where it is not of this layout."""
    at = _Cursor(body)
    while at.place < len(body):
        kind = at.byte()
        if kind == CHANGED:
            cleared = bool(at.byte())
            replica, epoch = at.text(), at.text()
            removed, stored = at.u32(), at.u32()
            yield Changed(replica, epoch, cleared, at.keys(removed), at.keys(stored))
        elif kind == PREDICTED:
            number, replica = at.u64(), at.text()
            yield Predicted(number, replica, at.keys(at.u32()))
        elif kind == RETRACTED:
            yield Retracted(at.u64())
        elif kind == REPORTED:
            yield Reported(at.u64(), at.u32(), at.u32())
        elif kind == FORGOTTEN:
            yield Forgotten(at.text())
        elif kind == MODE:
            yield Followed(at.text(), at.text(), at.text())
        else:
            raise Unreadable(f"record of kind {kind}")


def block_bytes(keys: array[int] | Sequence[int]) -> bytes:
    """Blocks or handles, 8 bytes each."""
    packed = keys if isinstance(keys, array) else array("Q", keys)
    if sys.byteorder == "big":  # pragma: no cover
        packed = array("Q", packed)
        packed.byteswap()
    return packed.tobytes()


def blocks_from(raw: bytes | memoryview) -> array[int]:
    """Undo `block_bytes`; `Unreadable` if there are not 8 bytes each."""
    if len(raw) % 8:
        raise Unreadable(f"{len(raw)} bytes of keys")
    keys = array("Q")
    keys.frombytes(raw)
    if sys.byteorder == "big":  # pragma: no cover
        keys.byteswap()
    return keys


def handle_bytes(handles: Sequence[tuple[int, int, int]]) -> bytes:
    """(engine handle, block, copies): 17 bytes each."""
    flat = [part for handle, key, copies in handles for part in (handle, key, min(copies, MOST_COPIES))]
    return struct.pack("<" + "QQB" * len(handles), *flat)


def handles_from(raw: bytes) -> Iterable[tuple[int, int, int]]:
    """Undo `handle_bytes`."""
    if len(raw) % 17:
        raise Unreadable(f"{len(raw)} bytes of handles")
    return struct.iter_unpack("<QQB", raw)


def _text(value: str) -> bytes:
    raw = value.encode(errors="surrogatepass")
    return _U32.pack(len(raw)) + raw


class _Cursor:
    """A place in a log entry, which never goes beyond its end."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self.place = 0

    def take(self, length: int) -> memoryview:
        start, end = self.place, self.place + length
        if end > len(self._body):
            raise Unreadable("it ends early")
        self.place = end
        return self._body[start:end]

    def byte(self) -> int:
        return self.take(1)[0]

    def u32(self) -> int:
        (value,) = _U32.unpack(self.take(4))
        return int(value)

    def u64(self) -> int:
        (value,) = _U64.unpack(self.take(8))
        return int(value)

    def keys(self, count: int) -> array[int]:
        return blocks_from(self.take(8 * count))

    def text(self) -> str:
        try:
            return bytes(self.take(self.u32())).decode(errors="surrogatepass")
        except UnicodeDecodeError as error:
            raise Unreadable("it is no text") from error
