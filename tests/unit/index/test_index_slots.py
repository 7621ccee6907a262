"""A llama.cpp server's slots: what build 10434 was seen to do with 600-token prompts, a token a block."""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array

import pytest

from proxy.index.memory import MemoryIndex
from proxy.index.slots import ASIDE_BLOCKS, LEAST_SHOWN, MOST_ASIDE, MOST_SHOWN, SlotPlacement, Slots
from proxy.index.truth import TrueIndex


def prompt(name: int, length: int, shared: int = 0, head: int = 0) -> array[int]:
    """Keys of a prompt of its own but for the first `shared` blocks, which are those of prompt `head`."""
    keys = [head * 1_000_000 + at for at in range(shared)]
    return array("Q", keys + [name * 1_000_000 + at for at in range(shared, length)])


class Server:
    """Slots, and what a real server would answer: told and asked in one step."""

    def __init__(self, count: int, *, host: bool) -> None:
        self.slots = Slots(count)
        self.truth = Slots(count)
        self.truth._shown = MOST_SHOWN * host
        self.host = host
        self.tick = 0

    def begin(self, keys: array[int]) -> tuple[SlotPlacement, SlotPlacement]:
        self.tick += 1
        real = self.truth.place("r", keys, self.tick)
        if not self.host:
            self.truth._aside.clear()
        return self.slots.place("r", keys, self.tick), real

    def end(self, placements: tuple[SlotPlacement, SlotPlacement]) -> tuple[int, int]:
        """Predicted and found."""
        mine, real = placements
        mine.over()
        real.over()
        predicted = mine.before
        self.slots.first_token(mine)
        self.slots.confirm(mine, real.before)
        return predicted, real.before

    def ask(self, keys: array[int]) -> tuple[int, int]:
        return self.end(self.begin(keys))


@pytest.mark.parametrize(
    ("shared", "second", "again"),
    [(50, 0, 600), (100, 100, 100), (200, 200, 200), (320, 320, 320), (500, 500, 500)],
)
def test_a_slot_keeps_the_last_prompt_and_a_similar_one_takes_it(shared: int, second: int, again: int):
    """A, B with a shared head, A, B on four slots and no cache in memory: as the real server answered."""
    server = Server(4, host=False)
    a, b = prompt(1, 600), prompt(2, 600, shared, 1)
    assert server.ask(a) == (0, 0)
    assert server.ask(b) == (second, second)
    assert server.ask(a) == (again, again)
    assert server.ask(b) == (again, again)


def test_the_threshold_of_similarity_is_that_of_the_new_prompt():
    slots = Slots(2)
    slots.place("r", prompt(1, 100), 1).over()
    assert slots.depth(prompt(2, 600, 61, 1)) == 61
    assert (
        slots.depth(prompt(2, 600, 60, 1)) == 0
    )  # another slot, which is empty, is the one used longest ago


def test_least_recently_used_slots_go_first_and_seven_prompts_on_four_slots_never_hit():
    server = Server(4, host=False)
    for _ in range(3):
        for name in range(7):
            assert server.ask(prompt(name, 400)) == (0, 0)
    assert server.ask(prompt(6, 400)) == (400, 400)


@pytest.mark.parametrize(("shared", "again"), [(200, 600), (280, 600), (320, 320), (500, 500)])
def test_a_cache_in_memory_is_believed_once_it_was_seen(shared: int, again: int):
    """The tail comes back if less than half of what the slot held would have stayed."""
    server = Server(1, host=True)
    a, b = prompt(1, 600), prompt(2, 600, shared, 1)
    server.ask(a)
    server.ask(b)
    for each in (a, b):  # the first times nobody could know
        assert server.ask(each) == (shared, again)
    assert server.slots.keeps_aside is (again > shared)
    assert server.ask(a) == (again, again)
    assert server.ask(b) == (again, again)


def test_a_hit_that_memory_explains_once_may_be_chance():
    slots = Slots(1)
    for tick, name in enumerate((1, 2, 1, 2), 1):
        placement = slots.place("r", prompt(name, 300), tick)
        placement.over()
        slots.confirm(placement, 300 if tick == 3 else 0)
    assert not slots.keeps_aside
    assert slots.depth(prompt(1, 300)) == 0


