"""Where texts are cut: from the left, at safe places, and never elsewhere."""

from itertools import pairwise

import pytest

from proxy.prompt.cuts import LONGEST, SHORTEST, Cuts
from tests.support.keying import LONG, loaded

SEPARATOR = "<|im_start|>"


@pytest.fixture
def cuts() -> Cuts:
    return loaded()[0].cuts


def cut(cuts: Cuts, *pieces) -> list:
    return list(cuts.chunks(pieces))


def test_a_text_is_cut_before_each_turn(cuts):
    turns = [SEPARATOR + "x" * SHORTEST, SEPARATOR + "y" * SHORTEST, SEPARATOR + "z"]
    assert cut(cuts, "".join(turns)) == turns


def test_tiny_turns_share_a_chunk(cuts):
    text = (SEPARATOR + "hi") * 1000
    chunks = cut(cuts, text)
    assert "".join(chunks) == text
    assert all(len(chunk) >= SHORTEST for chunk in chunks[:-1])
    assert all(chunk.startswith(SEPARATOR) for chunk in chunks)


def test_long_stretches_are_cut_between_words_only(cuts):
    chunks = cut(cuts, LONG * 20)
    assert "".join(chunks) == LONG * 20
    assert len(chunks) > 5
    for left, right in pairwise(chunks):
        assert LONGEST <= len(left) < LONGEST + 20
        assert left[-1].isalpha()
        assert right[0] == " "
        assert right[1].isalpha()


def test_ideographs_are_cut_before_a_stop(cuts):
    chunks = cut(cuts, "天地玄黄\uff0c" * 2000)
    assert len(chunks) > 2
    assert all(chunk[0] == "\uff0c" for chunk in chunks[1:])


@pytest.mark.parametrize("text", ["a" * 9000, "1 2 3 " * 3000, "a\n b" * 3000, "a  b" * 3000, "(a) " * 3000])
def test_where_a_token_might_reach_across_nothing_is_cut(cuts, text):
    assert cut(cuts, text) == [text]


def test_equal_prefixes_are_cut_equally(cuts):
    head = LONG * 30
    one, other = cut(cuts, head + SEPARATOR + "a"), cut(cuts, head + "b " * 500)
    assert one[:6] == other[:6]


def test_pieces_that_are_tokens_stay_whole_and_empty_ones_vanish(cuts):
    assert cut(cuts, "a", b"\x01\x00\x00\x80" * 9999, "", "b") == ["a", b"\x01\x00\x00\x80" * 9999, "b"]
    assert cut(cuts, "") == cut(cuts) == []


def test_without_safe_places_a_text_is_one_chunk():
    assert cut(Cuts(), LONG * 90) == [LONG * 90]


def test_a_guess_is_taken_only_where_a_cut_is_due(cuts):
    chunks = cuts.chunks([LONG + SEPARATOR + LONG])
    assert next(chunks) == LONG
    assert chunks.guess(len(SEPARATOR) + 10) is None
    assert chunks.guess(len(SEPARATOR + LONG)) == SEPARATOR + LONG
    chunks.skip(len(SEPARATOR + LONG))
    assert list(chunks) == []


def test_a_short_guess_does_not_end_between_words(cuts):
    """Between words a chunk ends only after LONGEST characters."""
    chunks = cuts.chunks(["", LONG])
    assert chunks.guess(8) is None
