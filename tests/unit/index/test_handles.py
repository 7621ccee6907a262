"""What becomes of an engine's handles: the cases that have a name, and the rules on what is never claimed."""

from array import array

import pytest

from proxy.index.events import Batch, Cleared, Removed, Stored, decode
from proxy.index.handles import Delta, HandleBook
from proxy.prompt.blocks import chain
from proxy.prompt.parse import Endpoint
from tests.support import keying
from tests.support.kv_events import LIVE, frames, payload, stored

SIZE = 4
FIRST = [1, 2, 3, 4]
SECOND = [5, 6, 7, 8]


def start(lora, salt):
    return hash((lora, salt)) & (2**64 - 1)


def book(**changes) -> HandleBook:
    return HandleBook(start, SIZE, **{"copies": "counted", **changes})


def keys(tokens: list[int], lora: str | None = None, salt: str | None = None, size: int = SIZE) -> list[int]:
    return chain(array("I", tokens).tobytes(), size, start(lora, salt))[0].tolist()


def apply(to: HandleBook, *events) -> Delta:
    return to.apply(Batch(0.0, list(events)))


def effect(delta: Delta) -> tuple[bool, list[int], list[int]]:
    return delta.cleared, sorted(delta.removed), sorted(delta.stored)


def chained(blocks: int) -> tuple[list[int], list[int]]:
    """Handles 101, 102 ... and their tokens."""
    return list(range(101, 101 + blocks)), list(range(blocks * SIZE))


def test_blocks_are_keyed_from_their_parent_on():
    held = book()
    delta = apply(held, Stored([10, 20], None, FIRST + SECOND, SIZE))
    first, second = keys(FIRST + SECOND)
    assert sorted(delta.stored) == sorted([first, second])
    assert sorted(delta.handles) == [(10, first, 1), (20, second, 1)]
    third = keys(FIRST + SECOND + FIRST)[-1]
    assert list(apply(held, Stored([30], 20, FIRST, SIZE)).stored) == [third]
    assert held.keys == held.handles == 3


def test_the_keys_of_events_are_those_of_prompts():
    ours = keying.keyer(block_size=SIZE)
    ids = list(range(100, 100 + 4 * SIZE))
    for salt in (None, "tenant", ""):
        body = {"prompt": ids} if salt is None else {"prompt": ids, "cache_salt": salt}
        wanted = list(keying.keys(ours, body, Endpoint.COMPLETIONS))
        assert len(wanted) == 4
        extra = None if salt is None else [[salt], None, None, None]
        raw = payload(stored([1, 2, 3, 4], ids, extra_keys=extra))
        delta = HandleBook(ours.chain_start, SIZE).apply(decode(raw))
        assert [key for _, key, _ in sorted(delta.handles)] == wanted
    wanted = list(keying.keys(ours, {"prompt": ids}, Endpoint.COMPLETIONS, lora="adapter"))
    raw = payload(stored([1, 2, 3, 4], ids, extra_keys=[["adapter"]] * 4, lora_id=1, lora_name="adapter"))
    delta = HandleBook(ours.chain_start, SIZE).apply(decode(raw))
    assert [key for _, key, _ in sorted(delta.handles)] == wanted


def test_adapters_and_salts_have_keys_of_their_own():
    held = book()
    apply(
        held,
        Stored([1], None, FIRST, SIZE),
        Stored([2], None, FIRST, SIZE, lora="a"),
        Stored([3], None, FIRST, SIZE, salt="s"),
        Stored([4], None, FIRST, SIZE, lora="a", salt="s"),
    )
    assert held.keys == 4


def test_what_vllm_published_is_followed_to_the_block():
    held = HandleBook(start, 32, copies="counted")
    there: set[int] = set()
    engine: set[int] = set()
    for name in LIVE:
        batch = decode(frames(name)[-1])
        delta = held.apply(batch)
        there = ((set() if delta.cleared else there) - set(delta.removed)) | set(delta.stored)
        for event in batch.events:
            if isinstance(event, Stored):
                engine |= set(event.hashes)
            elif isinstance(event, Removed):
                engine -= set(event.hashes)
            else:
                engine.clear()
        assert delta.unkeyed == 0
        assert len(there) == held.keys == held.handles == len(engine)
    assert len(engine) == 2


