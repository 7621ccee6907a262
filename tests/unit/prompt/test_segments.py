"""The trie: bounded, oldest first, parents after their children; names that mean the same forever."""

from array import array

import pytest

from proxy.prompt.cuts import Cuts
from proxy.prompt.segments import Node, Trie, _name

ENDLESS = 1 << 40


def tokens(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def grow(trie: Trie, *chunks: str, seed: int = 1):
    """A path of chunks, eight tokens each."""
    node, path = trie.root(seed, b""), []
    for chunk in chunks:
        node = trie.grow(node, chunk, lambda _: tokens(*range(8)))
        path.append(node)
    return path


def child(trie: Trie, parent: Node, chunk: str | bytes) -> Node | None:
    """Find a node without marking it as used."""
    return trie._nodes.get(_name(parent, chunk))


def known(trie: Trie, *chunks: str, seed: int = 1) -> int:
    """How many chunks from the start are known, without marking them as used."""
    node, found = trie.root(seed, b""), 0
    for chunk in chunks:
        node = child(trie, node, chunk)
        if node is None:
            break
        found += 1
    return found


def test_a_chunk_is_known_only_after_the_same_chunks_and_seed():
    trie = Trie(4, ENDLESS)
    grow(trie, "a", "b", "c")
    assert known(trie, "a", "b", "c") == 3
    assert known(trie, "a", "c") == 1
    assert known(trie, "b") == 0
    assert known(trie, "a", seed=2) == 0


def test_text_and_media_never_share_a_name():
    trie = Trie(4, ENDLESS)
    root = trie.root(1, b"")
    trie.grow(root, "ab", lambda _: tokens(1))
    assert child(trie, root, b"ab") is None


def test_a_node_carries_keys_tail_and_counts_on():
    trie = Trie(4, ENDLESS)
    first = trie.grow(trie.root(1, tokens(9)), "abc", lambda _: tokens(1, 2, 3, 4, 5))
    assert (len(first.keys), first.tail, first.tokens, first.characters) == (1, tokens(4, 5), 6, 3)
    second = trie.grow(first, "d", lambda _: tokens(6))
    assert (len(second.keys), second.tail, second.tokens) == (0, tokens(4, 5, 6), 7)
    assert second.last == first.last == first.keys[-1]
    third = trie.grow(second, "e", lambda _: tokens(7))
    whole = trie.after(trie.root(1, b""), tokens(9, 1, 2, 3, 4, 5, 6, 7))
    assert [*first.keys, *third.keys] == list(whole.keys)


def test_tokens_before_the_text_can_fill_blocks_of_their_own():
    trie = Trie(1, ENDLESS)
    root = trie.root(1, tokens(7, 8))
    assert (len(root.keys), root.tail, root.tokens) == (2, b"", 2)


def test_E15_size_is_bounded_and_the_oldest_goes_first():
    trie = Trie(4, 20_000)
    for at in range(1000):
        grow(trie, f"{at}")
        assert trie.used <= trie.budget
    assert 10 < len(trie) < 50
    assert known(trie, "999") == 1
    assert known(trie, "0") == 0


def test_a_shared_prefix_outlives_what_comes_once():
    trie = Trie(4, 20_000)
    for at in range(1000):
        path = grow(trie, "system", f"{at}")
        trie.touch(path)
    assert known(trie, "system", "999") == 2


def test_a_parent_outlives_its_children():
    trie = Trie(4, 20_000)
    path = grow(trie, "a", "b", "c", "d")
    trie.touch(path)
    seen = []
    for at in range(60):
        grow(trie, f"other {at}")
        seen.append([child(trie, trie.root(1, b""), "a") is not None, *(
            child(trie, parent, chunk) is not None for parent, chunk in zip(path, "bcd", strict=False)
        )])  # fmt: skip
    assert seen[0] == [True] * 4
    assert seen[-1] == [False] * 4
    assert all(state == sorted(state, reverse=True) for state in seen), "children go first"
    assert any(len(set(state)) == 2 for state in seen)


def test_a_name_means_the_same_after_it_was_forgotten():
    trie = Trie(4, ENDLESS)
    path = grow(trie, "a", "b")
    assert [node.name for node in grow(Trie(4, ENDLESS), "a", "b")] == [node.name for node in path]


def test_what_is_known_is_not_encoded_again():
    trie = Trie(4, ENDLESS)
    root = trie.root(1, b"")
    first = trie.grow(root, "a", lambda _: tokens(1))
    assert trie.grow(root, "a", lambda _: pytest.fail("it is known")) is first


def test_growing_what_another_thread_grew_meanwhile_keeps_the_first():
    trie = Trie(4, ENDLESS)
    root = trie.root(1, b"")
    others = []

    def encode(_):
        others.append((trie.grow(root, "a", lambda _: tokens(1)), trie.used))
        return tokens(1)

    found = trie.grow(root, "a", encode)
    assert [(found, trie.used)] == others
    assert found is others[0][0]


def test_touching_what_is_gone_is_nothing():
    trie = Trie(4, ENDLESS)
    path = grow(trie, "a")
    forgetful = Trie(4, ENDLESS)
    forgetful.touch(path)
    assert len(forgetful) == 0


@pytest.mark.parametrize("last", ["x" * 300, "y" * 300, "z"])
def test_walking_by_memory_finds_what_searching_finds(last):
    """Branches after one parent: the length that is remembered may be the wrong one."""
    cuts, trie = Cuts("|"), Trie(4, ENDLESS)
    turns = ["|" + "a" * 300, "|" + "b" * 400, "|" + last]
    for other in ("x" * 300, "y" * 300, "z", "w" * 500):
        grow(trie, *turns[:2], "|" + other)
    path = []
    missed = trie.walk(trie.root(1, b""), cuts.chunks(["".join(turns)]), path)
    assert missed is None
    assert path == grow(trie, *turns)
