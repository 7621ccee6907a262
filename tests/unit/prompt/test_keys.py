"""What makes two prompts share blocks, and what keeps them apart."""

from hashlib import sha256

import pytest
from xxhash import xxh3_64_intdigest

from proxy.prompt import blocks
from proxy.prompt.parse import Endpoint
from proxy.prompt.template import Template
from tests.support.keying import BLOCK, LONG, chat, keyer, keys, loaded, parsed, shared, user

SYSTEM = {"role": "system", "content": LONG}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
PNG, JPEG = "data:image/png;base64,AAAA", "data:image/png;base64,AAAB"


def image(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


@pytest.fixture(params=["exact", "bytes"])
def either(request):
    """A keyer of each mode."""
    return keyer() if request.param == "exact" else keyer(tokenizer=None, template=None)


def test_a_key_is_the_hash_of_a_blocks_tokens_seeded_with_the_key_before():
    ids = list(range(100, 100 + 2 * BLOCK + 3))
    chain, tail = blocks.chain(b"".join(i.to_bytes(4, "little") for i in ids), BLOCK, 7)
    first = xxh3_64_intdigest(b"".join(i.to_bytes(4, "little") for i in ids[:BLOCK]), 7)
    second = xxh3_64_intdigest(b"".join(i.to_bytes(4, "little") for i in ids[BLOCK : 2 * BLOCK]), first)
    assert list(chain) == [first, second]
    assert tail == b"".join(i.to_bytes(4, "little") for i in ids[2 * BLOCK :])


def test_R10_a_partial_last_block_has_no_key():
    one = keyer()
    for tokens in (BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK):
        found = keys(one, {"prompt": list(range(tokens))}, Endpoint.COMPLETIONS)
        assert len(found) == tokens // BLOCK


def test_T12_a_block_matches_only_if_all_before_it_do():
    one = keyer()
    x, y = list(range(BLOCK * 3)), list(range(1000, 1000 + BLOCK * 2))
    of = lambda prompt: keys(one, {"prompt": prompt}, Endpoint.COMPLETIONS)  # noqa: E731 - says what it is
    assert not set(of(x)) & set(of(y + x))
    assert shared(of(y), of(y + x)) == 2
    repeated = of(x[:BLOCK] * 4)
    assert len(set(repeated)) == 4


PAIRS = {
    "tools": ({}, {"tools": [TOOL]}),
    "another tool": (
        {"tools": [TOOL]},
        {"tools": [TOOL | {"function": TOOL["function"] | {"name": "other"}}]},
    ),
    "thinking": ({}, {"chat_template_kwargs": {"enable_thinking": False}}),
    "effort": ({}, {"reasoning_effort": "none"}),
    "generation prompt": ({}, {"add_generation_prompt": False}),
    "special tokens": ({"documents": None}, {"documents": [{"title": "t", "text": "x"}]}),
}
DECIDES_NOTHING_HERE = {"special tokens"}
"""Qwen3's template reads no documents."""


@pytest.mark.parametrize("name", PAIRS)
def test_T02_what_the_template_reads_decides_the_tokens(name):
    one = keyer()
    left, right = (one.token_ids(parsed(chat(SYSTEM, user("x"), **fields))) for fields in PAIRS[name])
    assert left is not None
    assert right is not None
    assert (left == right) is (name in DECIDES_NOTHING_HERE)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"temperature": 0.3, "seed": 4, "stop": ["x"], "user": "u", "metadata": {"a": "b"}},
        {"tool_choice": "none"},
        {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5},
    ],
)
def test_T02_what_decides_no_token_decides_no_key(either, fields):
    plain = chat(SYSTEM, user(LONG))
    assert keys(either, plain | fields) == keys(either, plain)


def test_T02_chains_part_at_the_first_block_that_differs(either):
    one = keys(either, chat(SYSTEM, user("a " * 100)))
    other = keys(either, chat(SYSTEM, user("a " * 60 + "b " * 40)))
    assert len(LONG) / 8 / BLOCK < shared(one, other) < min(len(one), len(other))


def test_T02_tools_part_chains_before_the_first_turn(either):
    plain, tooled = (keys(either, chat(SYSTEM, user(LONG)) | fields) for fields in ({}, {"tools": [TOOL]}))
    assert shared(plain, tooled) <= shared(plain, keys(either, chat(SYSTEM, user("x"))))


def test_T02_tool_choice_none_leaves_the_tools_in_the_prompt_as_vllm_does():
    one = keyer()
    body = chat(SYSTEM, user("x"), tools=[TOOL])
    assert keys(one, body) == keys(one, body | {"tool_choice": "none"})