def test_a_batch_tells_only_its_net_effect():
    held = book()
    assert effect(apply(held, Stored([1], None, FIRST, SIZE), Removed([1]))) == (False, [], [])
    (key,) = keys(FIRST)
    assert effect(apply(held, Stored([1], None, FIRST, SIZE))) == (False, [], [key])
    delta = apply(held, Removed([1]), Stored([1], None, FIRST, SIZE))
    assert effect(delta) == (False, [], [])
    assert delta.handles == [(1, key, 1)]
    delta = apply(held, Stored([2], None, SECOND, SIZE), Cleared(), Stored([1], None, FIRST, SIZE))
    assert effect(delta) == (True, [], [key])
    assert delta.handles == [(1, key, 1)]


def test_E05_a_full_reset_leaves_what_is_stored_after_it():
    held, other = book(), book()
    hashes, tokens = chained(5)
    for each in (held, other):
        apply(each, Stored(hashes, None, tokens, SIZE))
    assert effect(apply(held, Cleared())) == (True, [], [])
    assert (held.keys, held.handles) == (0, 0)
    assert effect(apply(held, Stored(hashes[:1], None, tokens[:SIZE], SIZE))) == (False, [], keys(tokens)[:1])
    assert other.keys == 5
    # Children of what was forgotten are not keyed by what is left of it.
    assert apply(held, Stored(hashes[2:3], hashes[1], tokens[:SIZE], SIZE)).unkeyed == 1


def test_E05_a_reset_and_what_caused_it_come_in_one_batch():
    held = book()
    hashes, tokens = chained(5)
    apply(held, Stored(hashes, None, tokens, SIZE))
    delta = apply(held, Removed(hashes[:1]), Cleared(), Stored(hashes[:1], None, tokens[:SIZE], SIZE))
    assert effect(delta) == (True, [], keys(tokens)[:1])


def test_E06_a_second_copy_outlives_the_first():
    held = book()
    (key,) = keys(FIRST)
    assert effect(apply(held, Stored([1], None, FIRST, SIZE))) == (False, [], [key])
    delta = apply(held, Stored([1], None, FIRST, SIZE))
    assert effect(delta) == (False, [], [])
    assert delta.handles == [(1, key, 2)]
    delta = apply(held, Removed([1]))
    assert effect(delta) == (False, [], [])
    assert (delta.handles, delta.handles_gone) == ([(1, key, 1)], [])
    delta = apply(held, Removed([1]))
    assert effect(delta) == (False, [key], [])
    assert (delta.handles, delta.handles_gone) == ([], [1])


def test_E06_a_removal_of_what_was_never_stored_is_no_error():
    held = book()
    for _ in range(3):
        assert effect(apply(held, Removed([1, 2]))) == (False, [], [])
    (key,) = keys(FIRST)
    assert effect(apply(held, Stored([1], None, FIRST, SIZE))) == (False, [], [key])
    assert effect(apply(held, Removed([1]))) == (False, [key], [])


def test_E06_where_the_engine_may_mean_the_last_copy_the_first_removal_is_the_last():
    held = HandleBook(start, SIZE)
    (key,) = keys(FIRST)
    apply(held, Stored([1], None, FIRST, SIZE), Stored([1], None, FIRST, SIZE))
    assert effect(apply(held, Removed([1]))) == (False, [key], [])
    assert (held.keys, held.handles) == (0, 0)


def test_two_handles_of_one_key_hold_it_together():
    held = book()
    (key,) = keys(FIRST)
    assert effect(apply(held, Stored([1], None, FIRST, SIZE))) == (False, [], [key])
    assert effect(apply(held, Stored([2], None, FIRST, SIZE))) == (False, [], [])
    assert (held.keys, held.handles) == (1, 2)
    assert effect(apply(held, Removed([1]))) == (False, [], [])
    assert effect(apply(held, Removed([2]))) == (False, [key], [])


def test_a_handle_that_is_stored_as_another_block_stands_for_that_one():
    held = book()
    (first,), (second,) = keys(FIRST), keys(SECOND)
    apply(held, Stored([1], None, FIRST, SIZE), Stored([1], None, FIRST, SIZE))
    assert effect(apply(held, Stored([1], None, SECOND, SIZE))) == (False, [first], [second])
    # Nobody knows which of the two a removal means.
    assert effect(apply(held, Removed([1]))) == (False, [second], [])
    assert effect(apply(held, Removed([1]))) == (False, [], [])


def test_a_handle_that_comes_twice_in_one_store_is_two_copies():
    held = book()
    apply(held, Stored([1, 1], None, FIRST + SECOND, SIZE))
    assert held.keys == held.handles == 1


