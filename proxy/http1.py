"""HTTP/1.1 on the wire, as far as a relay needs it: response heads and chunk framing. Pure; no I/O.

Must never accept a message whose end two parsers could see in different places: what is ambiguous is
`Malformed`. Sources: RFC 9110 section 7.6 (hop-by-hop fields), RFC 9112 sections 6 and 7 (framing).
"""

import re
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
KEPT = 2048
"""Bytes of a head up to which what it says is remembered."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\r\n\0]*))?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
# No space before an extension: strict readers refuse it, and the line may be passed on as it is.
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?\r\n")
_PLAIN_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_DIGITS = re.compile(rb"[0-9]{1,18}")
LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,18})(?=\r\n|\Z)")


class Malformed(Exception):
    """The peer sent something that is not, or not unambiguously, HTTP/1.1."""


@dataclass(slots=True)
class ResponseHead:
    """A response's status line and fields, and how its body ends. Not to be changed: heads are shared."""

    status: int
    reason: bytes
    fields: list[tuple[bytes, bytes, bytes]]
    """(lower-case name, name as sent, value), in order, without hop-by-hop fields and framing."""
    length: int | None
    """Content-Length; None if absent."""
    chunked: bool
    keep_alive: bool
    """Whether the connection may be used again after this response."""
    lines: bytes = b""
    """Status line and fields for the client, but for those that the proxy writes itself."""
    is_stream: bool = False
    """Whether it is a stream of events."""
    is_read: bool = False
    """Whether its body is one that the proxy can look into: events or JSON, without a coding."""

    def __post_init__(self) -> None:
        kind = (self.get(b"content-type") or b"").lower()
        self.is_stream = kind.startswith(b"text/event-stream")
        self.is_read = (self.is_stream or kind.startswith(b"application/json")) and (
            self.get(b"content-encoding") or b"identity"
        ).lower() == b"identity"
        parts = [b"HTTP/1.1 %d %b\r\n" % (self.status, self.reason)]
        for lower, name, value in self.fields:
            if lower != b"x-request-id" and not lower.startswith(b"x-warmroute-"):
                parts += (name, b": ", value, b"\r\n")
        self.lines = b"".join(parts)

    def get(self, name: bytes) -> bytes | None:
        """The first value of a field, by lower-case name."""
        for lower, _, value in self.fields:
            if lower == name:
                return value
        return None


def response_head(head: bytes) -> tuple[ResponseHead, int | None]:
    """A response head without its closing empty line, and its Content-Length. Raises Malformed.

    A replica's heads differ in little but the length, so what one says is kept for the next.
    """
    found = LENGTH.search(head)
    if found is None:
        read = parse_response_head(head)
        return read, read.length
    start, end = found.span(1)
    alike = _known_head(head[:start] + b"0" + head[end:]) if len(head) <= KEPT else None
    if alike is None:
        read = parse_response_head(head)
        return read, read.length
    return alike, int(found[1])


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


@lru_cache(maxsize=512)
def _known_head(head: bytes) -> ResponseHead | None:
    """A head whose length does not matter; None if there is not just one."""
    return parse_response_head(head) if head.lower().count(b"\r\ncontent-length") == 1 else None


def tokens(value: bytes) -> set[bytes]:
    """The lower-case members of a comma-separated field value."""
    return {token.strip(b" \t").lower() for token in value.split(b",")}


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
