"""The engines' flags, and the settings here, that fix what the doctor finds. Pure.

Sources: vLLM 0.32 and SGLang 0.5.23 `--help`, llama.cpp's server README (build 10434).
"""

from proxy.sources import variable

_EVENTS = '"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"'

CACHED = {
    "vllm": "start the engine with --enable-prompt-tokens-details",
    "sglang": "start the engine with --enable-cache-report",
}
CACHING = {
    "vllm": "start the engine with --enable-prefix-caching",
    "sglang": "start the engine without --disable-radix-cache",
    "llama_cpp": "leave cache_prompt at its default, true",
}
METRICS = {
    "vllm": "start the engine without --disable-log-stats",
    "sglang": "start the engine with --enable-metrics",
    "llama_cpp": "start the engine with --metrics",
}
EVENTS = {
    "vllm": f"start the engine with --kv-events-config '{{\"enable_kv_cache_events\": true, {_EVENTS}}}'",
    "sglang": f"start the engine with --kv-events-config '{{{_EVENTS}}}'",
}
PRIORITY = {
    "vllm": "start the engine with --scheduling-policy priority",
    "sglang": "start the engine with --enable-priority-scheduling",
}
ORDER = {"vllm": "low_first", "sglang": "high_first"}
"""Which values of `priority` an engine takes first, unless told otherwise."""

USED_METRICS = {
    "vllm": (
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("vllm:cache_config_info",),
    ),
    "sglang": (("sglang:token_usage",),),
    "llama_cpp": (),
}
"""What the proxy reads, each with the names that it has or had."""
KNOWN_METRICS = {
    "vllm": (
        ("vllm:num_requests_running",),
        ("vllm:num_requests_waiting",),
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"),
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    ),
    "sglang": (
        ("sglang:num_running_reqs",),
        ("sglang:num_queue_reqs",),
        ("sglang:cached_tokens_total", "sglang:cache_hit_rate"),
    ),
    "llama_cpp": (("llamacpp:requests_processing",), ("llamacpp:prompt_tokens_cached_total",)),
}
"""What is good to have beside the proxy's own, likewise."""


def field(name: str, value: str) -> str:
    """How a replica is told of, in WARMROUTE_REPLICAS."""
    return f'say it in {variable("replicas")}: {{"url": …, "{name}": {value}}}'
