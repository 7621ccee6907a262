"""What the proxy foretells of the replicas' caches is what the engines then report.

Answers come in one piece where a test says which replica serves it: the proxy learns replicas' speeds from
streams, and on a busy machine a short prompt may then rightly go to another one.
"""

import asyncio
from typing import Any

import pytest

from tests.engines.calls import BLOCK, Answer, Replica, get, post, tokens_of, words
from tests.engines.conftest import Served
from tests.support.fixtures import serving

CHAT = "/v1/chat/completions"
COMMON = {"model": "mid", "temperature": 0, "ignore_eos": True}


def chat(*messages: tuple[str, str], **fields: Any) -> dict[str, Any]:
    shaped = [{"role": role, "content": content} for role, content in messages]
    return {**COMMON, "messages": shaped, "max_tokens": 2, **fields}


def full_blocks(tokens: int) -> int:
    """Tokens in the blocks that a second prompt of this length can take from a cache."""
    return (tokens - 1) // BLOCK * BLOCK


def as_foretold(answer: Answer) -> int:
    """The cached tokens of an answer, which must be those foretold, within a block."""
    prompt, cached = answer.usage()
    assert answer.counted == prompt
    assert abs(answer.predicted - cached) <= BLOCK, (answer.predicted, cached)
    return cached


def long_body(path: str, seed: str, **fields: Any) -> dict[str, Any]:
    """A request of some 600 prompt tokens for an endpoint."""
    text = words(seed, 600)
    if path == "/v1/completions":
        return {**COMMON, "prompt": text, "max_tokens": 2, **fields}
    if path == "/v1/responses":
        body = {"model": "mid", "temperature": 0, "instructions": text, "input": "Go", "max_output_tokens": 2}
        return {**body, **fields}
    if path == "/v1/messages":
        messages = [{"role": "user", "content": "Go"}]
        return {"model": "mid", "system": text, "messages": messages, "max_tokens": 2, **fields}
    return chat(("system", text), ("user", "Go"), **fields)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_second_request_lands_where_the_first_left_its_blocks(cold: Served, path: str) -> None:
    body = long_body(path, f"second {path}")
    first = await post(cold.url, path, body)
    assert as_foretold(first) == 0
    assert first.header("x-warmroute-decision") == "cold"
    for _ in range(3):
        again = await post(cold.url, path, body)
        assert again.replica == first.replica
        assert again.header("x-warmroute-decision") == "hit"
        assert as_foretold(again) == full_blocks(again.counted)


@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_the_last_token_is_always_computed(cold: Served, over: int) -> None:
    """So a prompt that ends with a block takes all but that block from the cache."""
    body = {**COMMON, "prompt": [9707, 11, 1879, 0] * (2 * BLOCK), "max_tokens": 1}
    body["prompt"] = [*body["prompt"], 1879][: 8 * BLOCK + over]
    for foretold in (0, full_blocks(8 * BLOCK + over)):
        answer = await post(cold.url, "/v1/completions", body)
        assert (answer.predicted, answer.usage()) == (foretold, (8 * BLOCK + over, foretold))


