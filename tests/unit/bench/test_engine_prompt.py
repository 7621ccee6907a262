"""The engine's own reading of prompts: equal to whole tokenization, chained keys, stable answers."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine_prompt import EnginePrompt, PromptError, block_keys

PROMPT = EnginePrompt()

pieces = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<tool_call>", "<|im_", "\n\n", "  ", "é", "한국", "'ll"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=12).map("".join))
def test_tokenizing_piece_by_piece_equals_tokenizing_the_whole(text):
    assert list(PROMPT.encode(text)) == PROMPT.tokenizer.encode(text, add_special_tokens=False).ids


def test_chat_is_rendered_by_the_models_template():
    text = PROMPT.render([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], {})

    assert text == ("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n")


def test_options_of_the_request_reach_the_template():
    user = [{"role": "user", "content": "U"}]
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}

    assert "look_up" in PROMPT.render(user, {"tools": [tool]})
    assert not PROMPT.render(user, {"add_generation_prompt": False}).endswith("assistant\n")
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    assert PROMPT.render(user, thinking).endswith("<think>\n\n</think>\n\n")


def test_a_final_message_can_be_continued():
    messages = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "And then"}]

    assert PROMPT.render(messages, {"continue_final_message": True}).endswith("And then")


def test_content_parts_and_null_content_are_text():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]

    assert "a\nb" in PROMPT.render(parts, {})
    assert PROMPT.render([{"role": "user", "content": None}], {})


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": 3}]])
def test_what_cannot_be_rendered_is_an_error_for_the_client(messages):
    with pytest.raises(PromptError):
        PROMPT.render(messages, {})


def test_a_lone_surrogate_is_an_error_for_the_client():
    with pytest.raises(PromptError):
        PROMPT.encode("\ud800 hi")


def test_an_answers_words_keep_their_tokens_wherever_they_stand():
    words = "".join(word for word, _ in PROMPT.words)

    assert len(PROMPT.words) > 100
    assert list(PROMPT.encode(words)) == [number for _, number in PROMPT.words]


ids = st.lists(st.integers(0, 50), max_size=60).map(lambda numbers: array("I", numbers))


@given(first=ids, second=ids, size=st.integers(1, 9))
def test_keys_are_equal_exactly_as_far_as_the_tokens_are(first, second, size):
    a, b = (block_keys(x, size, model="m") for x in (first, second))
    alike = 0
    while alike < min(len(first), len(second)) and first[alike] == second[alike]:
        alike += 1

    assert (len(a), len(b)) == (len(first) // size, len(second) // size)
    assert [x == y for x, y in zip(a, b, strict=False)] == [
        (i + 1) * size <= alike for i in range(min(len(a), len(b)))
    ]


def test_model_and_salt_are_part_of_every_key():
    tokens = array("I", range(32))
    chains = [
        block_keys(tokens, 16, model=model, salt=salt)
        for model, salt in (("m", None), ("n", None), ("m", "s"), ("m", "t"), ("m", ""))
    ]

    assert len({key for chain in chains for key in chain}) == 2 * len(chains)