def test_children_of_an_unknown_parent_are_unkeyed_and_so_are_theirs():
    held = book()
    delta = apply(held, Stored([2, 3], 1, FIRST + SECOND, SIZE), Stored([4], 3, FIRST, SIZE))
    assert effect(delta) == (False, [], [])
    assert (delta.unkeyed, delta.handles, held.keys, held.handles) == (3, [], 0, 3)
    assert effect(apply(held, Removed([2, 3, 4]))) == (False, [], [])
    assert held.handles == 0


def test_an_unkeyed_handle_is_keyed_once_its_place_is_known():
    held = book()
    first, second = keys(FIRST + SECOND)
    apply(held, Stored([2], 1, SECOND, SIZE))
    assert effect(apply(held, Stored([1, 2], None, FIRST + SECOND, SIZE))) == (
        False,
        [],
        sorted([first, second]),
    )
    assert effect(apply(held, Removed([2]))) == (False, [], [])
    assert effect(apply(held, Removed([2]))) == (False, [second], [])


def test_a_known_handle_keeps_its_key_when_its_parent_is_forgotten():
    held = book()
    second = keys(FIRST + SECOND)[1]
    apply(held, Stored([1, 2], None, FIRST + SECOND, SIZE), Removed([1]))
    assert apply(held, Stored([2], 1, SECOND, SIZE)).unkeyed == 1
    assert effect(apply(held, Removed([2]))) == (False, [], [])
    assert effect(apply(held, Removed([2]))) == (False, [second], [])


def test_blocks_that_are_kept_apart_and_those_after_them_are_unkeyed():
    held = book()
    hashes, tokens = chained(4)
    delta = apply(held, Stored(hashes, None, tokens, SIZE, extra=[None, None, ["image"], None]))
    assert sorted(delta.stored) == sorted(keys(tokens)[:2])
    assert (delta.unkeyed, held.handles) == (2, 4)
    assert apply(held, Stored([9], hashes[-1], FIRST, SIZE)).unkeyed == 1


@pytest.mark.parametrize(
    "event",
    [
        Stored([1, 2], None, [], 0),
        Stored([1, 2], None, [], SIZE),
        Stored([1, 2], None, FIRST, SIZE),
        Stored([1, 2], None, FIRST + SECOND + [9], SIZE),
        Stored([1, 2], None, [-1, *FIRST[1:], *SECOND], SIZE),
        Stored([1, 2], None, [2**32, *FIRST[1:], *SECOND], SIZE),
        Stored([1, 2], None, FIRST + SECOND, -SIZE),
        Stored([1, 2], None, FIRST + SECOND, SIZE, extra=[None]),
    ],
)
def test_a_store_without_what_a_key_is_made_of_is_unkeyed(event):
    held = book()
    delta = apply(held, event)
    assert effect(delta) == (False, [], [])
    assert (delta.unkeyed, held.keys, held.handles) == (2, 0, 2)
    assert effect(apply(held, Removed([1, 2]))) == (False, [], [])


def test_E08_blocks_of_the_engine_that_are_several_of_ours():
    held = HandleBook(start, 16, copies="counted")
    tokens = list(range(2 * 64))
    ours = keys(tokens, size=16)
    delta = apply(held, Stored([1, 2], None, tokens, 64))
    assert sorted(delta.stored) == sorted(ours)
    assert delta.handles == []
    assert not held.resumable
    more = list(range(2096))
    delta = apply(held, Stored([3], 2, more, 2096))
    assert sorted(delta.stored) == sorted(keys(tokens + more, size=16)[8:])
    assert effect(apply(held, Removed([2]))) == (False, sorted(ours[4:]), [])
    assert held.misfit is None


def test_E08_blocks_of_the_engine_that_are_parts_of_ours():
    held = HandleBook(start, 64, copies="counted")
    tokens = list(range(2 * 64))
    first, second = keys(tokens, size=64)
    delta = apply(held, Stored([1, 2, 3], None, tokens[:48], 16))
    assert effect(delta) == (False, [], [])
    assert effect(apply(held, Stored([4, 5], 3, tokens[48:80], 16))) == (False, [], [first])
    assert effect(apply(held, Stored([6, 7, 8], 5, tokens[80:], 16))) == (False, [], [second])
    assert effect(apply(held, Removed([6]))) == (False, [second], [])
    assert effect(apply(held, Stored([6], 5, tokens[80:96], 16))) == (False, [], [second])
    assert effect(apply(held, Removed([5, 7]))) == (False, [second], [])
    assert effect(apply(held, Stored([5], 4, tokens[64:80], 16))) == (False, [], [])
    assert effect(apply(held, Stored([7], 6, tokens[96:112], 16))) == (False, [], [second])
    assert effect(apply(held, Removed([8, 7, 6, 5, 1]))) == (False, sorted([first, second]), [])
    assert (held.keys, held.handles, held.resumable) == (0, 3, False)