async def test_prefixes_spread_and_each_stays_where_it_is(cold: Served) -> None:
    prefixes = [words(f"spread {number}", 500) for number in range(2 * len(cold.replicas))]
    homes = {}
    for prefix in prefixes:
        answer = await post(cold.url, CHAT, chat(("system", prefix), ("user", "first")))
        assert as_foretold(answer) == 0
        homes[prefix] = answer.replica
    assert set(homes.values()) == set(cold.replicas)
    for turn in range(2):
        for prefix in prefixes:
            question = words(f"question {turn}", 40)
            answer = await post(cold.url, CHAT, chat(("system", prefix), ("user", question)))
            assert answer.replica == homes[prefix]
            assert as_foretold(answer) >= 500 - BLOCK


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_next_turn_finds_the_answer_too(cold: Served, engines: list[str], stream: bool) -> None:
    # The model's weights are random: words that are one token each read back as the tokens they were.
    ids = {name: await tokens_of(engines[0], {"prompt": f" {name}"}) for name in words("v", 60).split()}
    allowed = sorted({tokens[0] for tokens in ids.values() if len(tokens) == 1})
    assert len(allowed) > 5
    fields: dict[str, Any] = {"allowed_token_ids": allowed, "max_tokens": 2 * BLOCK, "stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True}
    turns = [("system", words(f"turns {stream}", 300)), ("user", "Talk to me.")]
    last, home = await post(cold.url, CHAT, chat(*turns, **fields)), ""
    for number in range(2):
        home = home or last.replica
        held = last.counted + fields["max_tokens"] - 1  # the last token is sampled, never computed
        turns += [("assistant", last.content()), ("user", words(f"turn {number}", 20))]
        last = await post(cold.url, CHAT, chat(*turns, **fields))
        if last.replica == home:
            assert as_foretold(last) >= held // BLOCK * BLOCK - BLOCK
        else:
            assert stream
            as_foretold(last)
            home = last.replica


async def test_a_salt_keeps_caches_apart(cold: Served) -> None:
    turns = [("system", words("salt", 400)), ("user", "Go")]
    seen: dict[str | None, int] = {}
    for salt in [None, None, "one", "one", "two", "two", "one", None]:
        fields = {} if salt is None else {"cache_salt": salt}
        answer = await post(cold.url, CHAT, chat(*turns, **fields))
        assert as_foretold(answer) == (full_blocks(answer.counted) if salt in seen else 0)
        seen[salt] = answer.counted


async def test_an_emptied_cache_is_known_to_be_empty(cold: Served) -> None:
    turns = [("system", words("reset", 400)), ("user", "Go")]
    first = await post(cold.url, CHAT, chat(*turns))
    again = await post(cold.url, CHAT, chat(*turns))
    assert as_foretold(again) == full_blocks(first.counted)
    await cold.reset(first.replica)
    after = await post(cold.url, CHAT, chat(*turns))
    assert after.predicted == 0
    assert as_foretold(after) == 0
    assert after.header("x-warmroute-decision") == "cold"


async def test_a_cache_emptied_behind_its_back_is_noticed(cold: Served) -> None:
    turns = [("system", words("behind", 400)), ("user", "Go")]
    first = await post(cold.url, CHAT, chat(*turns))
    answer = await post(cold.replicas[first.replica], "/reset_prefix_cache", b"")
    assert answer.status == 200
    wrong = await post(cold.url, CHAT, chat(*turns))
    assert wrong.replica == first.replica
    assert wrong.usage()[1] == 0
    assert wrong.predicted == full_blocks(first.counted)
    right = await post(cold.url, CHAT, chat(*turns))
    assert right.replica == first.replica
    assert as_foretold(right) == full_blocks(first.counted)


async def test_requests_at_once_are_foretold_as_well(cold: Served) -> None:
    """An engine such as vLLM lets a request take blocks that another one still computes."""
    turns = [("system", words("at once", 900))]
    bodies = [chat(*turns, ("user", f"{number} {words(number, 30)}")) for number in range(6)]
    answers = await asyncio.gather(*(post(cold.url, CHAT, body) for body in bodies))
    assert sum(as_foretold(answer) > 0 for answer in answers) >= len(bodies) - len(cold.replicas)


async def test_what_was_evicted_is_not_foretold(rested: list[str]) -> None:
    """One replica and more prefixes than its cache holds, in turn: an LRU keeps none until it comes again."""
    async with serving(Replica(rested[0]), tokenizer="auto") as proxy:
        (state,) = (await get(proxy.url, "/admin/replicas")).json["replicas"]
        assert (
            await post(proxy.url, f"/admin/replicas/{state['name']}/reset_prefix_cache", b"")
        ).status == 200
        tokens, capacity = 3000, state["cache_blocks"] * BLOCK
        prefixes = [words(f"evicted {number}", tokens) for number in range(capacity // tokens + 2)]
        for prefix in [*prefixes, *prefixes]:
            answer = await post(proxy.url, CHAT, chat(("system", prefix), ("user", "Go")))
            assert as_foretold(answer) == 0
        again = await post(proxy.url, CHAT, chat(("system", prefixes[-1]), ("user", "Go")))
        assert as_foretold(again) == full_blocks(again.counted)
