"""Reads what an engine says of itself: its models, its cache, when it started. Pure; no I/O.

Both the current metric names and those they replaced are known. What is not there is None: unknown is not
zero, and a metric that was renamed must not read as an idle replica.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from proxy.description import Description, FeedSpec
from proxy.spec import OFF, ReplicaSpec

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp"}
"""`owned_by` in /v1/models to the engine's name here."""

_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_STARTED = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
_KV_USAGE = (
    re.compile(r"^vllm:kv_cache_usage_perc(?:\{[^}]*\})? (\S+)", re.MULTILINE),
    re.compile(r"^vllm:gpu_cache_usage_perc(?:\{[^}]*\})? (\S+)", re.MULTILINE),
    re.compile(r"^sglang:token_usage(?:\{[^}]*\})? (\S+)", re.MULTILINE),
)
_ENDPOINT = re.compile(r"^(tcp://)(.+)(:\d+)$")
_ANY_HOST = frozenset(("*", "0.0.0.0", "::", "[::]"))  # noqa: S104 - what a publisher binds is told, not bound here


class _Models(msgspec.Struct):
    data: list[dict[str, Any]] = []


def read_models(body: bytes, server: str = "") -> Description:
    """The engine and its models from the reply of /v1/models. Raises ValueError if it is none."""
    try:
        cards = msgspec.json.decode(body, type=_Models).data
    except msgspec.MsgspecError as error:
        raise ValueError("the reply of /v1/models is not a list of models") from error
    description = Description()
    for card in cards:
        name, parent, root = card.get("id"), card.get("parent"), card.get("root")
        if not isinstance(name, str):
            continue
        description.models[name] = parent if isinstance(parent, str) else None
        description.cards[name] = card
        if not isinstance(parent, str) and description.root is None and isinstance(root, str):
            description.root = root
        description.engine = OWNERS.get(str(card.get("owned_by")), description.engine)
    if server.lower().startswith("llama.cpp"):
        description.engine = "llama_cpp"
    return description


def read_metrics(page: str, description: Description) -> None:
    """Fill in what a /metrics page tells of the cache and the process."""
    config = _CACHE_CONFIG.search(page)
    if config is not None:
        labels = dict(_LABEL.findall(config[1]))
        description.block_size = _count(labels.get("block_size")) or description.block_size
        description.cache_blocks = _count(labels.get("num_gpu_blocks")) or description.cache_blocks
        if labels.get("enable_prefix_caching") == "False":
            description.caches = False
    description.started_at = started_at(page) or description.started_at


def read_server_info(body: bytes, description: Description) -> None:
    """Fill in what SGLang's /server_info tells."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return
    if not isinstance(told, Mapping):
        return
    page, tokens = told.get("page_size"), told.get("max_total_num_tokens")
    if isinstance(page, int) and page > 0:
        description.block_size = page
        if isinstance(tokens, int) and tokens > 0:
            description.cache_blocks = max(1, tokens // page)
    slots = told.get("max_running_requests")
    if isinstance(slots, int) and slots > 0:
        description.max_seqs = slots
    root = told.get("tokenizer_path") or told.get("model_path")
    if isinstance(root, str):
        description.root = root
    description.feed = _sglang_feed(told)


def read_props(body: bytes, description: Description) -> None:
    """Fill in what llama.cpp's /props tells."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return
    slots = told.get("total_slots") if isinstance(told, Mapping) else None
    if isinstance(slots, int) and slots > 0:
        description.max_seqs = slots


def read_kv_event_sources(body: bytes, rank: int = 0) -> FeedSpec | None:
    """What vLLM's /kv_event_sources tells of a data-parallel rank; None if it publishes nothing."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return None
    source = told.get(str(rank)) if isinstance(told, Mapping) else None
    if not isinstance(source, Mapping) or source.get("publisher") != "zmq":
        return None
    endpoint, replay, topic = source.get("endpoint"), source.get("replay_endpoint"), source.get("topic")
    if not isinstance(endpoint, str) or source.get("enable_kv_cache_events") is False:
        return None
    return FeedSpec(
        endpoint,
        replay=replay if isinstance(replay, str) else None,
        topic=topic if isinstance(topic, str) else "",
        rank=rank,
        ranks=len(told),
    )


def feed(spec: ReplicaSpec, told: FeedSpec | None) -> FeedSpec | None:
    """Where to follow a replica's events: what is configured, else what it told, on its own host.

    A wildcard in the settings means that the engine dials in (vLLM connects where its own endpoint has none);
    in what an engine tells it means the engine's own addresses.
    """
    if spec.kv_events == OFF:
        return None
    host = urlsplit(spec.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    replay = spec.kv_replay or (told.replay if told is not None else None)
    replay = None if replay is None else _at(replay, host)
    if spec.kv_events is not None:
        known = told or FeedSpec(spec.kv_events)
        return replace(known, endpoint=spec.kv_events, bind=_is_wildcard(spec.kv_events), replay=replay)
    return None if told is None else replace(told, endpoint=_at(told.endpoint, host), replay=replay)


def started_at(page: str) -> float | None:
    """When the process began, in Unix seconds."""
    found = _STARTED.search(page)
    return None if found is None else _number(found[1])


def kv_usage(page: str) -> float | None:
    """The share of the KV cache in use, 0 to 1: the mean over an engine's ranks; None if it does not say."""
    for pattern in _KV_USAGE:
        values = [value for text in pattern.findall(page) if (value := _number(text)) is not None]
        if values:
            return min(max(sum(values) / len(values), 0.0), 1.0)
    return None


def _sglang_feed(told: Mapping[str, Any], rank: int = 0) -> FeedSpec | None:
    """The feed in /server_info: its block `kv_events`; only the flag's own text names a replay endpoint."""
    block = told.get("kv_events")
    if not isinstance(block, Mapping) or block.get("publisher") != "zmq":
        return None
    host, base, topic = block.get("endpoint_host"), block.get("endpoint_port_base"), block.get("topic")
    size, ranks = block.get("block_size"), block.get("dp_size")
    if not isinstance(host, str) or not isinstance(base, int):
        return None
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return FeedSpec(
        f"tcp://{host}:{base + rank}",
        replay=_sglang_replay(told.get("kv_events_config"), rank),
        topic=topic if isinstance(topic, str) else "",
        block_size=size if isinstance(size, int) and size > 0 else None,
        rank=rank,
        ranks=ranks if isinstance(ranks, int) and ranks > 0 else 1,
    )


def _sglang_replay(flag: object, rank: int) -> str | None:
    try:
        config = msgspec.json.decode(flag) if isinstance(flag, str) else None
    except msgspec.MsgspecError:
        return None
    replay = config.get("replay_endpoint") if isinstance(config, Mapping) else None
    parts = _ENDPOINT.match(replay) if isinstance(replay, str) else None
    return None if parts is None else f"{parts[1]}{parts[2]}:{int(parts[3][1:]) + rank}"


def _is_wildcard(endpoint: str) -> bool:
    parts = _ENDPOINT.match(endpoint)
    return parts is not None and parts[2] in _ANY_HOST


def _at(endpoint: str, host: str) -> str:
    """The endpoint, on this host if it is bound on every address of its machine."""
    parts = _ENDPOINT.match(endpoint)
    return f"{parts[1]}{host}{parts[3]}" if parts is not None and parts[2] in _ANY_HOST else endpoint


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None
