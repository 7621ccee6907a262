"""The feed on real ZMQ sockets: what arrives, in which form, and what becomes of connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pytest
import zmq

from proxy.index.feed import Feed, Turns, Unreachable
from tests.support.eventually import eventually
from tests.support.publisher import Publisher


class Log:
    """Keeps what a feed tells, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.connections: list[str] = []

    def live(self, sequence: int, payload: bytes) -> None:
        self.told.append(("live", sequence, payload))

    def replayed(self, sequence: int, payload: bytes) -> None:
        self.told.append(("replayed", sequence, payload))

    def replay_over(self, *, whole: bool) -> None:
        self.told.append(("over", whole))

    def joined(self) -> None:
        self.connections.append("joined")

    def dropped(self) -> None:
        self.connections.append("dropped")

    async def tells(self, count: int) -> list[Any]:
        await eventually(lambda: len(self.told) >= count, f"{count} things told")
        return self.told


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    assert not context.closed
    context.term()  # hangs, and fails by its timeout, if a socket was left open


@asynccontextmanager
async def subscribed(publisher: Publisher, context, **options: Any) -> AsyncIterator[tuple[Feed, Log]]:
    log = Log()
    options = {"endpoint": publisher.endpoint, "replay": publisher.replay_endpoint, **options}
    feed = Feed(context, Turns(perf_counter), log, **options)
    feed.open()
    try:
        await publisher.subscribed()
        yield feed, log
    finally:
        feed.close()


async def test_live_messages_arrive_in_order(context):
    async with Publisher() as publisher, subscribed(publisher, context) as (_, log):
        for number in range(500):
            await publisher.send(b"%d" % number)
        expected = [("live", number, b"%d" % number) for number in range(500)]
        assert await log.tells(500) == expected


@pytest.mark.parametrize("replays_topic", [True, False], ids=["with topic", "without"])
async def test_both_forms_of_a_replay_are_read(context, replays_topic):
    async with Publisher(replays_topic=replays_topic) as publisher:
        for number in range(5):
            await publisher.send(b"%d" % number)
        async with subscribed(publisher, context) as (feed, log):
            feed.replay(2)
            expected = [("replayed", number, b"%d" % number) for number in (2, 3, 4)]
            assert await log.tells(4) == [*expected, ("over", True)]
            assert publisher.asked == [2]


async def test_a_replay_larger_than_a_sockets_usual_queue_is_whole(context):
    async with Publisher() as publisher:
        publisher.buffer = [(number, b"x" * 100) for number in range(5000)]
        async with subscribed(publisher, context) as (feed, log):
            feed.replay(0)
            await eventually(lambda: ("over", True) in log.told, "the replay has ended")
            assert [number for _, number, *_ in log.told[:-1]] == list(range(5000))


async def test_E02_a_replay_without_an_answer_fails_and_its_late_answer_is_not_the_next_ones(context):
    async with Publisher() as publisher:
        await publisher.send(b"old")
        async with subscribed(publisher, context, replay_seconds=0.05) as (feed, log):
            publisher.answers.clear()
            feed.replay(0)
            assert await log.tells(1) == [("over", False)]
            feed.replay(1)
            publisher.answers.set()
            assert (await log.tells(2))[1:] == [("over", True)]  # nothing of the first one's
            assert publisher.asked == [0, 1]


async def test_a_replay_that_breaks_off_fails(context):
    async with Publisher() as publisher:
        for _ in range(3):
            await publisher.send(b"x")
        publisher.batches_a_replay = 2
        async with subscribed(publisher, context, replay_seconds=0.05) as (feed, log):
            feed.replay(0)
            assert await log.tells(3) == [("replayed", 0, b"x"), ("replayed", 1, b"x"), ("over", False)]


@pytest.mark.parametrize("replay", [None, "tcp://", "udp://127.0.0.1:1"])
async def test_where_nobody_can_be_asked_a_replay_fails_but_not_inside_the_call(context, replay):
    async with Publisher() as publisher, subscribed(publisher, context, replay=replay) as (feed, log):
        feed.replay(0)
        assert log.told == []
        assert await log.tells(1) == [("over", False)]


async def test_another_replay_takes_the_place_of_the_one_under_way(context):
    async with Publisher() as publisher:
        for _ in range(3):
            await publisher.send(b"x")
        async with subscribed(publisher, context) as (feed, log):
            publisher.answers.clear()
            feed.replay(0)
            await eventually(lambda: publisher.asked == [0], "the first was asked for")
            feed.replay(2)
            publisher.answers.set()
            assert await log.tells(2) == [("replayed", 2, b"x"), ("over", True)]


