"""HTTP/1.1 on the wire, as far as a relay needs it: heads and chunk framing. Pure; no I/O.

Must never accept a message whose end two parsers could see in different places: what is ambiguous is
`Malformed`. Sources: RFC 9110 section 7.6 (hop-by-hop fields), RFC 9112 sections 6 and 7 (framing).
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
MAX_CHUNK_LINE = 4096
MAX_TRAILER = 16384

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\r\n\0]*))?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
# No space before an extension: strict readers refuse it, and the line may be passed on as it is.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?\r\n")
_PLAIN_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_DIGITS = re.compile(rb"[0-9]{1,18}")
# A line of a request: no control characters in its value, and no space around it but one.
_PLAIN_FIELD = re.compile(
    rb"\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([!-~\x80-\xff](?:[ -~\x80-\xff]*[!-~\x80-\xff])?|)(?=\r\n)"
)
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,18})\r\n")


class Malformed(Exception):
    """The peer sent something that is not, or not unambiguously, HTTP/1.1."""


@dataclass(slots=True)
class ResponseHead:
    """A response's status line and fields, and how its body ends."""

    status: int
    reason: bytes
    fields: list[tuple[bytes, bytes, bytes]]
    """(lower-case name, name as sent, value), in order, without hop-by-hop fields and framing."""
    length: int | None
    """Content-Length; None if absent."""
    chunked: bool
    keep_alive: bool
    """Whether the connection may be used again after this response."""

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by lower-case name."""
        for lower, _, value in self.fields:
            if lower == name:
                return value
        return None


def parse_response_head(head: bytes) -> ResponseHead:
    """Parse a response head without its closing empty line. Raises Malformed."""
    lines = head.split(b"\r\n")
    status_line = _STATUS.fullmatch(lines[0])
    if status_line is None:
        raise Malformed("no HTTP/1.x status line")
    fields: list[tuple[bytes, bytes, bytes]] = []
    length: int | None = None
    chunked = False
    keep_alive = status_line[1] == b"1"
    named: set[bytes] | None = None
    for line in lines[1:]:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Malformed("a header line that is none")
        name, value = field[1], field[2].rstrip(b" \t")
        lower = name.lower()
        if lower == b"content-length":
            if _DIGITS.fullmatch(value) is None or (length is not None and length != int(value)):
                raise Malformed("Content-Length is not one number")
            length = int(value)
        elif lower == b"transfer-encoding":
            if chunked or value.lower() != b"chunked":
                raise Malformed("a transfer coding other than chunked")
            chunked = True
        elif lower == b"connection":
            named = (named or set()) | tokens(value)
        elif lower not in HOP_BY_HOP:
            fields.append((lower, name, value))
    if chunked and length is not None:
        raise Malformed("Content-Length and Transfer-Encoding together")
    if named:
        if b"close" in named:
            keep_alive = False
        elif b"keep-alive" in named:
            keep_alive = True
        fields = [field for field in fields if field[0] not in named]
    return ResponseHead(int(status_line[2]), status_line[3] or b"", fields, length, chunked, keep_alive)


class PlainHead:
    """The head of a plain request; see `plain_head`."""

    __slots__ = ("fields", "keep_alive", "length", "line", "size")

    def __init__(self, line: bytes, fields: list[tuple[bytes, bytes]], size: int, length: int) -> None:
        self.line = line
        self.fields = fields
        """(name as sent, value), in order."""
        self.size = size
        """Bytes, the empty line included."""
        self.length = length
        """Bytes of the body."""
        self.keep_alive = True


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
    fields = _PLAIN_FIELD.findall(block)
    low = block.lower()
    length = _LENGTH.search(low)
    if (
        length is None
        or len(fields) + 1 != block.count(b"\r\n")
        or low.count(b"\r\ncontent-length:") != 1
        or low.count(b"\r\nhost:") != 1
        or b"\r\ntransfer-encoding:" in low
        or b"\r\nexpect:" in low
        or b"\r\nupgrade:" in low
        or not 0 < int(length[1]) <= longest
    ):
        return None
    head = PlainHead(line, fields, end + 4, int(length[1]))
    if b"\r\nconnection:" in low:
        asked = [value.lower() for name, value in fields if name.lower() == b"connection"]
        if asked == [b"close"]:
            head.keep_alive = False
        elif asked != [b"keep-alive"]:
            return None
    return head


def tokens(value: bytes) -> set[bytes]:
    """The lower-case members of a comma-separated field value."""
    return {token.strip(b" \t").lower() for token in value.split(b",")}


def request_head(
    method: bytes,
    target: bytes,
    host: bytes,
    fields: Iterable[tuple[bytes, bytes]],
    length: int | None,
) -> bytes:
    """A request head for the next hop, closing empty line included.

    `fields` are those `forwardable` left; `length` is the body's, None for a request without one.
    """
    parts = [method, b" ", target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"]
    for name, value in fields:
        parts += (name, b": ", value, b"\r\n")
    if length is not None:
        parts.append(b"Content-Length: %d\r\n" % length)
    parts.append(b"\r\n")
    return b"".join(parts)


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


_SIZE, _PAYLOAD, _PAYLOAD_END, _TRAILER = range(4)


class ChunkedBody:
    """Finds the payload and the end of a chunked body, however the bytes are cut."""

    __slots__ = ("_left", "_line", "_state", "_trailer", "done", "excess", "whole")

    def __init__(self) -> None:
        self.done = False
        self.excess = False
        """Bytes came that do not belong to this body."""
        self.whole = False
        """What was fed last was one whole chunk, without extensions, and can be passed on as it is."""
        self._state = _SIZE
        self._line = b""  # the start of a line whose end has not come
        self._left = 0  # payload bytes of this chunk still to come
        self._trailer = 0

    def feed(self, wire: bytes) -> bytes:
        """Take in bytes; give the payload in them. Raises Malformed."""
        if self._state == _SIZE and not self._line:  # the usual case: one read, one chunk
            match = _PLAIN_CHUNK.match(wire)
            if match is not None:
                start = match.end()
                size = int(match[1], 16)
                if size and start + size + 2 == len(wire) and wire.endswith(b"\r\n"):
                    self.whole = True
                    return wire[start:-2]
        self.whole = False
        return self._feed(wire)

    def _feed(self, wire: bytes) -> bytes:
        if self._line:
            wire, self._line = self._line + wire, b""
        payload: list[bytes] = []
        at, end = 0, len(wire)
        while at < end and not self.done:
            if self._state == _PAYLOAD:
                piece = wire[at : at + self._left]
                payload.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _PAYLOAD_END
                continue
            line_end = wire.find(b"\r\n", at)
            if line_end < 0:
                self._keep(wire[at:])
                at = end
            elif self._state == _SIZE:
                match = _CHUNK.match(wire, at)
                if match is None or match.end() != line_end + 2:
                    raise Malformed("a chunk size that is none")
                self._left = int(match[1], 16)
                self._state = _PAYLOAD if self._left else _TRAILER
                at = line_end + 2
            elif self._state == _PAYLOAD_END:
                if line_end != at:
                    raise Malformed("a chunk longer than its size")
                self._state = _SIZE
                at += 2
            else:
                self._trailer += line_end + 2 - at
                if self._trailer > MAX_TRAILER:
                    raise Malformed("too long a trailer")
                self.done = line_end == at
                at = line_end + 2
        self.excess = at < end
        return b"".join(payload)

    def _keep(self, line: bytes) -> None:
        if self._state == _PAYLOAD_END and line != b"\r":
            raise Malformed("a chunk longer than its size")
        if len(line) > MAX_CHUNK_LINE:
            raise Malformed("too long a chunk line")
        self._line = line
