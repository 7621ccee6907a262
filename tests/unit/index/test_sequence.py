"""Gaps, repetitions, restarts: the cases that have a name. What holds of all is in the property tests."""

import pytest

from proxy.index.sequence import RECENT, Apply, Check, Replay, Restarted, Sequencer, Stale


def said(seq: int, by: str = "a") -> bytes:
    return f"{by}{seq}".encode()


def live(to: Sequencer, *numbers: int, by: str = "a") -> list:
    return [step for seq in numbers for step in to.live(seq, said(seq, by))]


def replayed(to: Sequencer, *numbers: int, by: str = "a") -> list:
    return [step for seq in numbers for step in to.replayed(seq, said(seq, by))]


def applied(*numbers: int, by: str = "a") -> list:
    return [Apply(seq, said(seq, by)) for seq in numbers]


def following(last: int, **changes) -> Sequencer:
    """A sequencer that has applied 0 to `last`."""
    sequencer = Sequencer(**changes)
    assert live(sequencer, *range(last + 1)) == applied(*range(last + 1))
    assert sequencer.last == last
    return sequencer


def test_messages_in_order_are_applied_as_they_come():
    following(5)


def test_who_joins_late_asks_for_all_there_is():
    sequencer = Sequencer()
    assert live(sequencer, 7) == [Replay(0)]
    assert live(sequencer, 8) == []
    assert replayed(sequencer, *range(8)) == applied(*range(8))
    assert sequencer.replay_ended() == applied(8)
    assert live(sequencer, 9) == applied(9)


def test_who_connects_asks_before_anything_comes():
    sequencer = Sequencer()
    assert sequencer.resync() == [Replay(0)]
    assert replayed(sequencer, 0, 1) == applied(0, 1)
    assert live(sequencer, 2) == []
    assert sequencer.replay_ended() == applied(2)
    assert sequencer.resync() == [Replay(2)]
    assert replayed(sequencer, 2, 3) == applied(3)
    assert sequencer.replay_ended() == []
    assert live(sequencer, 4) == applied(4)


def test_E02_what_exposed_a_gap_is_applied_after_it():
    sequencer = following(4)
    assert live(sequencer, 6) == [Replay(4)]
    assert live(sequencer, 7) == []
    assert replayed(sequencer, 4, 5, 6) == applied(5, 6)
    assert sequencer.replay_ended() == applied(7)


def test_E02_a_replay_that_succeeds_late_is_applied_before_what_exposed_the_gap():
    sequencer = following(4)
    assert live(sequencer, 6) == [Replay(4)]
    assert sequencer.replay_failed() == [Replay(4)]
    assert live(sequencer, 7) == []
    assert replayed(sequencer, 4, 5, 6) == applied(5, 6)
    assert sequencer.replay_ended() == applied(7)


def test_E02_a_replay_that_comes_after_it_was_given_up_changes_nothing():
    sequencer = following(4, attempts=1)
    assert live(sequencer, 6) == [Replay(4)]
    stale, *rest = sequencer.replay_failed()
    assert isinstance(stale, Stale)
    assert rest == applied(6)
    assert replayed(sequencer, 4, 5, 6) == []
    assert sequencer.replay_ended() == []
    assert sequencer.replay_failed() == []
    assert live(sequencer, 7) == applied(7)


def test_a_gap_whose_beginning_the_publisher_no_longer_has_is_stale():
    sequencer = following(4)
    assert live(sequencer, 9) == [Replay(4)]
    assert live(sequencer, 10) == []
    stale, *rest = replayed(sequencer, 7, 8, 9)
    assert isinstance(stale, Stale)
    assert rest == applied(7, 8, 9)
    assert sequencer.replay_ended() == applied(10)


def test_a_replay_that_begins_after_what_was_applied_does_not_say_who_speaks():
    sequencer = following(4)
    assert live(sequencer, 6) == [Replay(4)]
    stale, *rest = replayed(sequencer, 5, by="b")
    assert isinstance(stale, Stale)
    assert rest == applied(5, by="b")


