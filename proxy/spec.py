"""A replica as a person configures it: one URL, or a JSON object.

Never asks the replica anything. Invariant: the URL is a bare origin, so a request's path can follow it.
"""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

_FEED = re.compile(r"tcp://(\[[0-9A-Fa-f:.%]+\]|[^\s:/@?#\[\]]+):(\d{1,5})", re.ASCII)
_ADDRESS = re.compile(r"\s*https?://(?:[^@/]*@)?([\w.:\[\]-]+)(?:[/?#\s]|$)", re.ASCII)
OFF = "off"
"""In place of where a replica publishes: its events are not followed."""
Text = Annotated[str, StringConstraints(min_length=1)]


class Frozen(BaseModel):
    """Settings never change, and hold nothing that was not asked for."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_default=True
    )


class ReplicaSpec(Frozen):
    """A replica as configured. What is None is asked of the replica itself."""

    url: str
    """`http://host:port` or `https://host:port`: lower case, the port only where it was given, no path."""
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:\[\]-]+$", max_length=128)]
    """How metrics, headers and logs call it; host:port unless given."""
    engine: Literal["vllm", "sglang", "llama_cpp", "openai"] | None = None
    model: Text | None = None
    capacity: PositiveInt | None = None
    """Blocks that its KV cache holds; each of its ranks, if it has several."""
    block_size: PositiveInt | None = None
    """Tokens per block."""
    max_seqs: PositiveInt | None = None
    """Sequences that it runs at once; each of its ranks, if it has several."""
    ranks: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Data-parallel ranks behind its address, each then a replica of its own, `name@rank`.

    1: its own balancer chooses among them, and what they cache is guessed.
    """
    priority: Literal["low_first", "high_first"] | None = None
    """Whether its engine schedules by priority, and which values it takes first: vLLM with
    --scheduling-policy priority low_first, SGLang with --enable-priority-scheduling high_first."""
    server_name: Text | None = None
    """The name that its certificate is for, where that is not the URL's host."""
    kv_events: Text | None = None
    """`tcp://host:port` where its engine publishes KV events; of the first rank if it has several.

    `tcp://*:port` where the engine dials in to this proxy; `off`: they are not followed.
    """
    kv_replay: Text | None = None
    """`tcp://host:port` where its engine replays them; of the first rank if it has several."""

    @model_validator(mode="before")
    @classmethod
    def _name_by_address(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("name") is None:
            address = _ADDRESS.match(str(value.get("url")))
            return {**value, "name": address[1].lower() if address else "unnamed"}
        return value

    @field_validator("url")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        try:
            url = urlsplit(value.strip())
            port = url.port
        except ValueError as error:
            raise ValueError(f"is not a URL ({error})") from None
        if url.scheme not in ("http", "https"):
            raise ValueError("should begin with http:// or https://")
        if not url.hostname or re.search(r"\s", value.strip()):
            raise ValueError("should be http://host:port")
        if port == 0:
            raise ValueError("should name a port from 1 to 65535")
        if "@" in url.netloc:
            raise ValueError("should carry no credentials; the setting upstream_api_key is for them")
        if url.path not in ("", "/") or url.query or url.fragment:
            raise ValueError("should end after the port; every request brings its own path")
        return f"{url.scheme}://{url.netloc.lower()}"

    @field_validator("kv_events", "kv_replay")
    @classmethod
    def _can_be_connected_to(cls, value: str | None, field: ValidationInfo) -> str | None:
        if value is None:
            return None
        found = _FEED.fullmatch(value.strip())
        is_feed = field.field_name == "kv_events"
        if is_feed and value.strip() == OFF:
            return OFF
        if found is None or not 0 < int(found[2]) < 65536:
            raise ValueError("should be tcp://host:port" + (" or off" if is_feed else ""))
        if found[1] in ("*", "0.0.0.0", "[::]") and not is_feed:  # noqa: S104 - refused, not bound
            raise ValueError("is what the engine binds; name the replica's own host instead")
        return value.strip()


def parse_json(text: str) -> Any:
    """Decode JSON; ValueError is a phrase that follows the setting's name."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON ({error.msg} at character {error.pos})") from None


def split_commas(value: Any) -> Any:
    """`a, b` or a list, as a list."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def parse_replicas(value: Any) -> Any:
    """Comma-separated URLs or JSON objects, or a list of either, as a list of objects."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        value = parse_json(value if value.lstrip()[0] == "[" else f"[{value}]")
    value = split_commas(value)
    if isinstance(value, (list, tuple)):
        return [{"url": item} if isinstance(item, str) else item for item in value]
    return value
