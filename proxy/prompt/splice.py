"""The changes that are ever made to a body, each to the fewest bytes possible.

Every byte that is not named here stays as it came: unknown fields, odd whitespace, escapes, 19-digit
integers. Never raises: a body that cannot be read is given back as it is, for the backend to judge.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from proxy.errors import BadRequest
from proxy.prompt.fields import Fields

MOST_FIELDS: Final = 1000
"""Top-level fields that are looked at one by one; engines know some fifty."""

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\n\r]*")
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*')
_NEXT_KEY = re.compile(rb'[ \t\n\r]*[{,][ \t\n\r]*("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*')
_SCANNER = json.JSONDecoder()
_INCLUDE_USAGE = b'"stream_options":{"include_usage":true}'


def splice_stream_usage(body: bytes) -> bytes:
    """Ask for usage at the end of a stream: insert `stream_options` right after the first brace.

    Only for a body without `stream_options`: see `Parsed.usage_splice`.
    """
    brace = body.find(b"{")
    if brace < 0:
        return body
    inside = _SPACE.match(body, brace + 1)
    empty = inside is None or body[inside.end() : inside.end() + 1] == b"}"
    return body[: brace + 1] + _INCLUDE_USAGE + (b"" if empty else b",") + body[brace + 1 :]


def splice_model(body: bytes, model: str) -> bytes:
    """Replace the value of the top-level `model`; of every one, if there are several."""
    name = msgspec.json.encode(model)
    pieces, at, seen = [], 0, 0
    for key, start, end in top_level(body):
        seen += 1
        if key == "model":
            pieces += [body[at:start], name]
            at = end
    return body if seen > MOST_FIELDS else b"".join([*pieces, body[at:]])


def splice_priority(body: bytes, priority: int | None) -> bytes:
    """Set the top-level `priority`, or take it out where it is None; every one, if there are several."""
    at = start = body.find(b"{") + 1
    kept: list[bytes] = []
    seen, before = 0, b""
    for key, _, end in top_level(body):
        if key != "priority":
            field = body[at:end]  # with the comma before it, unless it is the first
            kept.append(field if kept or not seen else field.replace(b",", b"", 1))
        seen += 1
        at = end
    if not start or seen > MOST_FIELDS or (priority is None and seen == len(kept)):
        return body
    if priority is not None:
        before = b'"priority":%d' % priority + (b"," if kept else b"")
    return b"".join([body[:start], before, *kept, body[at:]])


def splice_last(body: bytes, field: str, value: str) -> bytes:
    """Add a field as the last of the object. Raises BadRequest for a body of which that cannot be said.

    Of a key that comes twice the last value counts, so no other value of `field` does, wherever and however
    it is written. UTF-16 and UTF-32, which Python's JSON reads too, have NUL bytes; UTF-8 JSON has none.
    """
    end = len(body.rstrip(b" \t\n\r")) - 1
    if body[end : end + 1] != b"}" or b"\0" in body:
        raise BadRequest("The request body must be a JSON object in UTF-8.")
    comma = b"" if body[:end].rstrip(b" \t\n\r").endswith(b"{") else b","
    added = msgspec.json.encode(field) + b":" + msgspec.json.encode(value)
    return body[:end] + comma + added + body[end:]


def has_duplicates(body: bytes, raw: Mapping[str, Any]) -> bool:
    """Tell whether a key of the object comes twice; `raw` is its outline. Too many to tell count as such.

    An outline keeps keys in the order in which they first came, and the bytes of each one's last value. Where
    no key comes twice, keys and values so follow each other through the whole body; where one does, either a
    value is not the one that stands here, or another key comes next.
    """
    if len(raw) > MOST_FIELDS:
        return True
    at = 0
    for name, value in raw.items():
        key = _NEXT_KEY.match(body, at)
        if key is None or _name(key[1]) != name or not body.startswith(value, key.end()):
            return True
        at = key.end() + len(memoryview(value))
    end = _after_space(body, at)
    return bool(raw) and body[end : end + 1] != b"}"


def _name(key: bytes) -> str:
    name: str = json.loads(key) if b"\\" in key else key[1:-1].decode()
    return name


def top_level(body: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of each top-level value, in the order they come.

    Stops where it is not JSON, and after one more than MOST_FIELDS.
    """
    raw: Mapping[str, Any] = {}
    with contextlib.suppress(msgspec.DecodeError, ValueError, RecursionError):
        raw = Fields.of(body).raw
    values = _Values(body, raw)
    at = _after_space(body, len(_BOM) if body.startswith(_BOM) else 0)
    if body[at : at + 1] != b"{":
        return
    try:
        for _ in range(MOST_FIELDS + 1):
            key = _KEY.match(body, _after_space(body, at + 1))
            if key is None:
                return
            name = json.loads(key[1])
            end = values.end(name, key.end())
            yield name, key.end(), end
            at = _after_space(body, end)
            if body[at : at + 1] != b",":
                return
    except (ValueError, RecursionError):
        return


class _Values:
    """Where the values of one object end.

    The outline holds the bytes of each key's last value: where they stand, and a value ends after them, it
    ends there. Otherwise (an earlier one of two values) it is scanned for; Latin-1 keeps byte offsets.
    """

    def __init__(self, body: bytes, raw: Mapping[str, Any]) -> None:
        self._body = body
        self._raw = raw
        self._text: str | None = None

    def end(self, name: str, start: int) -> int:
        """Find the end of the value of `name` that begins at `start`. Raises ValueError, RecursionError."""
        raw = self._raw.get(name)
        if type(raw) is msgspec.Raw:
            value = bytes(raw)
            if self._body.startswith(value, start):
                end = start + len(value)
                after = _after_space(self._body, end)
                if self._body[after : after + 1] in (b",", b"}"):
                    return end
        if self._text is None:
            self._text = self._body.decode("latin-1")
        return _SCANNER.raw_decode(self._text, start)[1]


def _after_space(body: bytes, at: int) -> int:
    space = _SPACE.match(body, at)
    return at if space is None else space.end()