def test_after_giving_up_only_what_has_no_gap_is_applied():
    sequencer = following(0, attempts=1)
    assert live(sequencer, 2, 4, 5) == [Replay(0)]
    assert sequencer.replay_failed()[1:] == applied(4, 5)


def test_what_was_overtaken_is_applied_where_it_belongs():
    sequencer = following(0, attempts=1)
    assert live(sequencer, 2, 1) == [Replay(0)]
    assert sequencer.replay_failed() == applied(1, 2)


def test_a_replay_with_a_hole_is_asked_for_again():
    sequencer = following(0)
    assert live(sequencer, 4) == [Replay(0)]
    assert replayed(sequencer, 0, 1, 3, 4) == applied(1)
    assert sequencer.replay_ended() == [Replay(1)]
    assert live(sequencer, 5) == []
    assert replayed(sequencer, 1, 2, 3, 4) == applied(2, 3, 4)
    assert sequencer.replay_ended() == applied(5)


@pytest.mark.parametrize("restarted", [True, False])
def test_E03_numbers_that_begin_anew_are_a_restart_if_the_process_is_another(restarted):
    sequencer = following(900)
    assert live(sequencer, 0, by="b") == [Check()]
    assert live(sequencer, 1, 2, by="b") == []
    steps = sequencer.checked(restarted=restarted)
    if not restarted:
        assert steps == []
        assert live(sequencer, 901) == applied(901)
        return
    assert steps == [Restarted(), Replay(0)]
    assert replayed(sequencer, 0, 1, by="b") == applied(0, 1, by="b")
    assert replayed(sequencer, 2, by="b") == applied(2, by="b")
    assert live(sequencer, 3, by="b") == []
    assert sequencer.replay_ended() == applied(3, by="b")


def test_E03_a_message_that_comes_again_is_ignored():
    sequencer = following(900)
    assert live(sequencer, 899, 900, 899) == []
    assert live(sequencer, 901) == applied(901)
    # One that nobody remembers is asked about, and does no harm.
    assert live(sequencer, 901 - RECENT) == [Check()]
    assert live(sequencer, 902) == []
    assert sequencer.checked(restarted=False) == applied(902)


def test_E03_a_restart_whose_first_message_was_lost():
    sequencer = following(900)
    assert live(sequencer, 37, by="b") == [Check()]
    assert sequencer.checked(restarted=True) == [Restarted(), Replay(0)]
    assert replayed(sequencer, *range(38), by="b") == applied(*range(38), by="b")
    assert sequencer.replay_ended() == []
    assert live(sequencer, 38, by="b") == applied(38, by="b")


def test_E03_where_no_start_time_is_told_a_replay_tells():
    sequencer = following(900)
    assert live(sequencer, 0, by="b") == [Check()]
    assert sequencer.checked(restarted=None) == [Replay(0)]
    assert replayed(sequencer, 0, 1) == []
    assert sequencer.replay_ended() == [Restarted(), Replay(0)]
    sequencer = following(900)
    assert live(sequencer, 0, by="b") == [Check()]
    assert sequencer.checked(restarted=None) == [Replay(0)]
    assert replayed(sequencer, *range(901)) == []
    assert sequencer.replay_ended() == []
    assert live(sequencer, 901) == applied(901)


def test_E03_where_nothing_tells_what_was_stored_is_not_believed():
    sequencer = following(900, attempts=2)
    assert live(sequencer, 0, 1, by="b") == [Check()]
    assert sequencer.checked(restarted=None) == [Replay(0)]
    assert sequencer.replay_failed() == [Replay(0)]
    stale, *rest = sequencer.replay_failed()
    assert isinstance(stale, Stale)
    assert rest == applied(0, 1, by="b")


