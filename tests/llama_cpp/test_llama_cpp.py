"""`engine: llama_cpp` against real servers: found, tokenised as they do, no hit foretold that is not there.

What slots hold from before a test is not known to its proxy: so prompts are new in every run.
"""

import asyncio
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from proxy.app import Proxy
from proxy.config import Settings
from tests.engines.calls import JSON, Answer, get, post, words
from tests.engines.recorder import Recorder
from tests.llama_cpp.conftest import at_rest
from tests.support.client import Client
from tests.support.eventually import eventually
from tests.support.fixtures import total
from tests.support.http import request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BLOCK = 16


def fresh(count: int) -> str:
    """So many words that were never seen before."""
    return words(uuid4(), count)


async def chat(proxy: Proxy, system: str, question: str, **more: Any) -> Answer:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    answer = await post(proxy.url, CHAT, {"messages": messages, "max_tokens": 3, "temperature": 0, **more})
    assert answer.status == 200, answer.text
    return answer


def found(answer: Answer) -> int:
    """Tokens that the server took from its cache, by its timings."""
    return int(next(event["timings"] for event in answer.events() if "timings" in event)["cache_n"])


async def test_it_is_found_with_its_slots(llama_proxy: Proxy, llama_servers: list[str]) -> None:
    ready = (await get(llama_proxy.url, "/ready")).json
    (model,) = ready["models"].values()
    assert model["tokenizer"] == "exact"
    for told in (await get(llama_proxy.url, "/admin/replicas")).json["replicas"]:
        props = (await get(told["url"], "/props")).json
        tokens = props["total_slots"] * props["default_generation_settings"]["n_ctx"]
        assert told["engine"] == "llama_cpp"
        assert told["index_mode"] == "slots"
        assert told["cache_blocks"] == tokens // BLOCK


# Not among them: decomposed letters. The model's tokenizer composes e and U+0301, build 10434 does not.
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hello there!"}],
    "system": [{"role": "system", "content": "Be kind.  \n"}, {"role": "user", "content": "Why?"}],
    "turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "And\n\nnow?  "},
    ],
    "unicode": [{"role": "user", "content": "\u00e9 \u4f60\u597d \U0001f642\u200d\U0001f5e8 \ufb01"}],
    "special": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\nObey<|endoftext|>"}],
    "code": [{"role": "user", "content": "def f(x):\n\treturn  x**2\r\n\n# 12345 67,890.1\n" * 9}],
}


@pytest.mark.parametrize("name", MESSAGES)
async def test_a_chat_has_as_many_tokens_as_the_server_counts(llama_proxy: Proxy, name: str) -> None:
    body = {"messages": MESSAGES[name], "max_tokens": 1, "temperature": 0}
    answer = await post(llama_proxy.url, CHAT, body)
    assert answer.counted == answer.usage()[0]


async def test_no_hit_is_foretold_that_is_not_found(llama_proxy: Proxy) -> None:
    """Groups, turns and lengths at random, one request after the other, on more prompts than slots."""
    rng, run = Random(7), uuid4()
    foretold = there = 0
    for number in range(40):
        group, turn = rng.randrange(7), rng.randrange(3)
        prompt = words((run, group), rng.choice((60, 150, 300))) + " " + words((run, group, turn), 60)
        answer = await post(
            llama_proxy.url, COMPLETIONS, {"prompt": prompt, "max_tokens": 4, "stream": number % 2 == 1}
        )
        assert answer.predicted <= found(answer), number
        foretold += answer.predicted
        there += found(answer)
    assert foretold > 0.6 * there > 0


async def test_a_conversation_stays_and_is_foretold(llama_proxy: Proxy) -> None:
    messages = [{"role": "system", "content": fresh(200)}, {"role": "user", "content": "Tell me."}]
    foretold: list[int] = []
    homes = set()
    for turn in range(3):
        body = {"messages": messages, "max_tokens": 24, "temperature": 0}
        answer = await post(llama_proxy.url, CHAT, body)
        assert answer.predicted <= answer.usage()[1]
        foretold.append(answer.predicted)
        homes.add(answer.replica)
        messages += [
            {"role": "assistant", "content": answer.content()},
            {"role": "user", "content": f"And {turn}?"},
        ]
    assert len(homes) == 1
    assert 0 == foretold[0] < 190 < foretold[1] < foretold[2]


async def test_the_same_prompt_at_once_is_foretold_cold(llama_proxy: Proxy) -> None:
    system = fresh(200)
    together = await asyncio.gather(*(chat(llama_proxy, system, "Why?") for _ in range(4)))
    assert all(answer.predicted <= found(answer) for answer in together)
    after = await chat(llama_proxy, system, "Why?")
    assert 190 < after.predicted <= found(after)


async def test_a_stream_passes_byte_for_byte_and_still_tells_what_was_cached(
    llama_servers: list[str], llama_tokenizer: str
) -> None:
    async with Recorder(llama_servers[0]) as wire:
        settings = Settings(
            port=0, replicas=[wire.url], redis_url="none", log_level="warning", tokenizer=llama_tokenizer
        )
        async with Proxy(settings) as proxy:
            system = fresh(200)
            await chat(proxy, system, "Why?")
            before = await total(proxy, "warmroute_cached_tokens_total")
            answer = await chat(proxy, system, "Why?", stream=True)
            _, told = wire.exchange(CHAT)
            assert bytes(told.body) == bytes(answer.message.body)
            assert all("usage" not in event for event in answer.events())

            async def counted() -> bool:
                return await total(proxy, "warmroute_cached_tokens_total") == before + found(answer)

            await eventually(counted, "what the stream took from the cache is counted")


async def test_a_client_that_leaves_frees_its_slot(llama_proxy: Proxy, llama_servers: list[str]) -> None:
    body = b'{"prompt":"Count as far as you can.","max_tokens":2000,"stream":true}'
    async with await Client.connect(llama_proxy.port) as client:
        await client.send(request("POST", COMPLETIONS, body, [JSON]))
        while b'"text":' not in client.received:
            await client.arrival()
        client.reset()
    for server in llama_servers:
        await at_rest(server)
