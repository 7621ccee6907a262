"""What clients and engines say: request bodies for every route, and events of a stream."""

import json
from typing import Any

from tests.support.upstream import Exchange, usage

MESSAGES = [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "Where?"}]
DONE = b"data: [DONE]\n\n"


def body(**fields: Any) -> bytes:
    """A JSON body for model `m`."""
    return json.dumps({"model": "m", **fields}).encode()


def chat(**fields: Any) -> bytes:
    """A chat completion's body."""
    return body(messages=MESSAGES, **fields)


def routes(**fields: Any) -> dict[str, bytes]:
    """A body for every kind of generating route; the last is only passed through."""
    return {
        "/v1/chat/completions": chat(**fields),
        "/v1/completions": body(prompt="Once upon a time", **fields),
        "/v1/responses": body(input="Once upon a time", **fields),
        "/v1/messages": body(messages=MESSAGES[1:], max_tokens=100, **fields),
        "/v1/audio/speech": body(input="Once upon a time", voice="low", **fields),
    }


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str, *, finish_reason: str | None = None, **fields: Any) -> bytes:
    """An event with a piece of a chat answer."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return event({"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **fields})


def usage_event(**counts: int | None) -> bytes:
    """The event that carries usage and nothing else, as vLLM sends it last."""
    return event({"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": usage(**counts)})


def stream_of(*events: bytes):
    """A behaviour that streams these events."""

    async def behave(exchange: Exchange) -> None:
        await exchange.stream(*events)

    return behave


async def hang(exchange: Exchange) -> None:
    """A behaviour that never says a word."""
    await exchange.hang()
