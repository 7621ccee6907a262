"""The chain: equal prefixes have equal keys, nothing after a difference has, and no identities meet."""

from array import array

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from proxy.prompt import blocks, canonical
from proxy.prompt.prompts import Chat
from tests.support.keying import shared

ids = st.lists(st.integers(0, 2**32 - 1), max_size=60)
sizes = st.integers(1, 8)
identities = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(st.none(), st.text(max_size=4), st.binary(max_size=4))
        for name in ("model", "lora", "cache_salt", "extra_key", "kind")
    },
)


def chain(tokens, size, seed=1):
    return blocks.chain(array("I", tokens).tobytes(), size, seed)


@given(ids, ids, ids, sizes)
def test_chains_share_exactly_the_full_blocks_of_their_common_prefix(prefix, one, other, size):
    assume(one[:1] != other[:1])
    left, right = chain(prefix + one, size)[0], chain(prefix + other, size)[0]
    assert shared(left, right) == len(prefix) // size
    assert not set(left[len(prefix) // size :]) & set(right[len(prefix) // size :])


@given(ids, sizes, st.data())
def test_a_chain_continued_anywhere_is_the_chain_made_at_once(tokens, size, data):
    at = data.draw(st.integers(0, len(tokens)))
    first, tail = chain(tokens[:at], size)
    second, rest = blocks.chain(tail + array("I", tokens[at:]).tobytes(), size, first[-1] if first else 1)
    whole, left = chain(tokens, size)
    assert (first + second, rest) == (whole, left)


@given(identities, identities, sizes, sizes)
def test_identities_that_differ_in_anything_have_different_seeds(one, other, size, another):
    def present(identity):
        return {name: value for name, value in identity.items() if value is not None}

    same = present(one) == present(other) and size == another
    seeds = blocks.seed(b"s", block_size=size, **one), blocks.seed(b"s", block_size=another, **other)
    assert (seeds[0] == seeds[1]) is same


texts = st.text(max_size=6)
parts = st.one_of(
    texts,
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, texts),
)
messages = st.fixed_dictionaries(
    {"role": texts},
    optional={
        "content": st.one_of(texts, st.lists(parts, max_size=3)),
        "name": texts,
        "tool_calls": st.lists(texts),
    },
)
chats = st.builds(
    Chat,
    messages=st.lists(messages, min_size=1, max_size=4),
    tools=st.one_of(st.none(), st.lists(st.dictionaries(texts, texts), max_size=2)),
    variables=st.dictionaries(texts, texts, max_size=2),
)


def digest(part) -> bytes:
    return repr(part["image_url"]["url"]).encode().ljust(32, b"\x80")


def meaning(chat: Chat):
    """What a chat says, without its spelling."""

    def content(message):
        given = message.get("content")
        listed = [] if given is None else [given] if isinstance(given, str) else given
        return [one["text"] if isinstance(one, dict) and one["type"] == "text" else one for one in listed]

    def joined(contents):
        # No content, and one empty text, are both nothing.
        return [] if contents == [""] else contents

    rest = [{k: v for k, v in message.items() if k != "content"} for message in chat.messages]
    return [joined(content(message)) for message in chat.messages], rest, chat.tools, chat.variables


@given(chats, chats)
@settings(max_examples=300)
def test_canonical_bytes_are_equal_exactly_for_what_means_the_same(one, other):
    written = canonical.canonical_chat(one, digest), canonical.canonical_chat(other, digest)
    assert (written[0] == written[1]) is (meaning(one) == meaning(other))


@given(chats, st.lists(messages, max_size=2), texts)
def test_canonical_bytes_of_a_conversation_continue_those_of_its_beginning(chat, later, text):
    before = canonical.canonical_chat(chat, digest)
    answered = [*chat.messages, {"role": "assistant", "content": text}, *later]
    after = canonical.canonical_chat(Chat(answered, chat.tools, chat.variables), digest)
    assert after.startswith(before + canonical.answer(text))
