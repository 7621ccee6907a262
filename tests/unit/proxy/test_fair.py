"""Deficit round robin: who is next, and that nobody gets more than a turn ahead."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.fair import QUANTUM, FairQueue, Ticket


def ticket(caller: str, tokens: int) -> Ticket:
    return Ticket("m", 0, caller, tokens, 1, 0.0, lambda _: None)


def queue(*tickets: Ticket) -> FairQueue:
    fair = FairQueue(0.0)
    for each in tickets:
        fair.add(each)
    return fair


def serve(fair: FairQueue) -> Ticket:
    first = fair.first()
    assert fair.first() is first  # looking changes nothing
    fair.serve(first)
    return first


def test_one_caller_is_served_in_order_whatever_it_costs():
    tickets = [ticket("a", tokens) for tokens in (1, 100_000, 5)]
    fair = queue(*tickets)
    assert [serve(fair) for _ in tickets] == tickets
    assert not fair


def test_requests_of_a_quantum_alternate():
    fair = queue(*(ticket(caller, QUANTUM) for caller in "aaabbb"))
    served = [serve(fair).caller for _ in range(6)]
    assert served in (list("ababab"), list("bababa"))


def test_tokens_count_not_requests():
    fair = queue(*(ticket("small", QUANTUM // 4) for _ in range(40)))
    for _ in range(10):
        fair.add(ticket("large", QUANTUM))
    first = Counter(serve(fair).caller for _ in range(25))
    assert first["small"] == pytest.approx(20, abs=4)


def test_one_far_above_a_quantum_waits_for_as_many_turns_without_counting_them_one_by_one():
    fair = queue(ticket("huge", 10**9), *(ticket("other", 10**9) for _ in range(3)))
    assert {serve(fair).caller, serve(fair).caller} == {"huge", "other"}


def test_who_comes_late_goes_before_the_rest_of_a_flood():
    fair = queue(*(ticket("flood", QUANTUM) for _ in range(100)))
    assert [serve(fair).caller for _ in range(10)] == ["flood"] * 10
    fair.add(ticket("late", QUANTUM))
    assert "late" in [serve(fair).caller for _ in range(2)]


def test_leaving_and_coming_back_saves_nothing_up():
    fair = queue(ticket("a", QUANTUM), ticket("b", QUANTUM))
    gone = ticket("c", 1)
    fair.add(gone)
    fair.remove(gone)
    assert {serve(fair).caller, serve(fair).caller} == {"a", "b"}
    assert not fair


def test_a_refund_is_at_most_what_was_paid():
    fair = queue(*(ticket(caller, QUANTUM) for caller in "ab" for _ in range(20)))
    first = serve(fair)
    fair.refund(first, 0)
    again = [serve(fair).caller for _ in range(3)]
    assert again.count(first.caller) == 2  # the turn it did not use, and its next
    alone = queue(ticket("a", 10**6), ticket("a", QUANTUM))
    free = serve(alone)
    alone.refund(free, 0)  # nobody else waited, so it paid nothing
    alone.add(ticket("b", QUANTUM))
    alone.add(ticket("b", QUANTUM))
    assert Counter(serve(alone).caller for _ in range(2)) == {"a": 1, "b": 1}


def test_who_was_alone_owes_nothing_to_who_comes_then():
    fair = queue(ticket("first", 10**6), *(ticket("first", QUANTUM) for _ in range(4)))
    serve(fair)
    for _ in range(4):
        fair.add(ticket("second", QUANTUM))
    assert Counter(serve(fair).caller for _ in range(4)) == {"first": 2, "second": 2}


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.lists(st.integers(1, 3 * QUANTUM), min_size=1, max_size=40),
        min_size=2,
    ),
    st.randoms(use_true_random=False),
)
def test_while_callers_wait_what_they_got_differs_by_a_quantum_and_a_request_each(loads, rng: Random):
    fair = FairQueue(0.0)
    arriving = [ticket(caller, tokens) for caller, costs in loads.items() for tokens in costs]
    rng.shuffle(arriving)
    for each in arriving:
        fair.add(each)
    largest = max(each.tokens for each in arriving)
    left = {caller: len(costs) for caller, costs in loads.items()}
    got: Counter[str] = Counter()
    while all(left.values()):
        tokens = fair.first().tokens
        caller = serve(fair).caller
        got[caller] += tokens
        left[caller] -= 1
        if all(left.values()):
            assert max(got[c] for c in loads) - min(got[c] for c in loads) <= QUANTUM + 2 * largest
