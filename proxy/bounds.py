"""How long, how large and how often, as a person configures it. No more than values."""

from typing import Annotated, Literal

from pydantic import ByteSize, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from proxy.spec import Frozen


class Timeouts(Frozen):
    """Seconds. There is no limit on how long a generation may take."""

    connect: PositiveFloat = 2.0
    """seconds to open a connection to a replica"""
    first_byte: PositiveFloat = 600.0
    """seconds from the request sent to the first byte of the answer"""
    idle: PositiveFloat = 300.0
    """seconds without a byte before an answer counts as dead"""
    keepalive: NonNegativeFloat = 4.0
    """seconds that an idle connection to a replica is kept; below the engine's own (uvicorn: 5)"""
    request: PositiveFloat = 120.0
    """seconds that a request may take to arrive, from its first byte to its last; then: 408"""
    client_keepalive: NonNegativeFloat = 75.0
    """seconds that an idle connection of a client is kept"""


class Limits(Frozen):
    """What one request, and retrying, may take."""

    body_bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(64 * 1024**2)
    """largest body of a request (64MiB is understood); above it: 413"""
    header_bytes: Annotated[ByteSize, Field(gt=0)] = ByteSize(64 * 1024)
    """largest set of headers, of a request and of an answer"""
    attempts: PositiveInt = 3
    """replicas that one request may be sent to before it fails"""
    retry_budget: Annotated[float, Field(ge=0, le=1)] = 0.1
    """retries per request over the last 10 s; a few are always allowed, and what a replica that has died or
    refuses connections had not begun to answer is saved beside it"""
    concurrency: PositiveInt | Literal["none", "adaptive"] = "adaptive"
    """sequences that a replica is given at once, the rest waits here: a number, none (no limit), or adaptive:
    starts at what the engine runs, then follows the times to first tokens"""
    requests_per_minute: PositiveFloat | None = None
    """requests a minute of each API key, unless the file of keys says other; without keys, of each address"""
    tokens_per_minute: PositiveFloat | None = None
    """likewise tokens, of prompts and answers together"""
    pool_size: PositiveInt = 128
    """idle connections kept per replica"""


class Probes(Frozen):
    """How replicas are watched."""

    interval: PositiveFloat = 2.0
    """seconds between two probes of a replica"""
    timeout: PositiveFloat = 2.0
    """seconds that a probe may take"""
    misses: PositiveInt = 3
    """probes failed in a row before a replica counts as down"""
    recoveries: PositiveInt = 1
    """probes answered in a row before it counts as up again"""
