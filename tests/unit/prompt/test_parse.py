"""Reading a request: what is refused, what is left to the backend, and what a request weighs."""

import json

import pytest

from proxy.errors import BadRequest
from proxy.prompt.parse import Endpoint, parse
from proxy.prompt.prompts import Chat, Text, TokenIds

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]%s}'


def chat(extra: bytes = b""):
    return parse(Endpoint.CHAT, CHAT % extra)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[]",
        b"null",
        b'"hi"',
        b"\xff",
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b"9" * 5000,
        b'{"a": 1} x',
        b'{"a": 1,}',
        b"\xef\xbb\xbf[]",
    ],
    ids=lambda body: repr(body[:16]),
)
@pytest.mark.parametrize("endpoint", Endpoint)
def test_T11_what_is_no_json_object_is_a_bad_request(endpoint, body):
    with pytest.raises(BadRequest) as caught:
        parse(endpoint, body)
    answer = json.loads(caught.value.body())["error"]
    assert answer["message"] in {
        "The request body is not valid JSON.",
        "The request body must be a JSON object.",
    }
    assert (caught.value.status, answer["type"], answer["code"]) == (
        400,
        "invalid_request_error",
        "invalid_request",
    )


def test_T11_bad_utf8_in_the_prompt_is_a_bad_request():
    with pytest.raises(BadRequest):
        parse(Endpoint.CHAT, b'{"messages": "\xff"}')


@pytest.mark.parametrize("model", [b"[]", b"{}", b"1", b"true", b'["m"]', b'"\\ud800"'])
def test_T11_a_model_that_is_no_text_is_refused_by_name(model):
    with pytest.raises(BadRequest) as caught:
        parse(Endpoint.CHAT, b'{"model": %s}' % model)
    assert caught.value.param == "model"
    assert "surrogate" not in caught.value.message


def test_T11_a_model_that_is_null_or_missing_is_none():
    assert parse(Endpoint.CHAT, b'{"model": null}').model is None
    assert parse(Endpoint.CHAT, b"{}").model is None


def test_T11_of_two_models_the_last_counts_as_it_does_for_engines():
    body = b'{"model": "a", "messages": [{"role": "user", "content": "x"}], "model": "b"}'
    assert parse(Endpoint.CHAT, body).model == "b" == json.loads(body)["model"]


@pytest.mark.parametrize(
    "extra",
    [
        b', "stream": "yes please"',
        b', "max_tokens": "x"',
        b', "n": "2"',
        b', "n": 1.5',
        b', "stop": 3',
        b', "seed": []',
    ],
)
def test_T11_wrong_types_that_do_not_decide_the_prompt_are_the_backends_to_refuse(extra):
    found = chat(extra)
    assert (found.stream, found.max_tokens, found.sequences) == (False, None, 1)
    assert isinstance(found.prompt, Chat)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e400", b"123456789012345678901234567890"])
def test_T11_numbers_beyond_json_are_no_reason_to_refuse(number):
    found = chat(b', "temperature": %s' % number)
    assert found.model == "m"


def test_T11_a_bom_is_routed_by_load():
    found = parse(Endpoint.CHAT, b'\xef\xbb\xbf{"model": "m", "stream": true, "messages": []}')
    assert (found.model, found.stream, found.prompt) == ("m", True, None)


SURROGATE = b'"\\ud800 hi"'


@pytest.mark.parametrize(
    "fields",
    [
        b'"messages": [{"role": "user", "content": %s}]',
        b'"messages": [{"role": "user", "content": [{"type": "text", "text": %s}]}]',
        b'"messages": [{"role": %s, "content": "x"}]',
        b'"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": %s}',
        b'"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": %s}}]',
        b'"messages": [{"role": "user", "content": "x"}], "cache_salt": %s',
        b'"messages": [{"role": "user", "content": "x"}], "user": %s',
        b'"messages": [{"role": "user", "content": "x"}], %s: 1',
    ],
)
def test_T08_lone_surrogate_is_routed_by_load(fields):
    found = parse(Endpoint.CHAT, b'{"model": "m", %s}' % (fields % SURROGATE))
    assert (found.model, found.prompt, found.cache_salt) == ("m", None, None)


