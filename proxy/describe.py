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

from proxy.description import DEFAULT_BLOCK, Description, FeedSpec
from proxy.spec import OFF, ReplicaSpec

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp"}
"""`owned_by` in /v1/models to the engine's name here."""

_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_RANK_LABELS = ("engine", "dp_rank")
"""What vLLM and SGLang tell their data-parallel ranks apart by."""
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_STARTED = re.compile(r"^process_start_time_seconds (\S+)", re.MULTILINE)
_KV_USAGE = (
    re.compile(r"^vllm:kv_cache_usage_perc(?:\{([^}]*)\})? (\S+)", re.MULTILINE),
    re.compile(r"^vllm:gpu_cache_usage_perc(?:\{([^}]*)\})? (\S+)", re.MULTILINE),
    re.compile(r"^sglang:token_usage(?:\{([^}]*)\})? (\S+)", re.MULTILINE),
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


def read_metrics(page: str, description: Description, rank: int = 0) -> None:
    """Fill in what a /metrics page tells of a rank's cache and of the process."""
    told = [dict(_LABEL.findall(config[1])) for config in _CACHE_CONFIG.finditer(page)]
    if told:
        labels = next((each for each in told if _rank_of(each) == rank), told[0])
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
    ranks, slots = told.get("dp_size"), told.get("max_running_requests")
    description.ranks = ranks if isinstance(ranks, int) and ranks > 0 else None
    if isinstance(slots, int) and slots > 0:  # with attention that is data-parallel, of all ranks together
        shared = description.ranks if told.get("enable_dp_attention") is True else None
        description.max_seqs = max(1, slots // (shared or 1))
    root = told.get("tokenizer_path") or told.get("model_path")
    if isinstance(root, str):
        description.root = root
    description.feed = _sglang_feed(told)
    if description.feed is not None:
        description.ranks = description.ranks or description.feed.ranks


def read_props(body: bytes, description: Description) -> None:
    """Fill in what llama.cpp's /props tells."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return
    if not isinstance(told, Mapping):
        return
    slots, settings = told.get("total_slots"), told.get("default_generation_settings")
    if not isinstance(slots, int) or slots <= 0:
        return
    description.max_seqs = slots
    room = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    if isinstance(room, int) and room > 0:  # tokens of one slot
        description.cache_blocks = max(1, slots * room // (description.block_size or DEFAULT_BLOCK))


def read_kv_event_sources(body: bytes) -> dict[int, FeedSpec]:
    """What vLLM's /kv_event_sources tells, by data-parallel rank; empty if it publishes nothing.

    It was seen as a mapping of ranks, as a list, and as a list under `sources`. Ranks that all tell one
    endpoint tell what it was configured as: rank r has the port r above it.
    """
    try:
        told = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return {}
    told = told.get("sources", told) if isinstance(told, Mapping) else told
    if isinstance(told, list):
        told = {str(each.get("data_parallel_rank", 0)): each for each in told if isinstance(each, Mapping)}
    if not isinstance(told, Mapping):
        return {}
    feeds: dict[int, FeedSpec] = {}
    for name, source in told.items():
        rank = int(name) if name.isascii() and name.isdigit() else None
        if rank is not None and (feed := _vllm_feed(source, rank, len(told))) is not None:
            feeds[rank] = feed
    if len(feeds) > 1 and len({feed.endpoint for feed in feeds.values()}) == 1:
        return {rank: at_rank(feed, rank) for rank, feed in feeds.items()}
    return feeds


def by_rank(
    spec: ReplicaSpec, engine: Description, feeds: Mapping[int, FeedSpec], page: str | None
) -> list[Description]:
    """What each rank of an engine is, from what is said of the engine; one where it has no ranks.

    `feeds`: of those ranks that were told each for itself. `page`: its /metrics. What is configured prevails.
    """
    numbered = sorted(feeds) == list(range(len(feeds)))  # else none of them is steered to
    ranks = spec.ranks or engine.ranks or (len(feeds) if feeds and numbered else 1)
    first = engine.feed or next((feeds[rank] for rank in sorted(feeds)), None)
    described: list[Description] = []
    for rank in range(ranks):
        one = replace(engine, ranks=ranks)
        if page is not None and ranks > 1:
            read_metrics(page, one, rank)
        told = feeds.get(rank)
        if told is None and first is not None:
            told = at_rank(first, rank) if ranks > 1 else first
        one.feed = feed(spec, told, rank)
        if one.feed is not None and ranks > 1:
            one.feed = replace(one.feed, ranks=1)
        one.block_size = spec.block_size or one.block_size
        one.cache_blocks = spec.capacity or one.cache_blocks
        one.max_seqs = spec.max_seqs or one.max_seqs
        described.append(one)
    return described


def feed(spec: ReplicaSpec, told: FeedSpec | None, rank: int = 0) -> FeedSpec | None:
    """Where to follow a rank's events: what is configured for the first, else what it told, on its own host.

    A wildcard in the settings means that the engine dials in (vLLM connects where its own endpoint has none);
    in what an engine tells it means the engine's own addresses.
    """
    if spec.kv_events == OFF:
        return None
    host = urlsplit(spec.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    replay = told.replay if told is not None else None
    replay = replay if spec.kv_replay is None else _above(spec.kv_replay, rank)
    replay = None if replay is None else _at(replay, host)
    if spec.kv_events is not None:
        endpoint = _above(spec.kv_events, rank)
        known = told or FeedSpec(endpoint, rank=rank)
        return replace(known, endpoint=endpoint, bind=_is_wildcard(endpoint), replay=replay)
    return None if told is None else replace(told, endpoint=_at(told.endpoint, host), replay=replay)


def at_rank(first: FeedSpec, rank: int) -> FeedSpec:
    """The feed of another rank of the engine whose first has this one: its ports are as far above."""
    replay = None if first.replay is None else _above(first.replay, rank)
    return replace(first, endpoint=_above(first.endpoint, rank), replay=replay, rank=rank)


def started_at(page: str) -> float | None:
    """When the process began, in Unix seconds."""
    found = _STARTED.search(page)
    return None if found is None else _number(found[1])


def kv_usage(page: str, rank: int | None = None) -> float | None:
    """The share of the KV cache in use, 0 to 1; None if it does not say.

    Of one rank, if it tells its ranks apart, else the mean over all.
    """
    for pattern in _KV_USAGE:
        values = [
            (value, _rank_of(dict(_LABEL.findall(labels))))
            for labels, text in pattern.findall(page)
            if (value := _number(text)) is not None
        ]
        own = [value for value, of in values if rank is not None and of == rank]
        if chosen := own or [value for value, _ in values]:
            return min(max(sum(chosen) / len(chosen), 0.0), 1.0)
    return None


def _rank_of(labels: Mapping[str, str]) -> int | None:
    return next((int(labels[name]) for name in _RANK_LABELS if labels.get(name, "").isdecimal()), None)


def _vllm_feed(source: object, rank: int, ranks: int) -> FeedSpec | None:
    """The feed in one entry of /kv_event_sources."""
    if not isinstance(source, Mapping) or source.get("publisher", "zmq") != "zmq":
        return None
    endpoint, replay, topic = source.get("endpoint"), source.get("replay_endpoint"), source.get("topic")
    if not isinstance(endpoint, str) or source.get("enable_kv_cache_events") is False:
        return None
    return FeedSpec(
        endpoint,
        replay=replay if isinstance(replay, str) else None,
        topic=topic if isinstance(topic, str) else "",
        rank=rank,
        ranks=ranks,
    )


def _sglang_feed(told: Mapping[str, Any]) -> FeedSpec | None:
    """The first rank's feed in /server_info: its block `kv_events`; only the flag's text names a replay."""
    block = told.get("kv_events")
    if not isinstance(block, Mapping) or block.get("publisher") != "zmq":
        return None
    host, base, topic = block.get("endpoint_host"), block.get("endpoint_port_base"), block.get("topic")
    size, ranks = block.get("block_size"), block.get("dp_size")
    if not isinstance(host, str) or not isinstance(base, int):
        return None
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return FeedSpec(
        f"tcp://{host}:{base}",
        replay=_sglang_replay(told.get("kv_events_config")),
        topic=topic if isinstance(topic, str) else "",
        block_size=size if isinstance(size, int) and size > 0 else None,
        ranks=ranks if isinstance(ranks, int) and ranks > 0 else 1,
    )


def _sglang_replay(flag: object) -> str | None:
    try:
        config = msgspec.json.decode(flag) if isinstance(flag, str) else None
    except msgspec.MsgspecError:
        return None
    replay = config.get("replay_endpoint") if isinstance(config, Mapping) else None
    return replay if isinstance(replay, str) and _ENDPOINT.match(replay) else None


def _above(endpoint: str, rank: int) -> str:
    """The endpoint whose port is so far above this one's."""
    parts = _ENDPOINT.match(endpoint)
    return endpoint if parts is None else f"{parts[1]}{parts[2]}:{int(parts[3][1:]) + rank}"


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
