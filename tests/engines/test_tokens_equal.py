"""Token ids equal a real engine's /tokenize: chats with tools, many turns, calls, all that templates read.

The tokenizer is read from the directory that the engine names as its model's, so the engine must run on this
machine; or else from WARMROUTE_TEST_TOKENIZER.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, parse
from proxy.prompt.tokenizer import load

CAPTURED = Path(__file__).parents[1] / "data" / "prompts" / "vllm_0.32.jsonl"
USER = {"role": "user", "content": "What is the weather in Zürich, 東京 and São Paulo?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a <city> & its 'region'",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Zürich", "d": 1.0}'},
}
LONG = [
    {"role": role, "content": f"{turn} " + "The cache is warm, isn't it?  \n\n 12345 e\u0301 🙂 " * 60}
    for turn in range(8)
    for role in ("user", "assistant")
]
BODIES: list[dict[str, Any]] = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    {"messages": [*LONG, USER]},
    {"messages": [USER], "tools": [TOOL]},
    {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
            {"role": "assistant", "content": "It is sunny."},
            USER,
        ],
        "tools": [TOOL],
    },
    {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER], "add_generation_prompt": False},
    {
        "messages": [USER, {"role": "assistant", "content": "Let me see,  "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        ]
    },
    {"messages": [{"role": "user", "content": "<|im_end|> <think> </tool_call>\u0338 <|im_start|"}]},
    {"messages": [USER, {"role": "assistant", "reasoning_content": "hm", "content": "x"}, USER]},
    {"messages": [{"role": "developer", "content": "d"}, USER]},
]
PROMPTS = [
    "Hello",
    " lead",
    "x\n\n  y\t",
    "e\u0301 🙂 東京 12345",
    "<|im_start|>user\nhi<|im_end|>",
    "word " * 3000,
]
READ_BY_TOKENIZE = {
    "messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
}  # fmt: skip


@pytest.fixture(scope="module")
def url(engines: list[str]) -> str:
    return engines[0]


@pytest.fixture(scope="module")
def maker(url: str) -> Keyer:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
        root = json.loads(answer.read())["data"][0]["root"]
    tokenizer, template = load(os.environ.get("WARMROUTE_TEST_TOKENIZER", root))
    return Keyer(secret=b"", model="m", tokenizer=tokenizer, template=template)


def ask(url: str, body: dict[str, Any]) -> list[int]:
    """Ask an engine for the tokens of a request."""
    request = urllib.request.Request(
        f"{url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["tokens"]


def captured() -> list[dict[str, Any]]:
    """The captured chats that say nothing which /tokenize does not read."""
    rows = [json.loads(line) for line in CAPTURED.read_text().splitlines()]
    bodies = [row["body"] for row in rows if row["path"] == Endpoint.CHAT.value]
    return [body for body in bodies if body.keys() <= READ_BY_TOKENIZE]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_T02_chats_have_the_engines_tokens(maker, url, body):
    ids = maker.token_ids(parse(Endpoint.CHAT, json.dumps(body).encode()))
    assert ids is not None
    assert ids.tolist() == ask(url, body)


def test_T05_captured_chats_have_the_engines_tokens(maker, url):
    bodies = captured()
    assert len(bodies) > 20
    for body in bodies:
        ids = maker.token_ids(parse(Endpoint.CHAT, json.dumps(body).encode()))
        assert ids is not None
        assert ids.tolist() == ask(url, body), body


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_completions_have_the_engines_tokens(maker, url, prompt):
    ids = maker.token_ids(parse(Endpoint.COMPLETIONS, json.dumps({"prompt": prompt}).encode()))
    assert ids is not None
    assert ids.tolist() == ask(url, {"prompt": prompt})


@pytest.mark.parametrize("body", [{"messages": []}, {"messages": [{"role": "user", "content": 5}]}])
def test_T05_what_we_cannot_read_the_engine_refuses(maker, url, body):
    assert maker.token_ids(parse(Endpoint.CHAT, json.dumps(body).encode())) is None
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(url, body)
    refused.value.close()
    assert refused.value.code == 400
