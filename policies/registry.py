"""The catalogue: a policy registers itself by name, and every sibling module is found without being listed.

Adding a policy is adding one file here. Parameters are the dataclass's fields; a value that arrives as text
("0.3", from an environment variable) is converted to the field's type, and nothing unknown is dropped
silently.
"""

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from policies.base import Policy

P = TypeVar("P", bound=Policy)
T = TypeVar("T")

_policies: dict[str, type[Policy]] = {}


@dataclass(slots=True, frozen=True)
class Parameter:
    """One parameter of a policy, for a listing."""

    name: str
    type: str
    default: object
    doc: str


@dataclass(slots=True, frozen=True)
class Description:
    """One policy, for a listing."""

    name: str
    summary: str
    doc: str
    parameters: tuple[Parameter, ...]


def parameter(default: T, doc: str, *, least: float | None = None, most: float | None = None) -> T:
    """A field of a policy's dataclass: default, meaning with its unit, inclusive bounds."""
    return dataclasses.field(default=default, metadata={"doc": doc, "least": least, "most": most})


def register(name: str) -> Callable[[type[P]], type[P]]:
    """Make a dataclass the policy of this name."""

    def add(policy: type[P]) -> type[P]:
        if name in _policies:
            raise ValueError(
                f"two policies are named {name!r}: {_policies[name].__module__}, {policy.__module__}"
            )
        _policies[name] = policy
        return policy

    return add


@cache
def _discover() -> None:
    package = Path(__file__).parent
    for module in sorted(found.name for found in pkgutil.iter_modules([str(package)])):
        importlib.import_module(f"policies.{module}")


def names() -> tuple[str, ...]:
    """Every policy's name, sorted."""
    _discover()
    return tuple(sorted(_policies))


def unit(name: str) -> str:
    """What a policy's scores are counted in: `seconds`, or `points` where they have no unit."""
    return str(getattr(_find(name), "unit", "points"))


def create(name: str, params: Mapping[str, object] | None = None) -> Policy:
    """Build a policy. ValueError names what is unknown, the nearest match, or what is wrong with a value."""
    policy = _find(name)
    fields = _parameters(policy)
    hints = get_type_hints(policy)
    values = {}
    for key, value in (params or {}).items():
        if key not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has none"
            raise ValueError(f"policy {name} has no parameter {key!r}{_nearest(key, fields)} ({known})")
        values[key] = _convert(name, fields[key], hints[key], value)
    return policy(**values)


def describe() -> tuple[Description, ...]:
    """Every policy with its documentation, parameters and defaults."""
    return tuple(_description(name) for name in names())


def _find(name: str) -> type[Policy]:
    _discover()
    if name not in _policies:
        raise ValueError(
            f"unknown policy {name!r}{_nearest(name, _policies)} (there are {', '.join(names())})"
        )
    return _policies[name]


def _parameters(policy: type[Policy]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cast(Any, policy)) if field.init}


def _convert(policy: str, field: dataclasses.Field[Any], hint: Any, value: object) -> object:
    least, most = field.metadata.get("least"), field.metadata.get("most")
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False))
        converted: Any = adapter.validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ValueError(f"policy {policy}, parameter {field.name}: {reason} (got {value!r})") from None
    if least is not None and converted < least:
        raise ValueError(
            f"policy {policy}, parameter {field.name}: must be at least {least:g} (got {value!r})"
        )
    if most is not None and converted > most:
        raise ValueError(f"policy {policy}, parameter {field.name}: must be at most {most:g} (got {value!r})")
    return converted


def _description(name: str) -> Description:
    policy = _find(name)
    hints = get_type_hints(policy)
    doc = sys.modules[policy.__module__].__doc__ or ""
    parameters = tuple(
        Parameter(field.name, hints[field.name].__name__, field.default, field.metadata["doc"])
        for field in _parameters(policy).values()
    )
    return Description(name, doc.partition("\n")[0], doc, parameters)


def _nearest(name: str, known: Mapping[str, object]) -> str:
    match = get_close_matches(name, known, n=1)
    return f"; did you mean {match[0]!r}?" if match else ""