def test_T02_an_unfinished_answer_is_continued_where_it_stands():
    one = keyer()
    tokenizer, _ = loaded()
    body = chat(user("x"), {"role": "assistant", "content": "Once upon  "})
    ids = one.token_ids(parsed(body | {"continue_final_message": True, "add_generation_prompt": False}))
    written = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nOnce upon  "
    assert ids is not None
    assert ids.tobytes() == tokenizer.encode_exactly(written)
    both = one.begin(parsed(body | {"continue_final_message": True}))
    assert not both.is_understood, "engines refuse both at once"


def test_T02_a_requests_own_template_is_not_run_unless_the_engine_trusts_it():
    body = chat(SYSTEM, user("x")) | {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    other = body | {"chat_template": "{{ messages[0].content }}"}
    careful = keyer()
    assert careful.token_ids(parsed(body)) is None
    assert shared(keys(careful, body), keys(careful, other)) == 0
    assert shared(keys(careful, body), keys(careful, chat(SYSTEM, user("x")))) == 0
    assert shared(keys(careful, body), keys(careful, body | chat(SYSTEM, user("y " * 99)))) > 3
    _, template = loaded()
    trusting = keyer(template=Template(template.sources, template.tokens, trust_requests=True))
    ids = trusting.token_ids(parsed(body))
    assert ids is not None
    assert ids.tobytes() == loaded()[0].encode_exactly(LONG + "x")


def test_T05_a_text_is_the_same_as_a_list_of_one(either):
    assert keys(either, chat(user(LONG))) == keys(either, chat(user([text(LONG)])))


def test_T05_texts_of_several_parts_are_joined_as_the_engine_joins_them():
    one = keyer()
    joined = chat(user(f"{LONG}\nb"))
    assert keys(one, chat(user([text(LONG), text("b")]))) == keys(one, joined)
    assert keys(one, chat(user([text(LONG), text(""), "b"]))) == keys(one, joined)


def test_T05_null_content_with_calls_is_empty_content():
    one = keyer()
    turn = {"role": "assistant", "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": [text("sunny"), text("21")]}
    found = [
        one.token_ids(parsed(chat(user(LONG), turn | content, answer)))
        for content in ({}, {"content": None}, {"content": ""})
    ]
    assert found[0] == found[1] == found[2]
    written = loaded()[0].encode_exactly(
        f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n21\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert found[0] is not None
    assert found[0].tobytes() == written


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hi",
        [5],
        [{"content": "x"}],
        [{"role": 1}],
        [user(5)],
        [user([5])],
        [user([{"type": "alien"}])],
        [user([{"type": "text"}, {"type": "text", "text": 5}])],
        [{"role": "assistant", "tool_calls": "x"}],
        [{"role": "assistant", "tool_calls": [{"type": "function"}]}],
        [{"role": "assistant", "tool_calls": [5]}],
        [user("x"), {"role": "tool", "content": {"a": 1}}],
    ],
)
def test_T05_messages_that_engines_refuse_are_routed_by_load(messages):
    request = parsed({"model": "m", "messages": messages})
    keying = keyer().begin(request)
    keying.run()
    assert (keying.is_understood, list(keying.keys), keying.tokens, keying.done) == (False, [], 0, True)
    assert keying.affinity == 0


def test_T06_images_part_chains_where_they_stand(either):
    def of(*urls: str):
        return keys(either, chat(SYSTEM, user([*map(image, urls), text(LONG)])))

    before = shared(of(PNG), of(JPEG))
    assert before >= len(LONG) / 8 / BLOCK, "the text before them still matches"
    assert before < len(of(PNG)) - 10
    assert of(PNG) == of(PNG)
    assert shared(of(PNG, JPEG), of(JPEG, PNG)) == before
    assert shared(of(PNG), of("https://example.org/a.png")) == before
    assert shared(of(PNG), keys(either, chat(SYSTEM, user(LONG)))) == before


@pytest.mark.parametrize("extra", range(BLOCK))
def test_T06_already_the_block_that_an_image_begins_in_differs(extra):
    """At every offset of the image in its block."""
    one = keyer()
    head = {"role": "system", "content": "a" + " b" * extra}
    found = [keys(one, chat(head, user([image(url), text(LONG)]))) for url in (PNG, JPEG)]
    written = loaded()[0].encode_exactly(
        f"<|im_start|>system\n{head['content']}<|im_end|>\n<|im_start|>user\n"
    )
    assert shared(*found) == len(written) // 4 // BLOCK


