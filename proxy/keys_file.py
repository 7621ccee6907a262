"""The file that says who may call: read, checked as a whole, and made into a table.

YAML, of which JSON is a part: a list with one entry a caller.

    - name: team-a              # distinct
      sha256: 9f86d0…           # of the key, in hex; a list while a key is being replaced by another
      most: interactive         # highest priority class; that of requests that name none unless said
      models: [llama, qwen]     # as clients name them; all of them unless said
      requests_per_minute: 600  # the setting limits.requests_per_minute unless said
      tokens_per_minute: 2e6    # likewise
      sees_cache: true          # may see the headers that tell what is cached; false unless said

Must never hold, quote or log a key: only digests are here. A plain SHA-256 is enough, and fast, because keys
are made by `make` from 256 random bits: there is nothing to guess, so nothing that a slow hash would protect.
Read as a whole or not at all: what is wrong with any entry is one `ValueError`, and nothing of it is used.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BeforeValidator, Field, PositiveFloat, StringConstraints, TypeAdapter, ValidationError

from proxy.spec import Frozen, Text

CLASSES: Final = ("interactive", "standard", "batch")
"""Priority classes, the highest first."""
USUAL: Final = "standard"
"""The class of a request that names none, and the highest of a caller of whom nothing is said."""
MARK: Final = "wr-"
"""What keys begin with, so that one that leaks into a text can be found."""
SHOWN: Final = 8
"""Bytes of a digest under which it is looked up; the whole digest is then compared in constant time."""
_LARGEST: Final = 16 << 20

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._@-]+$", max_length=64)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]


@dataclass(slots=True, frozen=True)
class Caller:
    """Somebody who calls: what they are called, and what they may do."""

    name: str
    """The name of a key, or the address of a client where there are no keys."""
    most: str = CLASSES[0]
    """The highest priority class that it may use."""
    models: frozenset[str] | None = None
    """As clients name them; None is all of them."""
    sees_cache: bool = True
    """Whether it gets the headers that tell what is cached."""
    requests_per_minute: float | None = None
    """None is no limit."""
    tokens_per_minute: float | None = None
    """Prompt and answer together; None is no limit."""

    def may_use(self, model: str | None) -> bool:
        """Whether it may ask for a model; None is a request that names none."""
        return self.models is None or model in self.models


Table = dict[bytes, tuple[bytes, Caller]]
"""The first `SHOWN` bytes of a key's digest to the whole digest, and whose key it is."""


class _Entry(Frozen):
    name: Name
    sha256: Annotated[
        tuple[Digest, ...],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        Field(min_length=1),
    ]
    most: Text | None = None
    models: frozenset[Text] | None = None
    requests_per_minute: PositiveFloat | None = None
    tokens_per_minute: PositiveFloat | None = None
    sees_cache: bool = False


_ENTRIES = TypeAdapter(list[_Entry])


def read(
    path: Path,
    *,
    classes: Sequence[str] = CLASSES,
    usual: str = USUAL,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
) -> Table:
    """Read a file; `usual` and the two rates are those of entries that say nothing of them.

    Raises ValueError, a phrase that follows the setting's name. No key and no digest is in it.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise ValueError(f"cannot be read ({path}: {error.strerror}): name a readable file") from None
    if len(raw) > _LARGEST:
        raise ValueError(f"is over {_LARGEST >> 20} MiB ({path}): name the file that holds the keys")
    table: Table = {}
    names: set[str] = set()
    for entry in _entries(path, raw):
        if entry.name in names:
            raise ValueError(f"names {entry.name!r} twice ({path}): put both digests under one name")
        names.add(entry.name)
        most = entry.most or usual
        if most not in classes:
            raise ValueError(
                f"lets {entry.name!r} use the class {most!r} ({path}): there are {', '.join(classes)}"
            )
        caller = Caller(
            entry.name,
            most,
            entry.models,
            entry.sees_cache,
            entry.requests_per_minute or requests_per_minute,
            entry.tokens_per_minute or tokens_per_minute,
        )
        for each in entry.sha256:
            digest = bytes.fromhex(each)
            if digest[:SHOWN] in table:
                raise ValueError(f"holds a key of {entry.name!r} twice ({path}): make another one")
            table[digest[:SHOWN]] = (digest, caller)
    return table


def make(name: str) -> tuple[str, str]:
    """Make a key: the key itself, and the line that lets it in. Raises ValueError for a name that is none."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise ValueError("should be up to 64 letters, digits and . _ - @") from None
    key = MARK + secrets.token_urlsafe(32)
    return key, f'- {{name: "{name}", sha256: "{sha256(key.encode()).hexdigest()}"}}\n'


def _entries(path: Path, raw: bytes) -> list[_Entry]:
    try:
        content: Any = yaml.safe_load(raw.decode())
    except UnicodeDecodeError:
        raise ValueError(f"is not a text file ({path}): write YAML or JSON in UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "somewhere"
        raise ValueError(f"is not valid YAML ({path}, {where}): correct it") from None
    if not isinstance(content, list):  # a file that is empty is rather one that is being written
        raise ValueError(  # noqa: TRY004 - the caller's one kind
            f"should hold a list of keys ({path}): `warmroute key NAME` makes one; [] is none"
        )
    try:
        return _ENTRIES.validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        at, *inside = first["loc"]
        entry = content[at] if isinstance(at, int) else None
        name = entry.get("name") if isinstance(entry, dict) else None
        which = repr(name)[:80] if isinstance(name, str) else f"entry {at + 1 if isinstance(at, int) else at}"
        reason = _reason(str(inside[0])[:40] if inside else "", first["type"], first["msg"])
        raise ValueError(f"cannot be used ({path}): of {which}, {reason}") from None


def _reason(field: str, kind: str, message: str) -> str:
    if not field:
        return "an object with name and sha256 is needed"
    if kind == "extra_forbidden":
        return f"{field!r} is not known: there are {', '.join(_Entry.model_fields)}"
    if kind == "missing":
        return f"{field} is missing"
    if field == "sha256":
        return "sha256 should be 64 hex digits, or a list of such: `warmroute key NAME` makes one"
    if field == "name":
        return "name should be up to 64 letters, digits and . _ - @"
    return f"{field}: {message[:1].lower()}{message[1:]}"
