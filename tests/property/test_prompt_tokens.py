"""Chunked, cached and built by tiktoken: token ids are those of whole-prompt tokenisation by `tokenizers`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.prompt.cuts import LONGEST
from proxy.prompt.parse import Endpoint
from tests.support.keying import BLOCK, chat, keyer, loaded, parsed, user

TOKENIZER, _ = loaded()
ADDED = [token["content"] for token in TOKENIZER.added]

pieces = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="abcXYZ '\n", max_size=40),
    st.text(alphabet=" \n\t\r\u00a0\u3000", max_size=30),
    st.text(alphabet="0123456789.,", max_size=40),
    st.text(alphabet="天地玄黄，。、 ab", max_size=40),  # noqa: RUF001 - those commas
    st.text(alphabet="e\u0301\u0323\u0338>=<a\u1100\u1161\u11a8", max_size=20),
    st.sampled_from(["'s", "'LL", "don't", "\u017f", "\u212a", "é", "👩‍👩‍👧‍👦", "🇨🇭", "\ufeff"]),
    st.sampled_from(["<|im_start", "|>", "<think", *ADDED]),
    st.sampled_from(
        ["the quick brown fox " * 40, "lorem ipsum, " * 60, "a" * 300, "x1 " * 200, "\n\n  - it\n" * 90]
    ),
)
texts = st.lists(pieces, max_size=40).map("".join)
long_texts = st.tuples(texts, st.integers(0, LONGEST // 30), texts).map(
    lambda parts: parts[0] + "some words to reach a cut now " * parts[1] + parts[2]
)


@given(texts)
@settings(max_examples=300, deadline=None)
def test_a_text_has_the_tokens_of_the_reference(text):
    assert TOKENIZER.encode(text) == TOKENIZER.encode_exactly(text)


@given(st.lists(long_texts, min_size=1, max_size=3).map("".join))
@settings(max_examples=150, deadline=None)
def test_chunks_have_the_tokens_of_the_whole(text):
    chunks = list(TOKENIZER.cuts.chunks([text]))
    assert "".join(map(str, chunks)) == text
    assert b"".join(TOKENIZER.encode(str(chunk)) for chunk in chunks) == TOKENIZER.encode_exactly(text)


SHARED = keyer(trie_bytes=200_000)
"""Kept across examples: what one leaves in the trie must not change the next."""


@given(st.lists(long_texts, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_conversation_keyed_turn_by_turn_is_the_conversation_keyed_at_once(turns):
    messages = [
        user(turn) if at % 2 == 0 else {"role": "assistant", "content": turn} for at, turn in enumerate(turns)
    ]
    for count in range(1, len(messages) + 1):
        request = parsed(chat(*messages[:count]))
        warm, cold = SHARED.begin(request), keyer().begin(request)
        warm.run()
        cold.run()
        ids = SHARED.token_ids(request)
        assert ids is not None
        assert warm.keys == cold.keys
        assert warm.tokens == cold.tokens == len(ids)
        assert len(warm.keys) == len(ids) // BLOCK


@given(long_texts.filter(bool))
@settings(max_examples=60, deadline=None)
def test_a_text_and_its_tokens_have_the_same_keys(text):
    request = parsed({"prompt": text}, Endpoint.COMPLETIONS)
    ids = SHARED.token_ids(request)
    assert ids is not None
    assert ids.tobytes() == TOKENIZER.encode_exactly(text)
    by_text, by_ids = (
        SHARED.begin(request),
        SHARED.begin(parsed({"prompt": ids.tolist()}, Endpoint.COMPLETIONS)),
    )
    by_text.run()
    by_ids.run()
    assert by_text.keys == by_ids.keys