def test_what_was_put_aside_and_is_missed_is_not_believed_any_more():
    server = Server(1, host=True)
    for name in (1, 2, 3, 1, 2, 3, 1, 2, 3):
        server.ask(prompt(name, 400))
    assert server.slots._shown == MOST_SHOWN > LEAST_SHOWN
    server.truth._aside.clear()  # it is full of others'
    assert server.ask(prompt(1, 400)) == (400, 0)
    assert server.slots.keeps_aside
    assert server.slots._room < ASIDE_BLOCKS
    for name in (5, 6, 7, 8):
        server.ask(prompt(name, 400))
        assert sum(len(kept.keys) for kept in server.slots._aside) <= server.slots._room
    for name in (1, 2, 3, 1, 2, 3, 1, 2, 3):
        server.truth._aside.clear()
        server.ask(prompt(name, 400))
    assert not server.slots.keeps_aside
    assert server.slots._room == ASIDE_BLOCKS


def test_the_same_prompt_at_once_hits_on_no_slot():
    server = Server(4, host=False)
    together = [server.begin(prompt(1, 300)) for _ in range(4)]
    assert [server.end(each) for each in together] == [(0, 0)] * 4
    assert server.ask(prompt(1, 300)) == (300, 300)


def test_where_two_slots_are_as_much_like_it_either_may_have_lost_its_tail():
    slots = Slots(2)
    both = [slots.place("r", prompt(name, 300, 200, 9), name) for name in (1, 2)]
    for each in both:
        each.over()
    assert slots.depth(prompt(1, 300, 200, 9)) == slots.depth(prompt(2, 300, 200, 9)) == 300
    slots.place("r", prompt(3, 300, 200, 9), 3).over()
    assert slots.depth(prompt(3, 300, 200, 9)) == 300
    assert slots.depth(prompt(1, 300, 200, 9)) == slots.depth(prompt(2, 300, 200, 9)) == 200


def test_the_slot_whose_request_was_over_first_goes_first():
    """As seen: it is the end of its last request that counts, not the beginning."""
    slots = Slots(2)
    long, short = slots.place("r", prompt(1, 200), 1), slots.place("r", prompt(2, 200), 2)
    short.over()
    long.over()
    slots.place("r", prompt(3, 200), 3).over()
    assert slots.depth(prompt(1, 200)) == 200
    assert slots.depth(prompt(2, 200)) == 0


def test_nothing_is_claimed_of_a_slot_that_is_taken_nor_while_all_are():
    slots = Slots(2)
    first = slots.place("r", prompt(1, 300), 1)
    assert slots.depth(prompt(1, 300)) == 0
    second = slots.place("r", prompt(1, 300), 2)
    assert second.before == 0
    waits = slots.place("r", prompt(1, 300), 3)
    assert waits.slot is None
    assert slots.depth(prompt(1, 300)) == 0
    first.over()
    assert slots.depth(prompt(1, 300)) == 300
    slots.first_token(waits)  # it has got that slot
    assert waits.before == 0
    assert slots.depth(prompt(1, 300)) == 0
    waits.over()
    waits.over()
    assert slots.depth(prompt(1, 300)) == 300
    second.over()


def test_one_that_had_to_wait_and_is_over_leaves_its_prompt_in_a_free_slot():
    slots = Slots(1)
    first, waits = slots.place("r", prompt(1, 300), 1), slots.place("r", prompt(2, 300), 2)
    first.over()
    waits.over()
    slots.first_token(waits)
    assert slots.depth(prompt(2, 300)) == 300
    assert slots.depth(prompt(1, 300)) == 0


def test_an_answer_counts_once_answers_have_come_back_as_they_were():
    slots = Slots(1)

    def turn(number: int, length: int, finds: int) -> int:
        """A turn of a conversation and its answer of 50 blocks; what was foretold."""
        placement = slots.place("r", prompt(1, length), number)
        foretold = placement.before
        placement.over()
        slots.confirm(placement, finds)
        slots.extend(placement, prompt(1, length + 50))
        return foretold

    assert turn(1, 300, 0) == 0
    assert turn(2, 400, 350) == 300  # nobody knew
    assert turn(3, 500, 450) == 450
    assert turn(4, 600, 520) == 550  # the text of that answer gives other tokens
    assert turn(5, 700, 600) == 600
    slots.place("r", prompt(2, 300), 6).over()
    assert slots.depth(prompt(2, 300)) == 300


