"""Whatever the bytes: a request is read, or refused as a bad request in words of our own; nothing else."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.prompt.parse import Endpoint, Parsed, parse, splice_model, splice_stream_usage
from tests.support.keying import keyer

EXACT, BYTES = keyer(), keyer(tokenizer=None, template=None)
REFUSALS = {
    "The request body is not valid JSON.",
    "The request body must be a JSON object.",
    "'model' must be a string of valid Unicode.",
}

endpoints = st.sampled_from(list(Endpoint))
words = [
    "text", "user", "assistant", "tool", "system", "developer", "image_url", "function", "message",
    "tool_use", "tool_result", "thinking", "auto", "none", "m",
]  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.text(max_size=5),
    st.just("\ud800"),
    st.sampled_from(words),
)
names = st.sampled_from([
    "role", "content", "type", "text", "tool_calls", "function", "arguments", "name", "image_url", "url",
    "source", "input", "tool_use_id", "thinking", "id", "call_id", "output", "summary", "status",
    "parameters", "input_schema", "description", "tool_call_id", "reasoning", "reasoning_content", "data",
    "uuid", "tools", "defer_loading",
])  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
fields = st.sampled_from([
    "messages", "model", "prompt", "input", "stream", "stream_options", "tools", "tool_choice", "n",
    "best_of", "system", "chat_template_kwargs", "chat_template", "documents", "reasoning_effort",
    "reasoning", "continue_final_message", "add_generation_prompt", "instructions", "text", "input_ids",
    "sampling_params", "cache_salt", "max_tokens", "echo", "logprobs", "prompt_logprobs", "query",
    "thinking", "output_config", "lora_path", "add_special_tokens", "truncation", "extra_key",
])  # fmt: skip
bodies = st.dictionaries(fields, values, max_size=8)
messages = st.fixed_dictionaries(
    {"role": scalars}, optional={"content": values, "tool_calls": values, "reasoning": values}
)
chats = st.builds(lambda one, many: one | {"messages": many}, bodies, st.lists(messages, max_size=4))


def handled(endpoint: Endpoint, body: bytes) -> Parsed | None:
    """Read a body and key it both ways; None if it was refused."""
    try:
        parsed = parse(endpoint, body)
    except BadRequest as error:
        refused = error
    else:
        return keyed(parsed, body)
    assert refused.message in REFUSALS
    return None


def keyed(parsed: Parsed, body: bytes) -> Parsed:
    for text in (parsed.model, parsed.lora, parsed.cache_salt, parsed.extra_key):
        assert text is None or isinstance(text.encode(), bytes)
    assert parsed.sequences >= 1
    for maker in (EXACT, BYTES):
        keying = maker.begin(parsed)
        keying.run()
        assert keying.done
        assert keying.is_understood or not keying.keys
        assert len(maker.extend(keying, "answer")) >= len(keying.keys)
    if parsed.usage_splice:
        spliced = splice_stream_usage(body)
        assert json.loads(spliced) == json.loads(body) | {"stream_options": {"include_usage": True}}
    return parsed


@given(endpoints, st.binary(max_size=200))
@example(Endpoint.CHAT, b"[" * 100_000)
@example(Endpoint.CHAT, b'{"messages":' * 50_000)
@example(Endpoint.CHAT, b'{"n":' + b"9" * 5000 + b"}")
@settings(max_examples=300, deadline=None)
def test_any_bytes(endpoint, body):
    handled(endpoint, body)


@given(endpoints, st.one_of(bodies, chats))
@settings(max_examples=600, deadline=None)
def test_any_object(endpoint, body):
    parsed = handled(endpoint, json.dumps(body).encode())
    if "model" not in body:
        assert parsed is not None


@given(endpoints, st.one_of(bodies, chats), st.data())
@settings(max_examples=200, deadline=None)
def test_any_object_cut_short_or_damaged(endpoint, body, data):
    raw = bytearray(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] = data.draw(st.integers(0, 255))
    handled(endpoint, bytes(raw))


spaces = st.text(alphabet=" \t\r\n", max_size=2)


@given(
    st.lists(st.tuples(st.sampled_from(["model", "a", 'b"', "\\"]), values, spaces, spaces), max_size=6),
    st.text(),
)
@settings(max_examples=300, deadline=None)
def test_an_alias_changes_the_model_and_nothing_else(pairs, model):
    """`model` may come several times, anywhere, with any value."""

    def written(replaced: bool) -> str:
        return "{" + ",".join(
            f"{before}{json.dumps(key)}{after}:{before}"
            + (json.dumps(model, ensure_ascii=False) if replaced and key == "model" else json.dumps(value))
            + after
            for key, value, before, after in pairs
        ) + "}"  # fmt: skip

    model = model.encode("utf-8", "replace").decode()
    assert json.loads(splice_model(written(replaced=False).encode(), model)) == json.loads(
        written(replaced=True)
    )
    untouched = splice_model(written(replaced=False).encode(), model)
    assert untouched.decode() == written(replaced=True) or "model" in [key for key, *_ in pairs]
