"""The two changes that are ever made to a body, each to the fewest bytes possible.

Every byte that is not named here stays as it came: unknown fields, odd whitespace, escapes, 19-digit
integers. Never raises: a body that cannot be read is given back as it is, for the backend to judge.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from proxy.prompt.fields import Fields

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(rb"[ \t\n\r]*")
_KEY = re.compile(rb'("(?:[^"\\]|\\.)*")[ \t\n\r]*:[ \t\n\r]*')
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
    spans = [(start, end) for key, start, end in top_level(body) if key == "model"]
    name = msgspec.json.encode(model)
    for start, end in reversed(spans):
        body = body[:start] + name + body[end:]
    return body


def has_duplicates(body: bytes, raw: Mapping[str, Any]) -> bool:
    """Tell whether a key of the object comes twice; `raw` is its outline."""
    seen = set()
    for key, _, _ in top_level(body, raw):
        if key in seen:
            return True
        seen.add(key)
    return len(seen) != len(raw)


def top_level(body: bytes, raw: Mapping[str, Any] | None = None) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of each top-level value, in the order they come; stop where it is not JSON."""
    if raw is None:
        try:
            raw = Fields.of(body).raw
        except (msgspec.DecodeError, ValueError, RecursionError):
            raw = {}
    at = _after_space(body, len(_BOM) if body.startswith(_BOM) else 0)
    if body[at : at + 1] != b"{":
        return
    try:
        while (key := _KEY.match(body, _after_space(body, at + 1))) is not None:
            name = json.loads(key[1])
            end = _value_end(body, key.end(), raw.get(name))
            yield name, key.end(), end
            at = _after_space(body, end)
            if body[at : at + 1] != b",":
                return
    except (ValueError, RecursionError):
        return


def _after_space(body: bytes, at: int) -> int:
    space = _SPACE.match(body, at)
    return at if space is None else space.end()


def _value_end(body: bytes, start: int, raw: Any) -> int:
    """Find where the value at `start` ends.

    The outline holds the bytes of each key's last value: where they stand here, and a value ends after them,
    this is it. Otherwise (an earlier one of two values) scan; Latin-1 keeps byte offsets.
    """
    if type(raw) is msgspec.Raw:
        value = bytes(raw)
        if body.startswith(value, start):
            end = start + len(value)
            after = _after_space(body, end)
            if body[after : after + 1] in (b",", b"}"):
                return end
    return json.JSONDecoder().raw_decode(body.decode("latin-1"), start)[1]
