"""The top-level fields of a JSON object, decoded one by one and only when asked for.

What nobody asks for is never built. A field of the wrong type is as if absent: whether it is an error is the
backend's to say. Raises msgspec.DecodeError only, where the bytes of an asked-for field are not what msgspec
calls JSON (a lone surrogate, NaN, bad UTF-8).
"""

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Fields:
    """Fields of one object, given as raw JSON or as values that are decoded already."""

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    @classmethod
    def of(cls, body: bytes) -> "Fields":
        """Read the outline of a JSON object.

        Of a key that comes twice, the last value counts, as in engines.
        """
        return cls(_OBJECT.decode(body))

    def __contains__(self, name: str) -> bool:
        return name in self.raw

    @overload
    def get(self, name: str, kind: type[T], default: T, *, strict: bool = True) -> T: ...
    @overload
    def get(self, name: str, kind: type[T], *, strict: bool = True) -> T | None: ...

    def get(self, name: str, kind: type[T], default: T | None = None, *, strict: bool = True) -> T | None:
        """Return the value of a field, or `default` where it is absent, null or of another type.

        Unless `strict`, "true" and 1 are booleans too, as they are to engines.
        """
        value = self.raw.get(name)
        if value is None:
            return default
        try:
            if type(value) is msgspec.Raw:
                found = msgspec.json.decode(value, type=kind | None, strict=strict)
            else:
                found = msgspec.convert(value, type=kind | None, strict=strict)
        except (msgspec.ValidationError, UnicodeEncodeError):  # the latter of a misplaced surrogate
            return default
        return default if found is None else found

    def any(self, name: str) -> Any:
        """Return the value of a field whatever its type; None where it is absent, null or out of range."""
        value = self.raw.get(name)
        if type(value) is not msgspec.Raw:
            return value
        try:
            return msgspec.json.decode(value)
        except msgspec.ValidationError:
            return None
