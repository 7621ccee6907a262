"""The whole proxy in front of simulated replicas: what it routes, and what it tells of it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.engine import RunningReplica, serve
from bench.profiles import EngineSpec
from proxy.app import Proxy
from proxy.config import Settings
from proxy.logs import logger
from tests.support.eventually import eventually

SPEC = EngineSpec(
    name="test", cache_tokens=8192, prefill_tokens_per_s=1e6, step_s=0.001, step_per_sequence_s=0.0
)
LONG = "A system prompt that many share, with rules that nobody reads but all must hold to. " * 12


@asynccontextmanager
async def fleet(replicas: int = 2, **settings: Any) -> AsyncIterator[tuple[Proxy, list[RunningReplica]]]:
    async with serve(SPEC, ports=(0,) * replicas) as running:
        names = [{"url": one.url, "name": f"r{number}"} for number, one in enumerate(running)]
        async with Proxy(
            Settings(port=0, replicas=names, log_level="info", redis_url="none", **settings)
        ) as proxy:
            yield proxy, running


def chat(question: str, system: str = LONG, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"model": "simulated", "messages": messages, "max_tokens": 4, **more}


async def post(
    proxy: Proxy, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str
) -> tuple[dict[str, Any], Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(proxy.url + path, json=body, headers=headers) as reply,
    ):
        assert reply.status == 200, await reply.text()
        return await reply.json(), reply.headers


async def get(proxy: Proxy, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(proxy.url + path) as reply:
        return reply.status, await reply.json()


def totals(proxy: Proxy, name: str, *by: str) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(proxy.ledger.page().decode()):
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in by)
                found[key] = found.get(key, 0) + sample.value
    return found


async def booked(proxy: Proxy, requests: int) -> None:
    async def all_booked() -> bool:
        return sum(totals(proxy, "warmroute_requests_total").values()) == requests

    await eventually(all_booked, f"{requests} requests are booked")


async def test_a_prefix_stays_where_it_is_warm_and_the_prediction_is_what_is_reported():
    async with fleet() as (proxy, _):
        seen = [await post(proxy, chat(f"Question {number}?")) for number in range(6)]
    assert len({headers["x-warmroute-replica"] for _, headers in seen}) == 1
    assert [headers["x-warmroute-decision"] for _, headers in seen] == ["cold"] + ["hit"] * 5
    for body, headers in seen:
        usage = body["usage"]
        assert int(headers["x-warmroute-prompt-tokens"]) == usage["prompt_tokens"]
        predicted = int(headers["x-warmroute-predicted-cached-tokens"])
        assert predicted == usage["prompt_tokens_details"]["cached_tokens"]


async def test_the_next_turn_finds_the_answer_warm_too():
    async with fleet() as (proxy, _):
        body, first = await post(proxy, chat("Tell me a story.", max_tokens=64))
        answer = body["choices"][0]["message"]["content"]
        messages = [
            *chat("Tell me a story.")["messages"],
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And then?"},
        ]
        body, headers = await post(proxy, {"model": "simulated", "messages": messages, "max_tokens": 2})
    assert headers["x-warmroute-replica"] == first["x-warmroute-replica"]
    predicted = int(headers["x-warmroute-predicted-cached-tokens"])
    assert predicted > int(first["x-warmroute-prompt-tokens"])
    assert abs(predicted - body["usage"]["prompt_tokens_details"]["cached_tokens"]) <= SPEC.block_size


async def test_the_waterfall_never_rises_and_ends_at_what_the_replicas_reported():
    async with fleet() as (proxy, replicas):
        for number in range(10):
            await post(proxy, chat(f"Question {number}?"))
            await post(proxy, chat("Alone.", f"{number} {LONG[::-1]}"))
        await booked(proxy, 20)
        stages = totals(proxy, "warmroute_prefix_tokens_total", "stage")
        reported = sum(totals(proxy, "warmroute_cached_tokens_total").values())
        prompts = sum(totals(proxy, "warmroute_cached_prompt_tokens_total").values())
        counted = sum(one.replica.model.cached_tokens for one in replicas)
        served = sum(one.replica.model.prompt_tokens for one in replicas)
    assert stages["prompt",] >= stages["available",] >= stages["routed",] > 0
    assert reported == counted
    assert prompts == stages["prompt",] == served


async def test_shared_and_random_traffic_are_told_apart_without_the_clients_help():
    async with fleet() as (proxy, _):
        for number in range(5):
            await post(proxy, chat(f"Question {number}?"))
            await post(proxy, chat("Hi.", f"{number} is what only this prompt begins with. {LONG}"))
        await post(proxy, chat("Named."), **{"X-Warmroute-Group": "random"})
        await post(proxy, chat("Unknown."), **{"X-Warmroute-Group": "made-up"})
        await booked(proxy, 12)
        requests = totals(proxy, "warmroute_requests_total", "group")
    assert requests == {("shared",): 4, ("random",): 7, ("other",): 1}


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_load", "power_of_two", "consistent_hash"])
async def test_every_policy_can_be_chosen(policy: str):
    async with fleet(policy=policy) as (proxy, _):
        for number in range(4):
            _, headers = await post(proxy, chat(f"Question {number}?"))
            assert headers["x-warmroute-policy"] == policy


async def test_an_alias_is_the_model_it_stands_for():
    async with fleet(aliases={"friendly": "simulated"}) as (proxy, _):
        body, first = await post(proxy, chat("One?") | {"model": "friendly"})
        assert body["model"] == "simulated"
        _, second = await post(proxy, chat("Two?"))
        assert second["x-warmroute-decision"] == "hit"
        assert second["x-warmroute-replica"] == first["x-warmroute-replica"]
        status, models = await get(proxy, "/v1/models")
        assert (status, {card["id"] for card in models["data"]}) == (200, {"simulated", "friendly"})


async def test_readiness_names_models_and_what_is_degraded():
    async with fleet(tokenizer="bytes") as (proxy, replicas):
        status, ready = await get(proxy, "/ready")
        assert (status, ready["status"]) == (200, "ready")
        model = ready["models"]["simulated"]
        assert (model["replicas"], model["tokenizer"], model["block_size"]) == (2, "bytes", SPEC.block_size)
        assert "WARMROUTE_TOKENIZER" in model["degraded"]
        assert {one["index_mode"] for one in ready["replicas"].values()} == {"bytes"}
        await post(proxy, chat("One?"))
        _, headers = await post(proxy, chat("Two?"))
        assert headers["x-warmroute-decision"] == "hit"
        for name in ("r0", "r1"):
            proxy.fleet.mark(name, up=False)
        assert (await get(proxy, "/health"))[0] == 200
        status, ready = await get(proxy, "/ready")
        assert (status, ready["status"]) == (503, "unavailable")
    assert replicas


async def test_bytes_mode_learns_how_many_tokens_its_text_has():
    async with fleet(tokenizer="bytes") as (proxy, _):
        gaps = []
        for number in range(120):
            body, headers = await post(proxy, chat(f"Question {number}?"))
            gaps.append(abs(int(headers["x-warmroute-prompt-tokens"]) / body["usage"]["prompt_tokens"] - 1))
    assert gaps[-1] < 0.05
    assert gaps[-1] <= gaps[0]


async def test_the_engine_can_tokenise_instead():
    async with fleet(tokenizer="engine", tokenizer_budget_ms=5000) as (proxy, _):
        assert (await get(proxy, "/ready"))[1]["models"]["simulated"]["tokenizer"] == "engine"
        await post(proxy, chat("One?"))
        body, headers = await post(proxy, chat("Two?"))
    assert headers["x-warmroute-decision"] == "hit"
    assert int(headers["x-warmroute-prompt-tokens"]) == body["usage"]["prompt_tokens"]


async def test_an_admin_can_look_and_flush_and_reset_an_engine():
    async with fleet() as (proxy, replicas), aiohttp.ClientSession() as session:
        _, first = await post(proxy, chat("One?"))
        name = first["x-warmroute-replica"]
        _, state = await get(proxy, "/admin/replicas")
        warm = next(one for one in state["replicas"] if one["name"] == name)
        assert warm["index_blocks"] > 0
        assert warm["in_flight"] == 0
        async with session.post(f"{proxy.url}/admin/flush") as reply:
            assert (await reply.json())["flushed"] == ["r0", "r1"]
        assert proxy.index.blocks(name) == 0
        await post(proxy, chat("Two?"))
        async with session.post(f"{proxy.url}/admin/replicas/{name}/reset_prefix_cache") as reply:
            assert reply.status == 200
        assert proxy.index.blocks(name) == 0
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            async with session.post(f"{proxy.url}/admin/flush", headers=headers) as reply:
                assert reply.status == 401
        async with session.get(f"{proxy.url}/reset_prefix_cache") as reply:
            assert reply.status == 404
    assert replicas


async def test_admin_with_a_token_asks_for_it():
    async with fleet(admin_token="s3cret") as (proxy, _), aiohttp.ClientSession() as session:
        for given, status in ((None, 401), ("Bearer wrong", 401), ("Bearer s3cret", 200)):
            headers = {} if given is None else {"Authorization": given}
            async with session.get(f"{proxy.url}/admin/policy", headers=headers) as reply:
                assert reply.status == status


async def test_one_structured_line_a_request(capsys: pytest.CaptureFixture[str]):
    logger.setLevel(logging.INFO)
    async with fleet(log_format="json") as (proxy, _):
        await post(proxy, chat("A secret question?", stream=False))
        await booked(proxy, 1)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["message"] == "request"]
    assert (line["status"], line["outcome"], line["decision"]) == (200, "ok", "cold")
    assert line["reported_prompt_tokens"] == line["prompt_tokens"]
    assert "secret" not in json.dumps(line)


async def test_the_openai_client_works_unchanged():
    async with fleet() as (proxy, _):
        client = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="unused", max_retries=0)
        async with client:
            whole = await client.chat.completions.create(
                model="simulated", messages=[{"role": "user", "content": "Hi"}], max_tokens=3
            )
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 3
            stream = await client.chat.completions.create(
                model="simulated", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, stream=True
            )
            chunks = [chunk async for chunk in stream]
            assert all(chunk.choices for chunk in chunks)
            with pytest.raises(openai.NotFoundError) as caught:
                await client.completions.create(model="other", prompt="Hi")
            assert caught.value.code == "model_not_found"


async def test_many_at_once_leave_no_load_behind():
    async with fleet() as (proxy, replicas):
        await asyncio.gather(
            *(post(proxy, chat(f"Question {number}?", stream=False)) for number in range(40))
        )
        assert all(one.view.in_flight == 0 for one in proxy.fleet.replicas.values())
        assert all(one.view.queued_tokens == 0 for one in proxy.fleet.replicas.values())
    assert replicas