@pytest.mark.parametrize(
    ("endpoint", "body", "sequences"),
    [
        (Endpoint.CHAT, {"n": 8}, 8),
        (Endpoint.COMPLETIONS, {"prompt": "x", "best_of": 8, "n": 1}, 8),
        (Endpoint.COMPLETIONS, {"prompt": ["x"] * 8}, 8),
        (Endpoint.COMPLETIONS, {"prompt": ["x"] * 8, "n": 2}, 16),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (Endpoint.COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (Endpoint.CHAT, {"n": 0}, 1),
        (Endpoint.CHAT, {"n": -3}, 1),
        (Endpoint.CHAT, {"n": "2"}, 1),
        (Endpoint.CHAT, {"n": True}, 1),
        (Endpoint.CHAT, {"n": 129}, 128),
        (Endpoint.CHAT, {"n": 10**30}, 128),
        (Endpoint.GENERATE, {"text": ["a", "b"], "sampling_params": {"n": 3}}, 6),
        (Endpoint.EMBEDDINGS, {"input": ["a", "b", "c"]}, 3),
        (Endpoint.RERANK, {"query": "q", "documents": ["a", "b"]}, 2),
        (Endpoint.RESPONSES, {"input": "x"}, 1),
    ],
)
def test_Q06_a_request_weighs_as_many_sequences_as_the_engine_runs(endpoint, body, sequences):
    assert parse(endpoint, json.dumps(body).encode()).sequences == sequences


@pytest.mark.parametrize(
    ("endpoint", "fields", "reads"),
    [
        (Endpoint.COMPLETIONS, {"prompt_logprobs": 0}, False),
        (Endpoint.COMPLETIONS, {"echo": True, "logprobs": 1}, False),
        (Endpoint.COMPLETIONS, {"echo": True}, True),
        (Endpoint.COMPLETIONS, {"logprobs": 1}, True),
        (Endpoint.COMPLETIONS, {"prompt_logprobs": None}, True),
        (Endpoint.CHAT, {"echo": True}, False),
        (Endpoint.CHAT, {"logprobs": True, "top_logprobs": 5}, True),
        (Endpoint.GENERATE, {"return_logprob": True}, False),
        (Endpoint.GENERATE, {}, True),
    ],
)
def test_R09_prompt_logprobs_skip_the_cache(endpoint, fields, reads):
    assert parse(endpoint, json.dumps(fields).encode()).cache_read is reads


@pytest.mark.parametrize(
    ("endpoint", "fields", "tokens"),
    [
        (Endpoint.CHAT, {"max_tokens": 5}, 5),
        (Endpoint.CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (Endpoint.RESPONSES, {"max_output_tokens": 9}, 9),
        (Endpoint.GENERATE, {"sampling_params": {"max_new_tokens": 3}}, 3),
        (Endpoint.CHAT, {"max_tokens": -1}, None),
    ],
)
def test_longest_answer(endpoint, fields, tokens):
    assert parse(endpoint, json.dumps(fields).encode()).max_tokens == tokens


@pytest.mark.parametrize(
    ("endpoint", "body", "may"),
    [
        (Endpoint.CHAT, b'{"stream": true}', True),
        (Endpoint.COMPLETIONS, b'{"stream": true}', True),
        (Endpoint.CHAT, b'{"stream": false}', False),
        (Endpoint.CHAT, b"{}", False),
        (Endpoint.CHAT, b'{"stream": "true"}', False),
        (Endpoint.CHAT, b'{"stream": true, "stream_options": null}', False),
        (Endpoint.CHAT, b'{"stream": true, "stream_options": {"include_usage": false}}', False),
        (Endpoint.CHAT, b'{"stream": true, "\\u0073tream_options": {}}', False),
        (Endpoint.CHAT, b'{"stream": true, "stream": true}', False),
        (Endpoint.CHAT, b'{"model": "a", "stream": true, "mode\\u006c": "b"}', False),
        (Endpoint.CHAT, b'{"stream": true, "x": {"stream_options": 1, "a": 1}, "a": 1}', True),
        (Endpoint.RESPONSES, b'{"stream": true}', False),
        (Endpoint.MESSAGES, b'{"stream": true}', False),
    ],
)
def test_usage_is_asked_for_only_where_nothing_was_said_of_it(endpoint, body, may):
    assert parse(endpoint, body).usage_splice is may


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], None, 5, {"a": 1}, ["", ""], [None], [1, "a"], [-1], [2**40], [1.5]]
)
def test_T05_prompts_that_engines_refuse_are_routed_by_load(prompt):
    assert parse(Endpoint.COMPLETIONS, json.dumps({"prompt": prompt}).encode()).prompt is None


def test_completion_prompts():
    def read(prompt, **fields):
        return parse(Endpoint.COMPLETIONS, json.dumps({"prompt": prompt} | fields).encode()).prompt

    assert read("a") == read(["a", "b"]) == Text("a", special=True)
    assert read("a", add_special_tokens=False) == Text("a", special=False)
    assert read([1, 2]) == read([[1, 2], [3]])
    assert isinstance(read([1, 2]), TokenIds)
    assert read("a", suffix="b") is None
    assert read("a", prompt_embeds="x") is None
    assert read("a", truncate_prompt_tokens=5) is None


def test_sglang_names_adapters_and_salts_in_the_body():
    found = parse(Endpoint.GENERATE, b'{"text": "x", "lora_path": "L", "cache_salt": "s", "extra_key": "e"}')
    assert (found.lora, found.cache_salt, found.extra_key) == ("L", "s", "e")
    assert found.prompt == Text("x")
    assert parse(Endpoint.GENERATE, b'{"text": "x", "image_data": "u"}').prompt is None
    assert isinstance(parse(Endpoint.GENERATE, b'{"input_ids": [1, 2]}').prompt, TokenIds)


def test_rerank_is_routed_by_load():
    assert parse(Endpoint.RERANK, b'{"query": "q", "documents": ["d"]}').prompt is None


def test_embeddings_read_texts_and_messages():
    assert parse(Endpoint.EMBEDDINGS, b'{"input": ["a", "b"]}').prompt == Text("a")
    assert isinstance(
        parse(Endpoint.EMBEDDINGS, b'{"messages": [{"role": "user", "content": "x"}]}').prompt, Chat
    )


def test_T10_chats_that_would_take_long_to_render_are_routed_by_load():
    turns = [{"role": "user", "content": "x"}]
    parts = [{"type": "text", "text": "x"}]

    def prompt(messages):
        return parse(Endpoint.CHAT, json.dumps({"messages": messages}).encode()).prompt

    assert prompt(turns * 4096) is not None
    assert prompt(turns * 4097) is None
    assert prompt([{"role": "user", "content": parts * 4096}]) is None
    assert prompt([{"role": "assistant", "tool_calls": [{}] * 4096}]) is None


def test_T10_an_object_of_countless_fields_is_not_searched_for_duplicates():
    def may(count):
        return parse(
            Endpoint.CHAT, json.dumps({"stream": True} | {f"k{n}": n for n in range(count)}).encode()
        )

    assert may(999).usage_splice
    assert not may(5000).usage_splice
