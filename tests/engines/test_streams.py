"""What an engine writes is what the client reads, and what the client writes is what the engine reads.

Compared twice: with what the engine wrote on the wire for the very same request, where nothing may differ,
and with what the engine answers when it is asked directly, where only the time of creation may.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.app import Proxy
from tests.engines.calls import Answer, post, words
from tests.engines.recorder import Recorder
from tests.support.fixtures import serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ASKED = {"stream": True, "stream_options": {"include_usage": True}}
HI = {"messages": [{"role": "user", "content": "Say something in every language you know."}]}
SHORT = {"model": "mid", "temperature": 0, "max_tokens": 8}
ADDED = re.compile(r"x-warmroute-|x-request-id$")
FRAMING = {"content-length", "transfer-encoding", "connection", "keep-alive", "date"}
_CREATED = re.compile(rb'("created(?:_at)?":\s*)\d+')
_RANDOM_ID = re.compile(rb'"((?:resp|msg)_)[0-9a-f]+"')
_FINGERPRINT = re.compile(rb',"system_fingerprint":"[^"]*"')
TRIES = 5
"""An engine merges tokens into one event where its writer is late, so that two streams may be cut apart."""


@dataclass
class Relayed:
    """A proxy in front of one engine, and the wire between them."""

    proxy: Proxy
    wire: Recorder
    engine: str
    asks_usage: bool

    async def both(self, path: str, body: dict[str, Any] | bytes) -> tuple[Answer, Answer]:
        """The same request answered through the proxy and directly, under one request id."""
        same = ("X-Request-Id", "the-same-id")
        return await post(self.proxy.url, path, body, same), await post(self.engine, path, body, same)


@pytest.fixture(params=["auto", "never"])
async def relayed(rested: list[str], request: pytest.FixtureRequest) -> AsyncIterator[Relayed]:
    """With and without usage that the proxy asks for in the client's stead."""
    async with Recorder(rested[0]) as wire, serving(wire, stream_usage=request.param) as proxy:
        yield Relayed(proxy, wire, rested[0], asks_usage=request.param == "auto")


def settled(raw: bytes) -> bytes:
    """Without what is drawn anew for each answer."""
    return _RANDOM_ID.sub(rb'"\1"', _CREATED.sub(rb"\g<1>0", raw))


def headers(answer: Answer) -> list[tuple[str, str]]:
    """What an engine's own headers say, in order."""
    pairs = [(name.decode().lower(), value.decode()) for name, value in answer.message.headers]
    return [pair for pair in pairs if pair[0] not in FRAMING and not ADDED.match(pair[0])]


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**SHORT, **HI, **ASKED}),
    "chat, continuous usage": (
        CHAT,
        {
            **SHORT,
            **HI,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "chat, whole": (CHAT, {**SHORT, **HI}),
    "chat, logprobs": (CHAT, {**SHORT, **HI, **ASKED, "logprobs": True, "top_logprobs": 3}),
    "chat, two choices": (CHAT, {**SHORT, **HI, **ASKED, "n": 2, "temperature": 1, "seed": 7}),
    "chat, sampled": (CHAT, {**SHORT, **HI, **ASKED, "temperature": 1, "seed": 3, "max_tokens": 24}),
    "completions": (COMPLETIONS, {**SHORT, "prompt": "Once upon a time", **ASKED}),
    "completions, echo": (COMPLETIONS, {**SHORT, "prompt": "Once \u00e9\U0001f642", "echo": True, **ASKED}),
    "completions, whole": (COMPLETIONS, {**SHORT, "prompt": ["Once", "Twice"]}),
    "responses": (
        RESPONSES,
        {"model": "mid", "input": "Hi", "temperature": 0, "max_output_tokens": 6, "stream": True},
    ),
    "responses, whole": (
        RESPONSES,
        {"model": "mid", "input": "Hi", "temperature": 0, "max_output_tokens": 6},
    ),
    "messages": (MESSAGES, {**SHORT, **HI, "stream": True}),
    "messages, whole": (MESSAGES, {**SHORT, **HI}),
    "tokenize": ("/tokenize", {"model": "mid", **HI}),
}


@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_is_what_the_engine_wrote(relayed: Relayed, name: str) -> None:
    path, body = BODIES[name]
    for _ in range(TRIES):
        through, direct = await relayed.both(path, body)
        request, response = relayed.wire.exchange(path)
        assert through.message.body == response.body
        assert request.json() == body
        assert through.status == direct.status == 200
        assert headers(through) == headers(direct)
        if settled(through.message.body) == settled(direct.message.body):
            return
    assert settled(through.message.body) == settled(direct.message.body)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_without_usage_stays_without(relayed: Relayed, path: str) -> None:
    """All that a client can notice of usage that the proxy asked for is a fingerprint that it misses.

    An engine such as vLLM names it in the last chunk, which is the usage chunk where it is asked for one.
    """
    body = {**SHORT, "stream": True, **(HI if path == CHAT else {"prompt": "Once upon a time"})}
    asks = relayed.asks_usage
    for _ in range(TRIES):
        through, direct = await relayed.both(path, body)
        request, response = relayed.wire.exchange(path)
        assert request.json() == (body | ASKED if asks else body)
        assert b'"usage"' not in through.message.body
        assert (b'"usage"' in response.body) == asks
        wanted = settled(direct.message.body)
        if asks:
            wanted = _FINGERPRINT.sub(b"", wanted)
        if settled(through.message.body) == wanted:
            return
    assert settled(through.message.body) == wanted


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "too long": (CHAT, {**SHORT, "messages": [{"role": "user", "content": words("long", 9000)}]}),
    "too long, streamed": (
        CHAT,
        {**SHORT, "messages": [{"role": "user", "content": words("long", 9000)}], **ASKED},
    ),
    "messages of a wrong type": (CHAT, {**SHORT, "messages": 5}),
    "no messages": (CHAT, {**SHORT, "messages": []}),
    "a negative temperature": (CHAT, {**SHORT, **HI, "temperature": -1}),
    "max_tokens of a wrong type": (CHAT, {**SHORT, **HI, "max_tokens": "many"}),
    "negative max_tokens": (COMPLETIONS, {**SHORT, "prompt": "Hi", "max_tokens": -1, "stream": True}),
    "no prompt": (COMPLETIONS, {**SHORT}),
    "stream_options without a stream": (
        CHAT,
        {**SHORT, **HI, "stream_options": {"include_usage": True}},
    ),
    "an empty salt": (CHAT, {**SHORT, **HI, "cache_salt": ""}),
    "messages without max_tokens": (MESSAGES, {"model": "mid", **HI}),
    "embeddings of a model that makes none": ("/v1/embeddings", {"model": "mid", "input": "Hi"}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refusal_is_the_engine_s_own(relayed: Relayed, name: str) -> None:
    path, body = REFUSED[name]
    through, direct = await relayed.both(path, body)
    assert direct.status >= 400
    assert through.status == direct.status
    assert through.message.body == direct.message.body
    assert headers(through) == headers(direct)
