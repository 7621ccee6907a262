"""Mixed traffic through a real proxy in front of simulated replicas, and what it is compared with."""

import aiohttp

from bench import processes
from bench.agreement import Run, summary
from bench.engine import serve
from bench.mixed import KINDS, Mixed, one_token_words
from bench.profiles import EngineSpec

SPEC = EngineSpec(
    name="test",
    cache_tokens=8192,
    prefill_tokens_per_s=1e6,
    step_s=0.0005,
    step_per_sequence_s=0.0,
    block_size=32,
)


async def test_mixed_traffic_is_of_every_kind_and_streams_or_not_and_is_foretold(tmp_path):
    async with (
        serve(SPEC, ports=(0, 0)) as engines,
        processes.proxy(
            [engine.url for engine in engines],
            "prefix_cost",
            tmp_path / "log",
            arguments=["--redis-url", "none"],
        ) as proxy,
    ):
        async with aiohttp.ClientSession() as session:
            allowed = await one_token_words(session, engines[0].url, "simulated")
        assert len(allowed) > 5
        mixed = Mixed("simulated", "test", allowed=allowed)
        outcomes = await mixed.run(proxy.urls[0], 60, 4)

    assert len(outcomes) == 60
    assert {(outcome.kind, outcome.stream) for outcome in outcomes} == {
        (kind, stream) for kind in KINDS for stream in (False, True)
    }
    assert not [outcome.error for outcome in outcomes if outcome.error]
    assert all(outcome.counted == outcome.prompt_tokens for outcome in outcomes)
    assert all(outcome.predicted is not None and outcome.reported is not None for outcome in outcomes)
    talk = [outcome for outcome in outcomes if outcome.kind == "conversation"]
    assert all(outcome.text for outcome in talk)
    assert any(outcome.reported for outcome in talk)


async def test_what_a_proxy_does_not_answer_is_kept_as_a_failure(tmp_path):
    outcomes = await Mixed("simulated", "test").run("http://127.0.0.1:1", 4, 4)
    assert [outcome.status for outcome in outcomes] == [None] * 4
    figures = summary(Run(events=True, outcomes=outcomes, seconds=1.0), 32, 100)
    assert (figures["failed"], figures["all"]["considered"]) == (4, 0)