def test_T06_text_that_looks_like_a_mark_is_text(either):
    marked = chat(user("\ue0000123456789abcdef0\ue001" + LONG))
    assert shared(keys(either, marked), keys(either, chat(user([image(PNG), text(LONG)])))) <= 1


@pytest.mark.parametrize("part", [
    {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "https://example.org/v"}},
    {"image_url": "https://example.org/i"},
    {"type": "image_url", "image_url": None, "uuid": "u1"},
])  # fmt: skip
def test_T06_whatever_is_no_text_is_kept_apart(either, part):
    found = keys(either, chat(user([part, text(LONG)])))
    assert shared(found, keys(either, chat(user(LONG)))) <= 1
    assert len(found) > 10


def test_T08_a_surrogate_escaped_twice_raises_nothing(either):
    """Arguments are JSON within JSON: the surrogate appears only when they are parsed for the template."""
    call = CALL | {"function": {"name": "weather", "arguments": '{"city": "\\ud800"}'}}
    keying = either.begin(parsed(chat(user(LONG), {"role": "assistant", "tool_calls": [call]})))
    keying.run()
    assert keying.done


SPELLINGS = {
    "composed": "caf\u00e9 ", "decomposed": "cafe\u0301 ", "hangul": "\uac01 ", "jamo": "\u1100\u1161\u11a8 ",
    "ligature": "\ufb01 ", "letters": "fi ", "joiner": "a\u200db ", "none": "ab ",
}  # fmt: skip


@pytest.mark.parametrize(("one", "other"), [
    ("composed", "decomposed"), ("hangul", "jamo"), ("ligature", "letters"), ("joiner", "none"),
])  # fmt: skip
def test_T09_chains_are_equal_exactly_if_the_engines_tokens_are(one, other):
    tokenizer, _ = loaded()
    maker = keyer()
    left, right = (SPELLINGS[name] * 400 for name in (one, other))
    alike = tokenizer.encode_exactly(left) == tokenizer.encode_exactly(right)
    assert (keys(maker, chat(user(left))) == keys(maker, chat(user(right)))) is alike
    assert alike is (one in {"composed", "hangul"}), "an NFC normaliser composes, and does no more"


def test_T09_marks_do_not_compose_across_a_special_token():
    tokenizer, _ = loaded()
    text = "<|im_start|>\u0338 x <think>\u0301e\u0301"
    assert tokenizer.encode(text) == tokenizer.encode_exactly(text)


def test_I02_what_isolates_is_typed_and_length_delimited(either):
    body = chat(SYSTEM, user(LONG))
    identities = [
        {},
        {"lora": "X"},
        {"cache_salt": "X"},
        {"extra_key": "X"},
        {"lora": ""},
        {"cache_salt": "a", "lora": "bc"},
        {"cache_salt": "ab", "lora": "c"},
        {"cache_salt": "", "lora": "abc"},
        {"lora": "X\x00cache_salt"},
        {"lora": "lora\x01\x00\x00\x00"},
        {"cache_salt": "X", "lora": "X"},
    ]
    found = [keys(either, body, **identity) for identity in identities]
    for at, one in enumerate(found):
        for other in found[:at]:
            assert not set(one) & set(other)


def test_I02_model_secret_block_size_and_mode_isolate_too():
    body = {"prompt": list(range(200))}
    found = [
        keys(keyer(**changes), body, Endpoint.COMPLETIONS)
        for changes in (
            {},
            {"model": "n"},
            {"secret": b"t"},
            {"block_size": 8},
            {"tokenizer": None, "template": None},
        )
    ]
    assert not any(set(one) & set(other) for at, one in enumerate(found) for other in found[:at])


def test_I03_an_alias_shares_the_models_blocks():
    """Which name the client used is settled before keys are made: it is not part of them."""
    one = keyer()
    body = chat(SYSTEM, user(LONG))
    assert keys(one, body) == keys(one, body | {"model": "alias"})


def test_keys_mean_the_same_in_every_process():
    """Proxies share an index: keys may depend on nothing but what is said here."""
    found = keys(keyer(), {"prompt": list(range(64))}, Endpoint.COMPLETIONS)
    assert sha256(found.tobytes()).hexdigest()[:16] == "212317c3810c98d0"


def test_text_and_its_own_token_ids_are_one_prompt():
    one = keyer()
    ids = one.token_ids(parsed({"prompt": LONG}, Endpoint.COMPLETIONS))
    assert ids is not None
    assert keys(one, {"prompt": LONG}, Endpoint.COMPLETIONS) == keys(
        one, {"prompt": ids.tolist()}, Endpoint.COMPLETIONS
    )
