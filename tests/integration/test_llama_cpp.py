"""The whole proxy in front of simulated llama.cpp servers: found, tokenised, routed by slots, foretold."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.engine_prompt import TOKENIZER
from bench.llama_server import LlamaServer, serve_llama
from bench.processes import engines
from bench.profiles import EngineSpec
from proxy.app import Proxy
from proxy.config import Settings
from tests.engines.calls import Answer, get, post, words
from tests.support.eventually import eventually

SPEC = EngineSpec(
    name="llama", cache_tokens=8192, prefill_tokens_per_s=1e6, step_s=0.001, step_per_sequence_s=0.0
)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BLOCK = 16


@asynccontextmanager
async def fleet(
    count: int = 2, *, tokenizer: str = "", spec: EngineSpec = SPEC, **options: Any
) -> AsyncIterator[tuple[Proxy, list[LlamaServer]]]:
    async with serve_llama(spec, ports=(0,) * count, **options) as servers:
        named = [{"url": one.url, "name": f"r{number}"} for number, one in enumerate(servers)]
        settings = Settings(
            port=0,
            replicas=named,
            redis_url="none",
            log_level="warning",
            tokenizer=tokenizer or str(TOKENIZER),
        )
        async with Proxy(settings) as proxy:
            yield proxy, servers


async def chat(proxy: Proxy, system: str, question: str, **more: Any) -> Answer:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    answer = await post(
        proxy.url, CHAT, {"model": "simulated", "messages": messages, "max_tokens": 3, **more}
    )
    assert answer.status == 200
    return answer


@pytest.mark.parametrize("tokenizer", ["", "engine", "bytes"])
async def test_it_is_found_and_its_prompts_are_tokenised(tokenizer: str) -> None:
    async with fleet(tokenizer=tokenizer) as (proxy, _):
        ready = (await get(proxy.url, "/ready")).json
        assert ready["models"]["simulated"]["tokenizer"] == (tokenizer or "exact")
        (told, _) = (await get(proxy.url, "/admin/replicas")).json["replicas"]
        assert told["engine"] == "llama_cpp"
        assert told["index_mode"] == ("bytes" if tokenizer == "bytes" else "slots")
        assert told["cache_blocks"] == 4 * 8192 // BLOCK
        first = await chat(proxy, words("s", 100), "Why?")
        again = await chat(proxy, words("s", 100), "Why?")
        if tokenizer != "bytes":
            assert first.counted == first.usage()[0]
        assert again.replica == first.replica
        assert again.predicted > 0


async def test_what_is_foretold_is_found_whatever_comes() -> None:
    rng = Random(5)
    async with fleet() as (proxy, _):
        foretold = found = 0
        for number in range(80):
            group, turn = rng.randrange(6), rng.randrange(3)
            prompt = words(group, rng.choice((40, 120, 300))) + " " + words((group, turn), 60)
            answer = await post(
                proxy.url, COMPLETIONS, {"prompt": prompt, "max_tokens": 4, "stream": number % 2 == 1}
            )
            counted, cached = _found(answer)
            assert answer.counted == counted
            assert answer.predicted <= cached, number
            foretold += answer.predicted
            found += cached
        assert foretold > 0.8 * found > 0


def _found(answer: Answer) -> tuple[int, int]:
    timings = next(event["timings"] for event in answer.events() if "timings" in event)
    return timings["prompt_n"] + timings["cache_n"], timings["cache_n"]


async def test_a_cache_in_memory_is_found_out() -> None:
    async with fleet(1, slots=1, aside=100_000) as (proxy, _):
        foretold = []
        for number in range(8):
            answer = await chat(proxy, words(number % 2, 200), "Why?")
            foretold.append(answer.predicted >= 192)
        assert foretold == [False] * 4 + [True] * 4  # one prompt in one slot, until more was seen, twice


async def test_the_same_prompt_at_once_is_foretold_cold_and_spread() -> None:
    slow = EngineSpec(
        name="slow", cache_tokens=8192, prefill_tokens_per_s=2000.0, step_s=0.001, step_per_sequence_s=0.0
    )
    async with fleet(spec=slow) as (proxy, _):
        together = await asyncio.gather(*(chat(proxy, words("same", 300), "Why?") for _ in range(6)))
        assert [answer.predicted for answer in together] == [0] * 6
        assert [answer.usage()[1] for answer in together] == [0] * 6
        assert {answer.replica for answer in together} == {"r0", "r1"}
        after = await chat(proxy, words("same", 300), "Why?")
        assert after.predicted > 290
        assert after.usage()[1] >= after.predicted


async def test_streams_tell_cached_tokens_although_nobody_asked_and_pass_as_they_are() -> None:
    async with fleet() as (proxy, _):
        await chat(proxy, words("s", 200), "Why?")
        stream = await chat(proxy, words("s", 200), "Why?", stream=True)
        assert all("usage" not in event for event in stream.events())

        async def counted() -> bool:
            page = (await get(proxy.url, "/metrics")).text
            return any(
                line.startswith("warmroute_cached_tokens_total") and float(line.split()[-1]) >= 200
                for line in page.splitlines()
            )

        await eventually(counted, "the stream's cached tokens are counted")


async def test_a_turn_is_foretold_with_the_answer_before_it() -> None:
    async with fleet() as (proxy, _):
        messages: list[dict[str, str]] = [
            {"role": "system", "content": words("s", 200)},
            {"role": "user", "content": "Tell me."},
        ]
        foretold = []
        for turn in range(4):
            body = {"model": "simulated", "messages": messages, "max_tokens": 64}
            answer = await post(proxy.url, CHAT, body)
            assert answer.usage()[1] >= answer.predicted
            foretold.append(answer.predicted)
            messages += [
                {"role": "assistant", "content": answer.content()},
                {"role": "user", "content": f"And {turn}?"},
            ]
        assert all(later - sooner >= 48 for sooner, later in pairwise(foretold[1:]))


async def test_a_client_that_leaves_frees_its_slot() -> None:
    slow = EngineSpec(
        name="slow", cache_tokens=8192, prefill_tokens_per_s=1e5, step_s=0.05, step_per_sequence_s=0.0
    )
    async with fleet(1, slots=1, spec=slow) as (proxy, servers):
        asked = asyncio.create_task(chat(proxy, "x", "y", max_tokens=1000))
        await eventually(lambda: servers[0].cache.slots[0].busy, "the slot is taken")
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await eventually(lambda: not servers[0].cache.slots[0].busy, "the slot is free")
        await chat(proxy, "x", "y")


async def test_a_prompt_that_no_slot_has_room_for_is_refused_as_the_server_says_it() -> None:
    async with fleet(slot_tokens=256) as (proxy, _):
        answer = await post(proxy.url, COMPLETIONS, {"prompt": words("l", 400), "max_tokens": 4})
        assert answer.status == 400
        assert "exceeds the available context size" in answer.text


async def test_the_command_serves_it(tmp_path: Path) -> None:
    options = ["--engine", "llama_cpp", "--slots", "2", "--slot-tokens", "512"]
    async with engines(1, options, tmp_path / "log") as running:
        (url,) = re.findall(r"slots, on (http://\S+)", (tmp_path / "log").read_text())
        props = (await get(url, "/props")).json
        assert props["total_slots"] == 2
        assert props["default_generation_settings"]["n_ctx"] == 512
        assert running.pid