@pytest.mark.parametrize("theirs", [24, 1, 10])
def test_E08_a_size_that_does_not_fit_is_said_and_claims_nothing(theirs):
    held = HandleBook(start, 16)
    delta = apply(held, Stored([1, 2], None, list(range(2 * theirs)), theirs))
    assert (delta.unkeyed, held.keys, held.misfit) == (2, 0, theirs)


def test_E08_a_prompt_shorter_than_a_block_says_nothing():
    held = HandleBook(start, 528)
    assert effect(apply(held, Stored([], None, [], 528))) == (False, [], [])
    assert held.misfit is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_E09_a_group_of_sliding_windows_neither_holds_nor_ends_a_block(order):
    held = book()
    (key,) = keys(FIRST)
    kinds = {0: "full_attention", 1: "sliding_window"}
    for group in order:
        apply(held, Stored([1], None, FIRST, SIZE, group=group, kind=kinds[group]))
    assert held.keys == 1
    assert effect(apply(held, Removed([1], group=1))) == (False, [], [])
    assert effect(apply(held, Removed([1], group=0))) == (False, [key], [])


def test_E09_groups_that_attend_to_all_hold_a_block_each_for_itself():
    held = book()
    (key,) = keys(FIRST)
    for group in (0, 3):
        apply(held, Stored([1], None, FIRST, SIZE, group=group, kind="mla_attention"))
    assert (held.keys, held.handles) == (1, 2)
    assert effect(apply(held, Removed([1], group=0))) == (False, [], [])
    assert effect(apply(held, Removed([1], group=3))) == (False, [key], [])


def test_E09_a_chain_of_another_group_than_the_first_is_followed():
    held = book()
    first, second = keys(FIRST + SECOND)
    apply(held, Stored([1], None, FIRST, SIZE, group=1, kind="full_attention"))
    delta = apply(held, Stored([2], 1, SECOND, SIZE, group=1, kind="full_attention"))
    assert list(delta.stored) == [second]
    assert effect(apply(held, Removed([1, 2], group=1))) == (False, sorted([first, second]), [])


def test_E09_a_copy_on_the_cpu_is_no_hit_and_its_end_is_no_loss():
    held = book()
    (key,) = keys(FIRST)
    assert effect(apply(held, Stored([1], None, FIRST, SIZE, medium="CPU"))) == (False, [], [])
    assert effect(apply(held, Removed([1]))) == (False, [], [])
    assert effect(apply(held, Stored([1], None, FIRST, SIZE))) == (False, [], [key])
    assert effect(apply(held, Removed([1], "CPU"))) == (False, [], [])
    assert effect(apply(held, Removed([1]))) == (False, [key], [])


def test_another_book_goes_on_from_what_was_told():
    held, other = book(), book()
    known: dict[int, tuple[int, int]] = {}
    for events in (
        [Stored([1, 2], None, FIRST + SECOND, SIZE), Stored([1], None, FIRST, SIZE)],
        [Stored([3], None, SECOND, SIZE, group=2), Stored([8], 7, FIRST, SIZE)],
        [Removed([2])],
    ):
        delta = apply(held, *events)
        for each in delta.handles_gone:
            known.pop(each, None)
        known.update({each: (key, copies) for each, key, copies in delta.handles})
    assert held.resumable
    other.resume((each, *rest) for each, rest in known.items())
    assert other.keys == held.keys == 2
    for events in ([Removed([1])], [Stored([2], 1, SECOND, SIZE)], [Removed([3], group=2)], [Removed([1])]):
        assert effect(apply(other, *events)) == effect(apply(held, *events))
    assert other.keys == 1


def test_clearing_forgets_all_and_says_so():
    held = book()
    apply(held, Stored([1, 2], None, FIRST + SECOND, SIZE))
    assert effect(held.clear()) == (True, [], [])
    assert (held.keys, held.handles) == (0, 0)
    assert effect(apply(held, Removed([1]))) == (False, [], [])


def test_handles_are_bounded():
    held = book(limit=3)
    hashes, tokens = chained(2)
    apply(held, Stored(hashes, None, tokens, SIZE))
    delta = apply(held, Stored([1, 2], None, FIRST + SECOND, SIZE))
    assert (delta.unkeyed, held.handles) == (2, 2)
    apply(held, Removed(hashes[1:]))
    assert len(apply(held, Stored([1, 2], None, FIRST + SECOND, SIZE)).stored) == 2
