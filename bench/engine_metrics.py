"""A simulated replica's /metrics: the names and labels of vLLM 0.32, as far as routers look at them."""

from bench.engine_replica import Replica


def exposition(replica: Replica) -> str:
    """Prometheus text. Counters start at zero with the replica, whose start time is in it."""
    spec, name = replica.spec, replica.identity.model
    config = (
        f',block_size="{spec.block_size}",num_gpu_blocks="{spec.blocks}",enable_prefix_caching="True"'
        f',kv_cache_size_tokens="{spec.blocks * spec.block_size}"'
    )
    lines: list[str] = []

    def family(metric: str, kind: str, *samples: tuple[str, list[float]]) -> None:
        """Samples by what their labels have beside rank and model; each of all ranks."""
        lines.append(f"# TYPE {metric} {kind}")
        lines.extend(
            f'{metric}{{engine="{rank}",model_name="{name}"{extra}}} {float(value)}'
            for extra, values in samples
            for rank, value in enumerate(values)
        )

    lines += ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {replica.started}"]
    models = [rank.model for rank in replica.ranks]
    cached: list[float] = [model.cached_tokens for model in models]
    prompts: list[float] = [model.prompt_tokens for model in models]
    computed: list[float] = [model.prompt_tokens - model.cached_tokens for model in models]
    nothing = [0.0] * len(models)
    family("vllm:num_requests_running", "gauge", ("", [model.running for model in models]))
    family("vllm:num_requests_waiting", "gauge", ("", [model.waiting for model in models]))
    family("vllm:kv_cache_usage_perc", "gauge", ("", [model.kv_usage for model in models]))
    family("vllm:prefix_cache_queries_total", "counter", ("", prompts))
    family("vllm:prefix_cache_hits_total", "counter", ("", cached))
    family("vllm:num_preemptions_total", "counter", ("", nothing))
    family("vllm:prompt_tokens_total", "counter", ("", prompts))
    sources = ((',source="local_compute"', computed), (',source="local_cache_hit"', cached))
    family("vllm:prompt_tokens_by_source_total", "counter", *sources)
    family("vllm:prompt_tokens_cached_total", "counter", ("", cached))
    family("vllm:generation_tokens_total", "counter", ("", [model.output_tokens for model in models]))
    ends = [
        (f',finished_reason="{reason}"', [float(rank.finished[reason]) for rank in replica.ranks])
        for reason in replica.finished
    ]
    family("vllm:request_success_total", "counter", *ends)
    family("vllm:cache_config_info", "gauge", (config, [1.0] * len(models)))
    return "\n".join(lines) + "\n"
