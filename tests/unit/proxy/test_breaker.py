"""Q09: the breaker opens where most fails, tries again with one request, and is never stuck."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.breaker import FAILURES, LONGEST, SHORTEST, TRIAL_SECONDS, Breaker, State


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for number in range(1, FAILURES + 1):
        assert breaker.admits
        assert breaker.failed(0, now) == (number == FAILURES)
    assert breaker.state is State.OPEN
    return breaker


def on_trial(now: float = SHORTEST) -> Breaker:
    breaker = tripped()
    assert breaker.tick(now)
    assert breaker.awaits_trial
    breaker.lend("trial", now)
    return breaker


def test_a_few_failures_among_many_do_not_open_it():
    breaker = Breaker()
    for number in range(1000):
        assert not (breaker.failed(0, 0.0) if number % 3 == 0 else breaker.succeeded(0))
    assert breaker.state is State.CLOSED


def test_more_failures_than_successes_open_it_before_long():
    breaker = Breaker()
    opened = 0
    for _ in range(9):
        breaker.succeeded(0)
        opened += breaker.failed(0, 0.0) + breaker.failed(0, 0.0)
    assert opened == 1


def test_nothing_is_sent_until_the_pause_is_over():
    breaker = tripped(now=100.0)
    assert not breaker.tick(100.0 + 0.99 * SHORTEST)
    assert not breaker.admits
    assert breaker.tick(100.0 + SHORTEST)
    assert breaker.admits


def test_Q09_one_trial_at_a_time():
    breaker = on_trial()
    assert not breaker.admits
    for number in range(50):
        breaker.lend(number, SHORTEST)
    assert breaker.trial == "trial"


def test_Q09_a_trial_that_goes_well_closes_it_and_soon_opens_again_if_that_was_chance():
    breaker = on_trial()
    assert breaker.succeeded(1)
    assert breaker.state is State.CLOSED
    assert breaker.trial is None
    assert not breaker.failed(1, 10.0)
    assert breaker.failed(1, 10.0)


def test_Q09_a_trial_that_fails_doubles_the_pause_up_to_a_limit():
    breaker, now, pauses = tripped(), 0.0, []
    for generation in range(1, 8):
        since = now
        while not breaker.tick(now):
            now += 0.5
        pauses.append(now - since)
        breaker.lend("trial", now)
        assert breaker.failed(generation, now)
    assert pauses == [2, 4, 8, 16, 30, 30, 30]


def test_Q09_a_trial_that_ends_without_a_word_makes_place():
    breaker = on_trial()
    assert not breaker.give_back("another")
    assert not breaker.admits
    assert breaker.give_back("trial")
    assert breaker.awaits_trial
    assert not breaker.give_back("trial")


def test_Q09_a_trial_that_hangs_makes_place_when_its_lease_ends():
    breaker = on_trial(now=10.0)
    assert not breaker.tick(10.0 + 0.99 * TRIAL_SECONDS)
    assert breaker.tick(10.0 + TRIAL_SECONDS)
    breaker.lend("second", 10.0 + TRIAL_SECONDS)
    assert not breaker.give_back("trial")  # the first, after all
    assert breaker.trial == "second"


def test_Q09_stragglers_change_nothing():
    breaker = on_trial()
    assert not breaker.succeeded(0)
    assert not breaker.failed(0, 5.0)
    assert (breaker.state, breaker.trial) == (State.HALF_OPEN, "trial")
    assert breaker.failed(1, 5.0)
    assert not breaker.succeeded(1)
    assert breaker.state is State.OPEN


def test_what_was_sent_although_it_is_open_may_close_it():
    breaker = tripped()
    assert not breaker.failed(1, 1.0)
    assert breaker.succeeded(1)
    assert breaker.state is State.CLOSED


def test_a_new_process_begins_anew():
    breaker = on_trial()
    breaker.reset()
    assert breaker.admits
    assert not breaker.give_back("trial")
    for _ in range(FAILURES):
        assert not breaker.failed(1, 9.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "good", "bad", "silent", "reset"]),
        st.floats(0, 4),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(STEPS)
def test_Q09_it_is_never_stuck(steps: list[tuple[str, float, int]]):
    breaker, now = Breaker(), 0.0
    sent: list[tuple[object, int]] = []
    for step, seconds, which in steps:
        now += seconds
        breaker.tick(now)
        if step == "send":
            request = object()
            breaker.lend(request, now)
            sent.append((request, breaker.generation))
        elif step == "reset":
            breaker.reset()
        elif sent:
            request, generation = sent.pop(which % len(sent))
            if step == "good":
                breaker.succeeded(generation)
            elif step == "bad":
                breaker.failed(generation, now)
            breaker.give_back(request)
        assert breaker.trial is None or breaker.state is State.HALF_OPEN
        assert breaker.trial is None or any(breaker.trial is request for request, _ in sent)
    breaker.tick(now + LONGEST + TRIAL_SECONDS)
    assert breaker.admits
    breaker.lend("last", now)
    breaker.succeeded(breaker.generation)
    assert breaker.state is State.CLOSED


@pytest.mark.parametrize("state", State)
def test_the_worse_the_higher(state: State):
    assert [State.CLOSED, State.HALF_OPEN, State.OPEN][state] is state
