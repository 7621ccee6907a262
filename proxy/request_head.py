"""A request's head: whether it is plain, what it says to the proxy, and what the next hop gets. Pure; no I/O.

What is not plain is read by a general parser, and by nothing here. Sources: RFC 9110 section 7.6 (hop-by-hop
fields), RFC 9112 sections 3, 5 and 6 (request line, fields, framing).
"""

import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache

from proxy.http1 import HOP_BY_HOP, KEPT, LENGTH, tokens

# A line of a request: no control characters in its value, and no space around it but one.
_PLAIN_FIELD = re.compile(
    rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([!-~\x80-\xff](?:[ -~\x80-\xff]*[!-~\x80-\xff])?|)(?=\r\n)"
)


class Fields:
    """A request's fields, and what they say to the proxy and to the next hop. Not to be changed: shared."""

    __slots__ = ("_drop", "_forwarded", "_trusted", "keep_alive", "sent")

    def __init__(self, sent: Sequence[tuple[bytes, bytes]], *, keep_alive: bool = True) -> None:
        self.sent = sent
        """(name as sent, value), in order."""
        self.keep_alive = keep_alive
        """False if `Connection` says that this request is the connection's last."""
        self._drop: frozenset[bytes] | None = None
        self._trusted = False
        self._forwarded: tuple[bytes, dict[bytes, bytes]] = (b"", {})

    def forwarded(self, drop: frozenset[bytes], *, trusted: bool) -> tuple[bytes, dict[bytes, bytes]]:
        """What `forwardable` gives, the first as lines; what it gave last is remembered."""
        if drop is not self._drop or trusted is not self._trusted:
            kept, noted = forwardable(self.sent, drop, trusted=trusted)
            self._forwarded = lines(kept), noted
            self._drop, self._trusted = drop, trusted
        return self._forwarded


def lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Fields as they are written."""
    return b"".join([b"%b: %b\r\n" % field for field in fields])


class PlainHead:
    """The head of a plain request; see `plain_head`."""

    __slots__ = ("fields", "length", "line", "size")

    def __init__(self, line: bytes, fields: Fields, size: int, length: int) -> None:
        self.line = line
        self.fields = fields
        self.size = size
        """Bytes, the empty line included."""
        self.length = length
        """Bytes of the body."""


def plain_head(data: bytes, lines: Container[bytes], most: int, longest: int) -> PlainHead | None:
    """Read the head that `data` begins with, if it is all there and plain; None if anything is unusual.

    Plain is: a request line that is one of `lines`; at most `most` bytes; one Host; one Content-Length of 1
    to `longest` bytes; no Transfer-Encoding, Expect or Upgrade; a Connection of keep-alive or close, if any;
    every line one well-formed field.
    """
    start, end = data.find(b"\r\n"), data.find(b"\r\n\r\n")
    line = data[:start]
    if line not in lines or end < 0 or end > most or start == end:
        return None
    block = data[start : end + 2]
    found = LENGTH.search(block)
    if found is None:
        return None
    length = int(found[1])
    if not 0 < length <= longest:
        return None
    # A client's requests differ in little but their length, so what one says is kept for the next.
    digits, after = found.span(1)
    block = block[:digits] + b"0" + block[after:]
    fields = _known_fields(block) if len(block) <= KEPT else _plain_fields(block)
    return None if fields is None else PlainHead(line, fields, end + 4, length)


def _plain_fields(block: bytes) -> Fields | None:
    """The fields of a block that begins and ends with a line end; None if one of them is not plain."""
    fields = _PLAIN_FIELD.findall(block)
    low = block.lower()
    if (
        len(fields) + 1 != block.count(b"\r\n")
        or low.count(b"\r\ncontent-length:") != 1
        or low.count(b"\r\nhost:") != 1
        or b"\r\ntransfer-encoding:" in low
        or b"\r\nexpect:" in low
        or b"\r\nupgrade:" in low
    ):
        return None
    asked = [value.lower() for name, value in fields if name.lower() == b"connection"]
    if asked in ([], [b"keep-alive"], [b"close"]):
        return Fields(fields, keep_alive=asked != [b"close"])
    return None


_known_fields = lru_cache(maxsize=512)(_plain_fields)


_NOT_FORWARDED = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_NOTED = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"expect",
        b"traceparent",
        b"x-api-key",
        b"x-request-id",
        b"x-session-id",
    )
)
_FORWARDED_FOR = b"x-forwarded-for"
_CLAIMS = frozenset((b"forwarded", b"x-real-ip"))
_CLAIM = 2
"""Passed on for those only whose word counts for where a request came from."""


@lru_cache(maxsize=1024)  # clients send the same few names again and again
def _name(name: bytes) -> tuple[bytes, bool, int]:
    """A field's name in lower case, whether the proxy reads it, and whether the next hop gets it."""
    lower = name.lower()
    if lower.startswith(b"x-warmroute-"):
        return lower, True, 0
    if lower.startswith(b"x-forwarded-") or lower in _CLAIMS:
        return lower, lower == _FORWARDED_FOR, _CLAIM
    return lower, lower in _NOTED, lower not in _NOT_FORWARDED


def forwardable(
    fields: Iterable[tuple[bytes, bytes]], drop: frozenset[bytes] = frozenset(), *, trusted: bool = False
) -> tuple[list[tuple[bytes, bytes]], dict[bytes, bytes]]:
    """The request fields that belong to the next hop, and those that the proxy itself reads.

    The first keep their order and number. Left out are hop-by-hop fields, those that `Connection` names, the
    framing, `Host`, `Expect` (the proxy answers it), what is addressed to the proxy, the lower-case names in
    `drop`, and, unless whoever sent it is `trusted`, what claims where the request came from. The second, by
    lower-case name, are what is addressed to the proxy and the few others it needs; of a field that comes
    twice the last value, of X-Forwarded-For the whole list.
    """
    kept = []
    noted: dict[bytes, bytes] = {}
    named: set[bytes] | None = None
    for field in fields:
        lower, is_noted, passes = _name(field[0])
        if is_noted:
            if lower == _FORWARDED_FOR and lower in noted:
                noted[lower] += b", " + field[1]
            else:
                noted[lower] = field[1]
        if passes:
            if lower not in drop and (passes is not _CLAIM or trusted):
                kept.append(field)
        elif lower == b"connection" and field[1].lower() not in (b"keep-alive", b"close"):
            named = (named or set()) | tokens(field[1])
    if named:
        kept = [field for field in kept if field[0].lower() not in named]
    return kept, noted


def request_head(method: bytes, target: bytes, host: bytes, lines: bytes, length: int | None) -> bytes:
    """A request head for the next hop, closing empty line included.

    `lines` are the fields that `forwardable` left; `length` is the body's, None for a request without one.
    """
    framing = b"" if length is None else b"Content-Length: %d\r\n" % length
    return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%b\r\n" % (method, target, host, lines, framing)
