"""A client that leaves frees its engine, on every endpoint, whenever it leaves."""

import json
import re
from typing import Any

import pytest

from tests.engines.calls import JSON, Replica, busy, words
from tests.support.client import Client
from tests.support.eventually import eventually
from tests.support.fixtures import idle, serving, total
from tests.support.http import request

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LONG = 6000
"""Tokens of an answer that takes minutes."""
ASK = "Count as far as you can."
TOKEN = re.compile(rb'"(?:content|text|delta)":"[^"]')
ENDLESS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": ASK}], "max_tokens": LONG, "ignore_eos": True},
    COMPLETIONS: {"prompt": ASK, "max_tokens": LONG, "ignore_eos": True},
    # These two know no ignore_eos; greedy, the model of the suite goes round in a circle.
    RESPONSES: {"input": ASK, "max_output_tokens": LONG, "temperature": 0},
    MESSAGES: {"messages": [{"role": "user", "content": ASK}], "max_tokens": LONG, "temperature": 0},
}


async def leave(engine: str, path: str, body: dict[str, Any], *, midway: bool) -> None:
    """Send a request and leave: midway through the answer or before its first token. It must end at once."""
    async with serving(Replica(engine)) as proxy:
        async with await Client.connect(proxy.port) as client:
            await client.send(request("POST", path, json.dumps({"model": "mid", **body}).encode(), [JSON]))
            await eventually(lambda: busy(engine), "the engine works on it")
            while midway and not TOKEN.search(client.received):
                await client.arrival()
            assert midway or not TOKEN.search(client.received)
            assert await total(proxy, "warmroute_replica_inflight") == 1
            code = "200" if client.received else "499"
            client.reset()

        async def freed() -> bool:
            return await busy(engine) == 0

        await eventually(freed, "the engine is freed")
        await idle(proxy)
        assert await total(proxy, "warmroute_requests_total", code=code) == 1


@pytest.mark.parametrize("path", ENDLESS)
async def test_in_the_middle_of_a_stream(rested: list[str], path: str) -> None:
    await leave(rested[0], path, {**ENDLESS[path], "stream": True}, midway=True)


@pytest.mark.parametrize("path", ENDLESS)
async def test_while_an_answer_in_one_piece_is_made(rested: list[str], path: str) -> None:
    await leave(rested[0], path, ENDLESS[path], midway=False)


async def test_before_the_first_token_of_a_stream(rested: list[str]) -> None:
    """In the prefill of a prompt that fills the context."""
    body = {"prompt": words("prefill", 8000), "max_tokens": 100, "ignore_eos": True, "stream": True}
    await leave(rested[0], COMPLETIONS, body, midway=False)
