"""Profiles give back the measurements that they cite."""

import pytest

from bench.engine_model import EngineModel
from bench.profiles import PROFILES, profile


def ttft(spec, prompt, cached=0):
    """Of one request on an idle replica that holds the first `cached` tokens."""
    model = EngineModel(spec)
    blocks = prompt // spec.block_size
    chain = list(range(blocks))
    if cached:
        model.submit(0.0, "before", chain[: cached // spec.block_size], cached, 1)
        model.advance(100.0)
    model.submit(100.0, "a", chain, prompt, 1)
    event = model.advance(1000.0)[0]
    assert event.cached_tokens == cached
    return event.time - 100.0


@pytest.mark.parametrize(
    ("prompt", "cached", "low", "high"),
    [
        (2000, 0, 0.437, 0.881),
        (2000, 1984, 0.040, 0.049),
        (4000, 0, 1.358, 1.734),
        (4000, 3968, 0.062, 0.075),
    ],
)
def test_cpu_is_within_what_real_vllm_took(prompt, cached, low, high):
    assert low <= ttft(profile("cpu"), prompt, cached) <= high


def test_h100x2_32b_has_the_calibrated_prefill_rate():
    rate = 8192 / ttft(profile("h100x2-32b"), 8192)

    assert rate == pytest.approx(15_928, rel=0.001)


def test_h100_8b_decodes_alone_in_the_fitted_step():
    assert profile("h100-8b").step_time(1, 0) == pytest.approx(0.005759, rel=0.001)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_names_its_source_and_itself(name):
    spec = PROFILES[name]()

    assert spec.name == name
    assert "easured" in PROFILES[name].__doc__ or "github.com" in PROFILES[name].__doc__
    assert spec.blocks * spec.block_size <= spec.cache_tokens


def test_a_field_can_be_changed_and_a_wrong_name_says_which_there_are():
    assert profile("cpu", cache_tokens=640).blocks == 20
    with pytest.raises(ValueError, match="h100-8b"):
        profile("tpu")


@pytest.mark.parametrize(
    "wrong", [{"cache_tokens": 1}, {"prefill_tokens_per_s": 0}, {"max_seqs": 0}, {"max_batched_tokens": 8}]
)
def test_impossible_specs_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        profile("cpu", **wrong)