def test_E03_a_restart_that_has_overtaken_the_old_numbers_is_seen_in_a_replay():
    sequencer = following(5)
    assert live(sequencer, 37, by="b") == [Replay(5)]
    assert replayed(sequencer, 5, by="b") == [Restarted(), Replay(0)]
    assert replayed(sequencer, *range(38), by="b") == applied(*range(38), by="b")


def test_E04_a_restart_that_is_learned_of_elsewhere_needs_no_message():
    sequencer = following(5)
    assert live(sequencer, 8) == [Replay(5)]
    assert sequencer.checked(restarted=True) == [Restarted(), Replay(0)]
    assert sequencer.replay_ended() == []
    assert live(sequencer, 0, by="b") == applied(0, by="b")
    assert sequencer.checked(restarted=False) == []


def test_E04_a_publisher_that_does_not_have_what_was_applied_is_asked_about():
    sequencer = following(5)
    assert sequencer.resync() == [Replay(5)]
    assert sequencer.replay_ended() == [Check()]
    assert sequencer.checked(restarted=True) == [Restarted(), Replay(0)]


def test_E04_the_next_number_of_another_process_is_not_the_next_message():
    sequencer = following(5)
    assert sequencer.resync() == [Replay(5)]
    assert sequencer.replay_ended() == [Check()]
    assert live(sequencer, 6, by="b") == []
    assert sequencer.checked(restarted=None) == [Replay(0)]
    assert replayed(sequencer, 0, by="b") == [Restarted(), Replay(0)]


def test_E04_a_publisher_of_whom_nothing_could_be_learned_is_asked_with_every_message():
    sequencer = following(5)
    assert sequencer.resync() == [Replay(5)]
    assert sequencer.replay_ended() == [Check()]
    assert sequencer.checked(restarted=None) == [Replay(0)]
    assert sequencer.replay_ended() == [Replay(5)]
    assert sequencer.replay_ended() == []
    assert live(sequencer, 6, by="b") == [Replay(5)]
    assert replayed(sequencer, 5, by="b") == [Restarted(), Replay(0)]


def test_E06_a_message_delivered_twice_is_applied_once():
    sequencer = following(1)
    assert live(sequencer, 1, 1, 2, 2, 1) == applied(2)


def test_another_goes_on_where_one_has_stopped():
    sequencer = Sequencer(last=41)
    assert sequencer.resync() == [Replay(41)]
    assert replayed(sequencer, 41, 42) == applied(42)
    # Whether it is the same process is not to be seen from numbers alone.
    assert sequencer.replay_ended() == [Check()]
    assert sequencer.checked(restarted=False) == []
    assert live(sequencer, 43) == applied(43)


@pytest.mark.parametrize("bounds", [{"most_messages": 2}, {"most_bytes": 4}])
def test_what_there_is_no_room_for_is_asked_for_again(bounds):
    sequencer = following(0, **bounds)
    assert live(sequencer, 2, 3, 4, 5) == [Replay(0)]
    assert replayed(sequencer, 0, 1, 2) == applied(1, 2)
    assert sequencer.replay_ended() == [*applied(3), Replay(3)]
    assert replayed(sequencer, 3, 4, 5) == applied(4, 5)
    assert sequencer.replay_ended() == []


def test_what_there_is_no_room_for_and_nobody_has_is_given_up():
    sequencer = following(0, most_messages=1, attempts=1)
    assert live(sequencer, 2, 3) == [Replay(0)]
    (stale,) = sequencer.replay_failed()
    assert isinstance(stale, Stale)
    assert live(sequencer, 4) == applied(4)


def test_a_number_that_the_publisher_never_had_is_forgotten():
    sequencer = following(3)
    assert live(sequencer, 899) == [Replay(3)]
    assert replayed(sequencer, 3) == []
    assert live(sequencer, 4) == []
    steps = sequencer.replay_ended()
    assert steps[:1] == applied(4)
    assert steps[1:] == [Replay(4)]
    assert replayed(sequencer, 4) == []
    assert sequencer.replay_ended() == []
    assert live(sequencer, 5) == applied(5)
