"""A simulated replica's /metrics: the names and labels of vLLM 0.32, as far as routers look at them."""

from bench.engine_replica import Replica


def exposition(replica: Replica) -> str:
    """Prometheus text. Counters start at zero with the replica, whose start time is in it."""
    model, spec = replica.model, replica.spec
    labels = f'engine="0",model_name="{replica.identity.model}"'
    computed = model.prompt_tokens - model.cached_tokens
    lines: list[str] = []

    def family(name: str, kind: str, *samples: tuple[str, float]) -> None:
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{{{labels}{extra}}} {float(value)}" for extra, value in samples)

    lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {replica.started}"]
    family("vllm:num_requests_running", "gauge", ("", model.running))
    family("vllm:num_requests_waiting", "gauge", ("", model.waiting))
    family("vllm:kv_cache_usage_perc", "gauge", ("", model.kv_usage))
    family("vllm:prefix_cache_queries_total", "counter", ("", model.prompt_tokens))
    family("vllm:prefix_cache_hits_total", "counter", ("", model.cached_tokens))
    family("vllm:num_preemptions_total", "counter", ("", 0))
    family("vllm:prompt_tokens_total", "counter", ("", model.prompt_tokens))
    sources = ((',source="local_compute"', computed), (',source="local_cache_hit"', model.cached_tokens))
    family("vllm:prompt_tokens_by_source_total", "counter", *sources)
    family("vllm:prompt_tokens_cached_total", "counter", ("", model.cached_tokens))
    family("vllm:generation_tokens_total", "counter", ("", model.output_tokens))
    ends = [(f',finished_reason="{reason}"', count) for reason, count in replica.finished.items()]
    family("vllm:request_success_total", "counter", *ends)
    config = (
        f',block_size="{spec.block_size}",num_gpu_blocks="{spec.blocks}",enable_prefix_caching="True"'
        f',kv_cache_size_tokens="{spec.blocks * spec.block_size}"'
    )
    family("vllm:cache_config_info", "gauge", (config, 1))
    return "\n".join(lines) + "\n"