async def test_only_the_topic_is_received(context):
    async with Publisher(topic="kv@a") as publisher, subscribed(publisher, context, topic="kv@a") as (_, log):
        await publisher.raw(b"kv@b", bytes(8), b"of another")
        await publisher.send(b"mine")
        assert await log.tells(1) == [("live", 0, b"mine")]


async def test_what_is_no_event_message_is_counted_and_passed_over(context):
    async with Publisher() as publisher, subscribed(publisher, context) as (feed, log):
        await publisher.raw(b"", b"hello")
        await publisher.raw(b"", b"short", b"payload")
        await publisher.send(b"mine")
        assert await log.tells(1) == [("live", 0, b"mine")]
        assert feed.malformed == 2


async def test_a_publisher_that_comes_back_is_joined_again(context):
    async with Publisher() as publisher, subscribed(publisher, context) as (_, log):
        await eventually(lambda: log.connections == ["joined"], "joined")
        await publisher.stop()
        await eventually(lambda: log.connections == ["joined", "dropped"], "dropped")
        await publisher.start()
        await publisher.subscribed()
        await eventually(lambda: log.connections == ["joined", "dropped", "joined"], "joined again")
        await publisher.send(b"new")
        assert await log.tells(1) == [("live", 0, b"new")]


async def test_an_engine_may_dial_in(context):
    async with Publisher() as other:
        free = other.endpoint
    log = Log()
    feed = Feed(context, Turns(perf_counter), log, endpoint=free, bind=True)
    feed.open()
    engine = context.socket(zmq.PUB)
    try:
        engine.connect(free)
        await eventually(lambda: log.connections == ["joined"], "joined")

        def arrives() -> bool:  # a PUB drops what it sends before it knows its subscriber
            engine.send_multipart([b"", bytes(8), b"x"])
            return bool(log.told)

        assert await eventually(arrives, "a message arrived")
        assert log.told[0] == ("live", 0, b"x")
    finally:
        feed.close()
        engine.close(linger=0)


@pytest.mark.parametrize("endpoint", ["nonsense", "tcp://127.0.0.1"])
async def test_an_endpoint_that_is_none_is_refused(context, endpoint):
    feed = Feed(context, Turns(perf_counter), Log(), endpoint=endpoint)
    with pytest.raises(Unreachable, match=endpoint):
        feed.open()
    feed.close()


async def test_a_port_that_is_taken_is_refused(context):
    async with Publisher() as publisher:
        feed = Feed(context, Turns(perf_counter), Log(), endpoint=publisher.endpoint, bind=True)
        with pytest.raises(Unreachable, match="in use"):
            feed.open()


async def test_a_feed_may_be_closed_by_what_it_tells(context):
    class Closes(Log):
        def live(self, sequence: int, payload: bytes) -> None:
            super().live(sequence, payload)
            feed.close()

    async with Publisher() as publisher:
        log = Closes()
        feed = Feed(context, Turns(perf_counter), log, endpoint=publisher.endpoint)
        feed.open()
        await publisher.subscribed()
        for _ in range(3):
            await publisher.send(b"x")
        assert await log.tells(1) == [("live", 0, b"x")]
        feed.close()


async def test_all_feeds_together_take_one_slice_of_a_round():
    now = 0.0
    turns = Turns(lambda: now, seconds=1.0)
    taken: list[str] = []
    left = {"a": 3, "b": 2}

    def taker(name: str):
        def take() -> bool:
            nonlocal now
            if not left[name]:
                return False
            left[name] -= 1
            now += 0.6  # a message costs more than half a slice
            taken.append(name)
            return True

        return take

    turns.ready(taker("a"))
    turns.ready(taker("b"))
    rounds: list[int] = []
    while sum(left.values()):
        before = len(taken)
        await asyncio.sleep(0)  # a round of the loop
        rounds.append(len(taken) - before)
    assert taken == ["a", "b", "a", "b", "a"]
    assert max(rounds) == 2


async def test_a_taker_that_fails_does_not_stop_the_others():
    turns = Turns(perf_counter)
    taken: list[int] = []
    failures: list[Any] = []

    def fails() -> bool:
        raise ValueError("a fault")

    def takes() -> bool:
        taken.append(1)
        return False

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    turns.ready(fails)
    turns.ready(takes)
    await eventually(lambda: taken, "the other was taken")
    assert [str(failure) for failure in failures] == ["a fault"]
