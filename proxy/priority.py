"""Classes of requests, as a person configures them: their order, and what each may take. No more than data.

Invariant: a `Priority` describes every class that it names completely, and nothing else.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    StringConstraints,
    model_validator,
)

from proxy.spec import Frozen, parse_json, split_commas

ClassName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=32)]


def pairs(what: str) -> Callable[[Any], Any]:
    """A reader of `name=what,…`, or an object, as an object."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if value.lstrip().startswith("{"):
            return parse_json(value)
        found: dict[str, str] = {}
        for text in split_commas(value):
            name, equals, given = (part.strip() for part in text.partition("="))
            if not (name and equals and given):
                raise ValueError(f"should be written name={what},other={what}")
            if name in found:
                raise ValueError(f"names {name!r} twice")
            found[name] = given
        return found

    return read


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) != len(names):
        raise ValueError("should name one class or more, each once")
    return names


Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class Priority(Frozen):
    """Who goes first when there is not room for all."""

    classes: Annotated[tuple[ClassName, ...], BeforeValidator(split_commas), AfterValidator(_distinct)] = (
        "interactive",
        "standard",
        "batch",
    )
    """classes that X-Warmroute-Priority may name, the first of them first"""
    default: ClassName = "standard"
    """class of a request that names none, or none there is"""
    weights: Annotated[dict[str, PositiveFloat], BeforeValidator(pairs("share"))] = Field(
        default={"interactive": 64.0, "standard": 8.0, "batch": 1.0}
    )
    """name=share,…: uncached tokens let in for each class while several wait; 1 where not named"""
    ceilings: Annotated[dict[str, Share], BeforeValidator(pairs("share"))] = Field(
        default={"standard": 0.9, "batch": 0.78}
    )
    """name=share,…: of a replica's limit that a class may fill while a higher class has been seen in the last
    minute; 1 where not named"""
    prefill: Annotated[dict[str, NonNegativeFloat], BeforeValidator(pairs("seconds"))] = Field(
        default={"standard": 1.0, "batch": 0.0}
    )
    """name=seconds,…: prefill that may wait at a replica which is sent a request of a class, likewise; no
    limit where not named"""
    urgency: Annotated[dict[str, PositiveFloat], BeforeValidator(pairs("factor"))] = Field(
        default={"interactive": 4.0}
    )
    """name=factor,…: what a second of waiting counts when a replica is chosen; 1 where not named"""
    queue: Annotated[dict[str, Count], BeforeValidator(pairs("count"))] = Field(default={})
    """name=count,…: requests of a class that may wait, 1000 where not named; above it: 429"""
    wait: Annotated[dict[str, PositiveFloat], BeforeValidator(pairs("seconds"))] = Field(
        default={"interactive": 30.0, "batch": 600.0}
    )
    """name=seconds,…: longest that a request of a class waits, 120 where not named; then: 429"""
    ageing: PositiveFloat = 5.0
    """seconds that a class waits at most until one of its requests is let in before and beyond its share"""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """What was set names only classes that there are; of the defaults, what names others is dropped."""
        classes, given = self.classes, self.model_fields_set
        if self.default not in classes:
            if "default" in given:
                raise ValueError(f"default is {self.default!r}, which is none of {', '.join(classes)}")
            object.__setattr__(self, "default", classes[len(classes) // 2])
        for what in ("weights", "ceilings", "prefill", "urgency", "queue", "wait"):
            named: Mapping[str, Any] = getattr(self, what)
            strange = next((name for name in named if name not in classes), None)
            if strange is not None and what in given:
                raise ValueError(f"{what} names {strange!r}, which is none of {', '.join(classes)}")
            object.__setattr__(self, what, {name: named[name] for name in classes if name in named})
        return self
