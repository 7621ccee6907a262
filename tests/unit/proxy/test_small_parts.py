"""The retry budget, the traffic sketch, what engines say of themselves, and content codings."""

import gzip
import json
import zlib
from array import array

import pytest

from proxy import bodies, describe
from proxy.description import Description
from proxy.errors import BadRequest, TooLarge
from proxy.retries import FLOOR, RetryBudget
from proxy.traffic import GENERATION, Seen


def test_H02_retries_are_a_share_of_recent_requests_and_never_below_the_floor():
    budget = RetryBudget(0.1)
    assert [budget.take(0.0) for _ in range(FLOOR + 1)] == [True] * FLOOR + [False]
    for number in range(200):
        budget.request(20.0 + number / 100)
    assert sum(budget.take(22.0) for _ in range(100)) == 20
    assert sum(budget.take(60.0) for _ in range(100)) == FLOOR


def test_H02_a_request_after_a_pause_counts_for_now_and_not_for_then():
    budget = RetryBudget(1.0)
    for number in range(5 * FLOOR):
        budget.request(100.0 + number / 100)
    budget.request(500.0)
    assert budget._total == 1


def test_traffic_is_classed_by_the_start_of_the_prompt():
    seen = Seen()
    keys = array("Q", range(100))
    assert seen.group(keys, 16) == "random"
    other_tail = array("Q", [*range(8), *range(500, 600)])
    assert seen.group(other_tail, 16) == "shared"
    assert seen.group(array("Q", [0, 1, 2, 900, 901, 902, 903, 904]), 16) == "random"
    assert seen.group(array("Q"), 16) == "random"


def test_the_sketch_of_traffic_is_bounded():
    seen = Seen()
    for number in range(3 * GENERATION):
        seen.group(array("Q", [number]), 16)
    assert len(seen._young) + len(seen._old) <= 2 * GENERATION


def test_what_vllm_says_of_itself():
    card = {"id": "tiny", "owned_by": "vllm", "root": "models/mid", "parent": None}
    adapter = {"id": "ada", "owned_by": "vllm", "root": "ada", "parent": "tiny"}
    description = describe.read_models(json.dumps({"data": [card, adapter]}).encode())
    assert (description.engine, description.models) == ("vllm", {"tiny": None, "ada": "tiny"})
    assert description.root == "models/mid"
    page = (
        'vllm:cache_config_info{block_size="32",enable_prefix_caching="True",num_gpu_blocks="512"} 1.0\n'
        "process_start_time_seconds 1.79596349751e+09\n"
    )
    describe.read_metrics(page, description)
    assert (description.block_size, description.cache_blocks) == (32, 512)
    assert description.started_at == 1.79596349751e9


def test_M03_a_renamed_or_missing_metric_is_unknown_not_zero():
    assert describe.kv_usage('vllm:kv_cache_usage_perc{engine="0"} 0.5\n') == 0.5
    assert describe.kv_usage('vllm:gpu_cache_usage_perc{engine="0"} 0.25\n') == 0.25
    assert describe.kv_usage(
        'vllm:kv_cache_usage_perc{e="0"} 0.2\nvllm:kv_cache_usage_perc{e="1"} 0.4\n'
    ) == (pytest.approx(0.3))
    assert describe.kv_usage('sglang:token_usage{tp_rank="0"} 0.75\n') == 0.75
    assert describe.kv_usage("vllm:kv_cache_usage_perc NaN\n") is None
    assert describe.kv_usage("") is None
    assert describe.started_at("process_start_time_seconds soon\n") is None


def test_other_engines():
    description = Description(engine="sglang")
    told = {"page_size": 64, "max_total_num_tokens": 6400, "max_running_requests": 8, "tokenizer_path": "t"}
    describe.read_server_info(json.dumps(told).encode(), description)
    assert (description.block_size, description.cache_blocks, description.max_seqs) == (64, 100, 8)
    assert description.root == "t"
    assert describe.read_models(b'{"data":[{"id":"mid","owned_by":"llamacpp"}]}').engine == "llama_cpp"
    assert describe.read_models(b'{"data":[{"id":"mid"}]}', "llama.cpp").engine == "llama_cpp"
    for noise in (b"", b"[]", b"null", b"{", b'"x"'):
        describe.read_server_info(noise, description)
        describe.read_props(noise, description)
    with pytest.raises(ValueError, match="not a list of models"):
        describe.read_models(b"<html>")


def test_H13_a_coding_is_looked_through_within_the_limit():
    body = b'{"model":"m"}'
    assert bodies.inflate(gzip.compress(body), b"gzip", 100) == body
    assert bodies.inflate(zlib.compress(body), b"Deflate", 100) == body
    assert bodies.inflate(body, b"identity", 100) == body
    assert bodies.inflate(b"\x28\xb5\x2f\xfd", b"zstd", 100) is None
    with pytest.raises(TooLarge):
        bodies.inflate(gzip.compress(b"0" * (1 << 20)), b"gzip", 1000)
    for broken in (b"no gzip", gzip.compress(body)[:-4], gzip.compress(body) + b"more", b""):
        with pytest.raises(BadRequest):
            bodies.inflate(broken, b"gzip", 100)
