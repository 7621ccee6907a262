"""Whatever the bytes: a request is read, or refused as a bad request in words of our own; nothing else."""

import json

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy.errors import BadRequest
from proxy.prompt.fields import Fields
from proxy.prompt.parse import Endpoint, Parsed, parse, parse_by_field, splice_model, splice_stream_usage
from proxy.prompt.splice import has_duplicates
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


def outcome(read, endpoint, body):
    try:
        return read(endpoint, body)
    except BadRequest as error:
        return error.message


def handled(endpoint: Endpoint, body: bytes) -> Parsed | None:
    """Read a body both ways and key it both ways; None if it was refused."""
    assert outcome(parse, endpoint, body) == outcome(parse_by_field, endpoint, body)
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


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 300), st.sampled_from(words)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
usual = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(words)}, optional={"content": plain}), max_size=3
        )
    },
    optional={
        "model": st.one_of(st.none(), st.text(max_size=3)),
        "prompt": st.one_of(st.text(max_size=3), st.lists(plain, max_size=3)),
        "stream": st.sampled_from([True, True, False, None]),
        "stream_options": plain,
        "n": st.one_of(st.none(), st.integers(-2, 300)),
        "max_tokens": st.one_of(st.none(), st.integers(-2, 9)),
        "max_completion_tokens": st.one_of(st.none(), st.integers(-2, 9)),
        "cache_salt": st.one_of(st.none(), st.text(max_size=3)),
        "tools": st.one_of(plain, st.lists(st.builds(lambda one: {"function": one}, plain), max_size=2)),
        "tool_choice": plain,
        "chat_template_kwargs": st.one_of(st.none(), st.dictionaries(names, plain, max_size=2)),
        "reasoning_effort": st.one_of(st.none(), st.sampled_from([*words, "high"])),
        "temperature": values,
    },
)
odd = st.tuples(st.one_of(fields, st.text(max_size=3)), values)


@given(
    st.sampled_from([Endpoint.CHAT, Endpoint.COMPLETIONS]),
    usual,
    st.lists(odd, max_size=1),
    st.lists(st.integers(0, 20), max_size=1),
    st.sampled_from([" ", "", "\n "]),
    st.data(),
)
@settings(max_examples=600, deadline=None)
def test_both_ways_of_reading_say_the_same(endpoint, body, odds, again, space, data):
    """Usual bodies, with odd fields among them, keys that come twice, and keys written with escapes."""
    body.pop("messages" if endpoint is Endpoint.COMPLETIONS else "prompt", None)
    pairs = data.draw(st.permutations([*body.items(), *odds]))
    pairs += [pairs[at] for at in again if at < len(pairs)]
    written = "{" + ",".join(
        f"{space}{json.dumps(key)}:{space}{json.dumps(value)}" for key, value in pairs
    ) + space + "}"  # fmt: skip
    if data.draw(st.booleans()):
        written = written.replace('"stream', '"\\u0073tream')
    raw = written.encode()
    assert outcome(parse, endpoint, raw) == outcome(parse_by_field, endpoint, raw)
    if "stream_options" not in dict(pairs):
        try:
            outline = Fields.of(raw).raw
        except msgspec.DecodeError:
            return
        twice = len({key for key, _ in pairs}) < len(pairs)
        assert has_duplicates(raw, outline) is twice


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
