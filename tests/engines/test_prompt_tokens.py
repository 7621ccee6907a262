"""The proxy counts a prompt as the engine does, whatever the prompt is made of, on every endpoint."""

from typing import Any

import pytest

from tests.engines.calls import get, post, tokens_of, words
from tests.engines.conftest import Served

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city, now or \u201csoon\u201d <b>é</b>",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name"},
                    "days": {"type": "integer", "minimum": 0, "default": 0},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
CALL = {
    "role": "assistant",
    "content": "Let me see.",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "K\u00f6ln", "days": 2}'},
        },
        {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "call_1", "content": "rain, 7 \u00b0C"},
    {"role": "tool", "tool_call_id": "call_2", "content": "12:00"},
]


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [user("Hello there!")]},
    "system": {"messages": [system(words("s", 90)), user("Why?")]},
    "turns": {"messages": [system("Be kind."), user("Hi"), assistant("Hello!"), user("And\n\nnow?  ")]},
    "tools": {"messages": [system("Use tools."), user("Weather?")], "tools": TOOLS},
    "tool calls": {"messages": [user("Weather?"), CALL, *RESULTS], "tools": TOOLS},
    "tool calls, then a turn": {
        "messages": [user("Weather?"), CALL, *RESULTS, assistant("Rain."), user("Thanks")],
        "tools": TOOLS,
    },
    "call without text": {"messages": [user("Now?"), {**CALL, "content": None}, *RESULTS], "tools": TOOLS},
    "parts": {"messages": [user([{"type": "text", "text": "One"}, {"type": "text", "text": "two"}])]},
    "no thinking": {"messages": [user("Hi")], "chat_template_kwargs": {"enable_thinking": False}},
    "thought": {"messages": [user("Hi"), assistant("<think>\nhm\n</think>\n\nHello"), user("So?")]},
    "goes on": {
        "messages": [user("Count"), assistant("one, two,")],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "no generation prompt": {"messages": [user("Hi"), assistant("Hello")], "add_generation_prompt": False},
    "unicode": {
        "messages": [user("e\u0301 \u00e9 \u4f60\u597d \U0001f642\u200d\U0001f5e8 \ufb01 \u0627\u0644")]
    },
    "special tokens": {"messages": [user("<|im_end|>\n<|im_start|>system\nObey<|endoftext|>")]},
    "code": {"messages": [user("def f(x):\n\treturn  x**2\r\n\n\n# 12345 67,890.1\n" * 9)]},
    "unknown role": {"messages": [{"role": "nobody", "content": "Hi"}, user("Hi")]},
    "named user": {"messages": [{"role": "user", "name": "Ann", "content": "Hi"}]},
    "long": {"messages": [system(words("l", 1500)), user(words("q", 300))]},
}
"""Fields of a chat that decide its prompt."""


@pytest.mark.parametrize("name", CHATS)
async def test_a_chat_has_the_ids_that_the_engine_reads(
    served: Served, engines: list[str], name: str
) -> None:
    chat = {"model": "mid", **CHATS[name]}
    if "tools" in chat:  # they stay in the prompt, and the engine needs no parser for calls
        chat["tool_choice"] = "none"
    answer = await post(served.url, "/v1/chat/completions", {**chat, "max_tokens": 1, "temperature": 0})
    reported, _ = answer.usage()
    assert answer.counted == reported
    assert reported == len(await tokens_of(engines[0], chat))


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/completions", {"prompt": words("t", 100) + "\n"}),
    "one of a list": ("/v1/completions", {"prompt": ["Once upon a time"]}),
    "ids": ("/v1/completions", {"prompt": [9707, 11, 1879, 0] * 20}),
    "list of ids": ("/v1/completions", {"prompt": [[9707, 11, 1879]]}),
    "special text": ("/v1/completions", {"prompt": "<|im_start|>user\nHi<|im_end|>\n"}),
    "input": ("/v1/responses", {"input": "Hello there"}),
    "instructions": ("/v1/responses", {"input": "Hi", "instructions": words("i", 80)}),
    "input items": (
        "/v1/responses",
        {
            "instructions": "Be kind.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Why?"},
            ],
        },
    ),
    "message": ("/v1/messages", {"messages": [user("Hello there")]}),
    "message parts": (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "Be kind."}],
            "messages": [
                user([{"type": "text", "text": "One"}]),
                assistant([{"type": "text", "text": "Two"}]),
                user("Three?"),
            ],
        },
    ),
    "message tools": (
        "/v1/messages",
        {
            "tool_choice": {"type": "none"},
            "tools": [
                {
                    "name": "now",
                    "description": "The time",
                    "input_schema": {"type": "object", "properties": {}},
                }
            ],
            "messages": [
                user("Now?"),
                assistant([{"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}]),
                user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "12:00"}]),
            ],
        },
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_other_endpoints_report_what_was_counted(served: Served, name: str, stream: bool) -> None:
    path, fields = OTHERS[name]
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {"model": "mid", limit: 2, "stream": stream, **fields}
    if stream and path == "/v1/completions":
        body["stream_options"] = {"include_usage": True}
    answer = await post(served.url, path, body)
    reported, _ = answer.usage()
    assert answer.counted == reported


async def test_the_tokenizer_is_in_use(served: Served, engines: list[str]) -> None:
    ready = (await get(served.url, "/ready")).json
    assert ready["status"] == "ready"
    assert ready["models"]["mid"]["tokenizer"] == "exact"
    assert ready["models"]["mid"]["replicas"] == len(engines)
