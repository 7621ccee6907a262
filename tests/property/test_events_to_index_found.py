"""What the machine of `test_events_to_index` once found, step by step."""

from tests.property.test_events_to_index import EventsToIndex


def begun(*, lasting: bool, history: int) -> EventsToIndex:
    machine = EventsToIndex()
    machine.begin(
        dialect="vllm",
        digests=False,
        counted=False,
        lasting=lasting,
        room=6,
        history=history,
        careful=history == 1000,
    )
    return machine


def test_what_came_before_a_connection_is_not_mixed_with_what_comes_before_the_look():
    machine = begun(lasting=False, history=3)
    for _ in range(3):
        machine.babble()
    machine.deliver(at=0, kept=False)
    machine.deliver(at=0, kept=False)
    machine.restart(busy=0, dropped=False, lost=False, seen=False)
    machine.babble()
    machine.flushed()
    machine.answer(at=0, told=False)
    machine.restart(busy=0, dropped=False, lost=False, seen=False)
    machine.teardown()


def test_the_rest_of_a_replay_is_not_taken_for_the_next_one():
    machine = begun(lasting=False, history=1000)
    machine.serve(again=False, cleared=False, paths=[(1,)])
    machine.restart(busy=0, dropped=False, lost=False, seen=False)
    for last in (1, 2, 1, 2):
        machine.serve(again=False, cleared=False, paths=[(1, last)])
    machine.teardown()


def test_an_older_process_that_ended_is_not_believed_either():
    machine = begun(lasting=True, history=3)
    machine.serve(again=False, cleared=False, paths=[(1,)])
    machine.restart(busy=0, dropped=True, lost=False, seen=False)
    machine.serve(again=False, cleared=False, paths=[(1,)])
    machine.deliver(at=0, kept=False)
    machine.deliver(at=0, kept=False)
    machine.restart(busy=0, dropped=False, lost=False, seen=True)
    machine.write()
    machine.hear(times=1)
    machine.redis_has_what_was_heard()
    machine.teardown()
