"""Prompts as text and as keys: equal where they should be, and nowhere else."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bench.engine_prompt import TOKENIZER
from bench.prompts import Blocks, Conversation, Segment, word_salad

segments = st.lists(
    st.builds(
        Segment, st.sampled_from(["system", "user", "assistant"]), st.sampled_from("abcd"), st.integers(1, 90)
    ),
    max_size=5,
).map(tuple)


def stream(conversation):
    """Every token of a conversation by name: what its keys stand for."""
    return [(s.role, s.key, i) for s in conversation.segments for i in range(s.tokens)]


@given(segments, segments, st.sampled_from([1, 7, 16, 64]))
def test_keys_agree_on_exactly_the_blocks_that_are_shared(first, second, size):
    a, b = Conversation(first), Conversation(second)
    left, right = stream(a), stream(b)
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    keys, others = a.keys(size), b.keys(size)
    assert len(keys) == a.tokens // size
    full = shared // size
    assert keys[:full] == others[:full]
    assert not set(keys[full:]) & set(others[full:])


@pytest.mark.parametrize("tokens", [1, 10, 200, 3000])
def test_text_has_the_tokens_it_claims(tokens):
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    counted = len(tokenizer.encode(word_salad(f"k{tokens}", tokens)).ids)
    assert abs(counted - tokens) <= 0.03 * tokens + 2  # a first word without its blank may be cut up
    assert len(word_salad("k", tokens, tokens_per_word=2.0).split()) <= max(1, tokens // 2)


def test_text_and_keys_are_equal_in_another_process():
    program = (
        "from bench.prompts import *;"
        "c = Conversation((Segment('system', 'a', 40), Segment('user', 'b', 9)));"
        "print(c.messages(), list(c.keys(16)), list(Blocks('t', [3, 4], 32, 64).keys(16)))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(outputs) == 1
    assert "system" in outputs.pop()


def test_neighbours_of_one_role_are_one_message_and_literals_are_kept():
    prompt = Conversation(
        (
            Segment("system", "a", 5),
            Segment("user", "b", 5),
            Segment("user", "c", 5),
            Segment("user", "d", 9, "Hi!"),
        )
    )
    system, user = prompt.messages()
    assert (system["role"], user["role"]) == ("system", "user")
    assert user["content"].endswith(" Hi!")
    assert user["content"].startswith(Segment("user", "b", 5).text())


def test_blocks_share_keys_and_text_where_they_share_ids():
    a, b = Blocks("trace", [1, 2, 3], 512, 1400), Blocks("trace", [1, 2, 9], 512, 1536)
    assert len(a.keys(512)) == 2
    assert a.keys(512) == b.keys(512)[:2]
    assert a.keys(128)[:8] == b.keys(128)[:8]
    assert not set(a.keys(128)[8:]) & set(b.keys(128)[8:])
    assert a.keys(512)[0] != Blocks("other", [1], 512, 512).keys(512)[0]
    ours, theirs = (prompt.messages()[0]["content"] for prompt in (a, b))
    shared = word_salad("trace/1", 512) + " " + word_salad("trace/2", 512) + " "
    assert ours.startswith(shared)
    assert theirs.startswith(shared)
    assert ours != theirs


def test_coarser_blocks_take_each_last_id_and_drop_the_rest():
    prompt = Blocks("t", list(range(10)), 64, 64 * 9 + 5)
    coarse = prompt.keys(256)
    assert coarse == prompt.keys(64)[3::4]
    assert len(coarse) == 2


def test_blocks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="blocks of 48 tokens do not fit"):
        Blocks("t", [1], 64, 64).keys(48)
