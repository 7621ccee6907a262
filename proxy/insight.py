"""What is looked at beside routing, as a person configures it. No more than values."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, StringConstraints

from proxy.spec import Frozen


class Breaks(Frozen):
    """Where prompts stop sharing."""

    per_second: NonNegativeFloat = 20.0
    """requests a second, of those that found little or nothing in caches, that are looked at for what made
    them differ, within a hundredth of one core's time; 0: none"""
    windows: bool = False
    """true: /admin/breaks shows the words around a break, with what differs masked; they are a prompt's own
    words, so they are not kept otherwise"""


class Savings(Frozen):
    """What caches save."""

    gpus_per_replica: PositiveFloat = 1.0
    """GPUs that a replica computes with, as in tensor parallelism"""
    price_per_gpu_hour: Annotated[float, Field(gt=0)] | None = None
    """what a GPU costs an hour; without it, savings are told in GPU-seconds only"""
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Za-z$€£¥]{1,8}$")] = "USD"
    """of that price"""
    sample: Annotated[float, Field(ge=0, le=1)] = 0.05
    """share of prompt starts that are also placed as round robin would, to know what it would have found
    cached; 0: savings are not told"""


class Tracing(Frozen):
    """Spans of requests, for OpenTelemetry; needs the extra `tracing`."""

    endpoint: Annotated[str, StringConstraints(pattern=r"^https?://[^\s?#]+$")] | None = None
    """URL of a collector that speaks OTLP over HTTP, as http://collector:4318; off if not set"""
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01
    """share of the requests that come without a traceparent to be traced; with one, it says"""