def test_an_answer_extends_its_slot_until_another_has_taken_it():
    slots = Slots(1)
    slots._same = 1
    turn, whole = prompt(1, 300), prompt(1, 350)
    first = slots.place("r", turn, 1)
    first.over()
    slots.extend(first, whole)
    assert slots.depth(prompt(1, 400)) == 350
    slots.place("r", prompt(2, 300), 2).over()
    slots.extend(first, whole)
    assert slots.depth(prompt(1, 400)) == 0


def test_a_request_that_failed_leaves_what_was_there_before_it_as_far_as_it_is_sure():
    slots = Slots(1)
    slots.place("r", prompt(1, 300), 1).over()
    failed = slots.place("r", prompt(2, 300, 100, 1), 2)
    failed.over()
    slots.retract(failed)
    assert slots.depth(prompt(1, 300)) == 100
    assert slots.depth(prompt(2, 300, 100, 1)) == 100
    slots.place("r", prompt(3, 300), 3).over()
    slots.retract(failed)  # late: the slot is another's
    assert slots.depth(prompt(3, 300)) == 300


def test_a_shortfall_says_that_others_use_the_server():
    slots = Slots(2)
    slots.place("r", prompt(1, 300), 1).over()
    slots.place("r", prompt(2, 300, 200, 1), 2).over()  # the same slot
    slots.place("r", prompt(3, 300), 3).over()
    late = slots.place("r", prompt(1, 300), 4)
    assert late.before == 200
    late.over()
    slots.confirm(late, 0)
    assert slots.depth(prompt(1, 300)) == 300  # it has just been computed
    assert slots.depth(prompt(3, 300)) == 300  # nobody said anything of that one


def test_what_is_remembered_is_bounded():
    slots = Slots(2)
    for name in range(10 * MOST_ASIDE):
        slots.place("r", prompt(name, 5 + name % 7), name + 1).over()
        assert len(slots._aside) <= MOST_ASIDE
    for name in range(9):
        slots.place("r", prompt(name, ASIDE_BLOCKS // 2), 10_000 + name).over()
        assert sum(len(kept.keys) for kept in slots._aside) <= ASIDE_BLOCKS


def test_an_empty_prompt_is_no_error():
    slots = Slots(1)
    placement = slots.place("r", array("Q"), 1)
    placement.over()
    slots.confirm(placement, 0)
    assert slots.depth(array("Q")) == 0
    assert slots.blocks == 0


def test_the_index_that_routing_asks_keeps_slots_apart_from_what_others_hold():
    index = TrueIndex(MemoryIndex(), lambda: 0.0)
    index.keep_slots("llama", 2)
    keys = prompt(1, 300)
    index.predict("vllm", keys)
    placement = index.predict("llama", keys)
    assert index.match(keys) == {"vllm": 300}
    placement.over()
    assert index.match(keys) == {"vllm": 300, "llama": 300}
    index.predict("llama", prompt(1, 320), after=placement)
    assert index.match(prompt(1, 320)) == {"vllm": 300, "llama": 300}  # answers count once seen to come back
    assert (index.blocks("llama"), index.size()) == (320, 620)
    index.keep_slots("llama", 2)
    assert index.blocks("llama") == 320
    index.keep_slots("llama", 3)
    assert index.blocks("llama") == 0
    index.retract(index.predict("llama", keys))
    index.forget("llama")
    assert index.slots("llama") is None
    index.keep_slots("llama", 2)
    index.confirm(placement, 300, 0)  # of one that is gone
    index.first_token(placement)
    assert index.match(keys) == {"vllm": 300}
    index.keep_slots("llama", None)
    index.predict("llama", keys)
    assert index.match(keys) == {"vllm": 300, "llama": 300}
