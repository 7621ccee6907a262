"""Reads what an engine says of itself: its models, its cache, when it started. Pure; no I/O.

Both the current metric names and those they replaced are known. What is not there is None: unknown is not
zero, and a metric that was renamed must not read as an idle replica.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from proxy.fleet import Description

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


def read_props(body: bytes, description: Description) -> None:
    """Fill in what llama.cpp's /props tells."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return
    slots = told.get("total_slots") if isinstance(told, Mapping) else None
    if isinstance(slots, int) and slots > 0:
        description.max_seqs = slots


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


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else None
