"""Requests of every API to prompt text: what vLLM makes of them, and what only an engine can know."""

import json
from pathlib import Path

import pytest

from proxy.prompt.parse import Endpoint, parse
from proxy.prompt.prompts import Chat
from tests.support.keying import keyer, loaded, parsed

CAPTURED = Path(__file__).parents[2] / "data" / "prompts" / "vllm_0.32.jsonl"
CASES = [json.loads(line) for line in CAPTURED.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['path'][4:]}-{CASES.index(case)}")
def test_a_prompt_is_what_vllm_renders(case):
    tokenizer, template = loaded()
    request = parsed(case["body"], Endpoint(case["path"]))
    assert isinstance(request.prompt, Chat)
    assert template.render(request.prompt, str) == case["text"]
    ids = keyer().token_ids(request)
    assert ids is not None
    assert ids.tobytes() == tokenizer.encode_exactly(case["text"])


ASK = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (Endpoint.RESPONSES, {"input": "x", "previous_response_id": "r"}),
        (Endpoint.RESPONSES, {"input": "x", "previous_input_messages": []}),
        (Endpoint.RESPONSES, {"input": "x", "truncation": "auto"}),
        (Endpoint.RESPONSES, {"input": []}),
        (Endpoint.RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}),
        (Endpoint.RESPONSES, {"input": [{"type": "function_call", "namespace": "n", "name": "f"}]}),
        (Endpoint.RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "e", "summary": []}]}),
        (Endpoint.RESPONSES, {"input": "x", "tools": [{"type": "mcp", "server_label": "s"}]}),
        (Endpoint.CHAT, {"messages": ASK, "truncate_prompt_tokens": 5}),
        (Endpoint.CHAT, {"messages": ASK, "chat_template_kwargs": {"tokenize": True}}),
        (Endpoint.CHAT, {"messages": ASK, "tools": []}),
        (Endpoint.CHAT, {"messages": ASK, "tools": [{"type": "function"}]}),
        (Endpoint.MESSAGES, {"messages": []}),
        (Endpoint.MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_removal"}]}]}),
        (Endpoint.MESSAGES, {"messages": ASK, "tools": [{"name": "f"}]}),
        (Endpoint.EMBEDDINGS, {"input": "x", "truncate_prompt_tokens": 5}),
    ],
)
def test_what_only_the_engine_knows_or_refuses_is_routed_by_load(endpoint, body):
    assert parse(endpoint, json.dumps(body).encode()).prompt is None


def test_an_image_is_the_same_from_either_api():
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    openai = parsed({"messages": [{"role": "user", "content": [part]}]})
    anthropic = parsed(
        {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}, Endpoint.MESSAGES
    )
    maker = keyer()
    assert maker.token_ids(openai) == maker.token_ids(anthropic)
