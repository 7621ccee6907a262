"""Following replicas' events, from a publisher on a real socket to what the index says."""

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.description import Description, FeedSpec
from proxy.engine_tokens import EngineTokens
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.index.truth import TrueIndex
from proxy.ingest import Ingest
from proxy.model_pool import ModelPool
from proxy.prompt.blocks import chain
from proxy.prompt.keyer import Keyer
from proxy.shared.base import Alone, Claim, Resume
from proxy.tasks import Tasks
from proxy.watch import Home
from tests.support.eventually import eventually, turns
from tests.support.publisher import CLEARED, Publisher, removed, stored

SIZE = 16
CAPACITY = 1000


def tokens(blocks: int, seed: int = 0) -> list[int]:
    """The token ids of so many blocks, another prompt for each seed."""
    return [seed * 1_000_000 + number for number in range(blocks * SIZE)]


class Shared(Alone):
    """A pool of one that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[Claim] = []
        self.free = True
        self.left: Resume | None = None
        self.told: list[Any] = []
        self.forgot: list[str] = []

    async def claim(self, replica: str) -> Claim | None:
        if not self.free:
            return None
        claim = await super().claim(replica)
        self.claims.append(claim)
        return claim

    async def resume(self, claim: Claim) -> Resume | None:
        return self.left

    def commit(self, claim: Claim, epoch: str, seq: int, delta: Any) -> None:
        self.told.append((epoch, seq, delta.cleared, list(delta.removed), list(delta.stored)))

    def announce(self, claim: Claim, epoch: str, mode: Any) -> None:
        self.told.append((epoch, mode))

    def forgotten(self, replica: str) -> None:
        self.forgot.append(replica)


class Rig:
    """One replica, `a`, and everything between its publisher and the index."""

    def __init__(self, publisher: Publisher | None, **options: Any) -> None:
        self.now = 0.0
        self.fleet = Fleet(lambda: self.now)
        self.fleet.add("a", "http://127.0.0.1:1")
        self.index = TrueIndex(MemoryIndex(), lambda: self.now)
        self.model = ModelPool("m")
        self.model.engine_tokens = EngineTokens.__new__(EngineTokens)  # so that prompts count as tokens
        self.model.keyer = Keyer(secret=b"s", model="m", block_size=SIZE)
        self.shared = Shared()
        self.tasks = Tasks()
        self.started: float | None = 1.0
        """What a look at the replica finds."""
        self.looks = 0
        self.answers = True
        self.feed = None
        if publisher is not None:
            self.feed = FeedSpec(publisher.endpoint, replay=publisher.replay_endpoint, topic="kv@")
        options = {"silent_seconds": 60.0, "cooldown_seconds": 0.0, "claim_seconds": 0.02, **options}
        self.ingest = Ingest(
            self.fleet,
            self.index,
            self.tasks,
            home=lambda name: Home(self.model, self.shared) if name in self.fleet.replicas else None,
            look=self.look,
            forget=self.forget,
            **options,
        )

    def forget(self, name: str) -> None:
        self.index.forget(name)
        self.index.resize(name, CAPACITY)

    async def look(self, name: str) -> bool:
        self.looks += 1
        await asyncio.sleep(0)
        if self.answers and self.fleet.replicas[name].description.started_at != self.started:
            self.restart()
        return self.answers

    def restart(self) -> None:
        """As the probes tell of it."""
        self.forget("a")
        self.ingest.restarted("a")
        self.describe()

    def describe(self, **fields: Any) -> None:
        fields = {
            "engine": "vllm",
            "models": {"m": None},
            "block_size": SIZE,
            "started_at": self.started,
            "feed": self.feed,
            **fields,
        }
        self.fleet.describe("a", Description(**fields))
        self.ingest.described("a")

    def keys(self, ids: list[int], lora: str | None = None, salt: str | None = None) -> array:
        assert self.model.keyer is not None
        return chain(array("I", ids).tobytes(), SIZE, self.model.keyer.chain_start(lora, salt))[0]

    def held(self, ids: list[int]) -> int:
        """Blocks of this prompt that the index believes the replica to hold."""
        return self.index.match(self.keys(ids)).get("a", 0)

    async def holds(self, ids: list[int], blocks: int) -> None:
        await eventually(lambda: self.held(ids) == blocks, f"{blocks} blocks are held")

    async def becomes(self, mode: str) -> None:
        await eventually(lambda: self.ingest.mode("a") == mode, f"{mode}, not {self.ingest.mode('a')}")


@asynccontextmanager
async def rig(publisher: Publisher | None, *, described: bool = True, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(publisher, **options)
    if described:
        rig.describe()
    try:
        yield rig
    finally:
        await rig.ingest.close()
        await rig.tasks.close()


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    async with Publisher() as publisher:
        yield publisher


async def test_what_the_engine_stores_and_removes_is_what_the_index_says(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        await publisher.publish(stored([1, 2, 3], tokens(3)))
        await it.holds(tokens(3), 3)
        await publisher.publish(removed(2))
        await it.holds(tokens(3), 1)
        await publisher.publish(stored([2], tokens(3)[SIZE : 2 * SIZE], parent=1))
        await it.holds(tokens(3), 3)
        keys = list(it.keys(tokens(3)))
        changes = [told for told in it.shared.told if len(told) == 5]
        assert changes == [
            ("1.0", -1, True, [], []),
            ("1.0", 0, False, [], sorted(keys, key=changes[1][4].index)),
            ("1.0", 1, False, [keys[1]], []),
            ("1.0", 2, False, [], [keys[1]]),
        ]
        assert it.ingest.counts.events == {"Stored": 2, "Removed": 1}
        assert it.ingest.counts.batches == 3


async def test_adapters_and_salts_have_keys_of_their_own(publisher):
    async with rig(publisher) as it:
        await publisher.publish(
            stored([1], tokens(1), lora_name="ada"), stored([2], tokens(1), extra_keys=[["A"]])
        )
        await eventually(lambda: it.index.match(it.keys(tokens(1), lora="ada")) == {"a": 1}, "the adapter's")
        assert it.index.match(it.keys(tokens(1), salt="A")) == {"a": 1}
        assert it.held(tokens(1)) == 0


async def test_what_was_published_before_is_replayed(publisher):
    for number in range(20):
        await publisher.publish(stored([number], tokens(1, number)))
    async with rig(publisher) as it:
        await it.becomes("events")
        assert [it.held(tokens(1, number)) for number in range(20)] == [1] * 20
        assert it.ingest.counts.gaps == it.ingest.counts.lost == 0


async def test_a_lost_message_is_asked_for(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        await publisher.publish(stored([1], tokens(1)))
        await publisher.publish(stored([2], tokens(2)[SIZE:], parent=1), lose=True)
        await publisher.publish(stored([3], tokens(3)[2 * SIZE :], parent=2))
        await it.holds(tokens(3), 3)
        assert it.ingest.counts.gaps == 1
        assert it.ingest.counts.lost == 0
        assert it.ingest.mode("a") == "events"


async def test_E02_what_was_removed_meanwhile_does_not_come_back_with_a_late_replay(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        publisher.answers.clear()
        await publisher.publish(stored([1], tokens(1)), lose=True)
        await publisher.publish(removed(1))
        await publisher.publish(stored([2], tokens(1, 2)))
        await eventually(lambda: len(publisher.asked) == 2, "the gap is asked for")
        assert it.held(tokens(1, 2)) == 0  # it waits for its turn
        publisher.answers.set()
        await it.holds(tokens(1, 2), 1)
        assert it.held(tokens(1)) == 0


async def test_a_gap_that_cannot_be_filled_is_stale_and_then_events_again(publisher, caplog):
    async with rig(publisher, cooldown_seconds=0.2) as it:
        await it.becomes("events")
        await publisher.publish(stored([1], tokens(1)))
        await it.holds(tokens(1), 1)
        await publisher.publish(removed(1), lose=True)
        publisher.buffer.clear()  # too old for the publisher
        await publisher.publish(stored([2], tokens(1, 2)))
        await it.becomes("stale")
        assert it.held(tokens(1)) == 0  # it may be gone, and is
        await it.holds(tokens(1, 2), 1)
        assert it.ingest.counts.lost == 1
        await it.becomes("events")
        assert it.held(tokens(1, 2)) == 1
    assert "some of its KV events are lost" in caplog.text


async def test_without_a_replay_a_feed_joined_midway_is_stale_while_older_blocks_are_in_use(
    publisher, caplog
):
    await publisher.publish(stored([1], tokens(1)))
    async with rig(publisher, described=False, cooldown_seconds=0.3) as it:
        it.feed = FeedSpec(publisher.endpoint)
        it.describe()
        await publisher.subscribed()
        await publisher.publish(stored([2], tokens(2)[SIZE:], parent=1))
        await it.becomes("stale")
        await eventually(lambda: it.ingest.counts.unkeyed == 1, "its parent is unknown")
        await publisher.publish(stored([3], tokens(1, 3)))
        await it.becomes("events")
        assert it.held(tokens(1, 3)) == 1
    assert "replay_endpoint" in caplog.text


async def test_a_clear_forgets_the_replicas_blocks_and_no_others(publisher):
    async with rig(publisher) as it:
        it.index.set_mode("b", "events")
        it.index.apply("b", cleared=False, removed=[], stored=it.keys(tokens(5)))
        await publisher.publish(stored([1, 2, 3, 4, 5], tokens(5)))
        await it.holds(tokens(5), 5)
        await publisher.publish(CLEARED, stored([1], tokens(1)))
        await it.holds(tokens(5), 1)
        assert it.index.match(it.keys(tokens(5)))["b"] == 5


@pytest.mark.parametrize("first_seen", [0, 37])
async def test_E03_a_restart_clears_and_its_new_numbers_count(publisher, first_seen):
    async with rig(publisher) as it:
        await it.becomes("events")
        for number in range(50):
            await publisher.publish(stored([number], tokens(1, number)))
        await it.holds(tokens(1, 49), 1)
        publisher.sequence, publisher.buffer = 0, []  # a new process, before anybody has noticed
        it.started = 2.0
        for number in range(first_seen):
            await publisher.publish(stored([number], tokens(1, 100 + number)), lose=True)
        await publisher.publish(stored([200], tokens(1, 200)))
        await it.holds(tokens(1, 200), 1)
        assert it.index.confirmed_blocks("a") == first_seen + 1
        assert it.held(tokens(1, 49)) == 0
        assert it.looks


async def test_E03_a_message_that_comes_twice_changes_nothing(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        for number in range(10):
            await publisher.publish(stored([number], tokens(1, number)))
        await publisher.deliver(*publisher.buffer[8])
        await publisher.publish(stored([99], tokens(1, 99)))
        await it.holds(tokens(1, 99), 1)
        assert it.index.confirmed_blocks("a") == 11
        assert it.ingest.counts.restarts == 0


async def test_E03_where_no_start_time_is_told_a_replay_that_begins_anew_tells_of_a_restart(publisher):
    async with rig(publisher, described=False) as it:
        it.started = None
        it.describe()
        await it.becomes("events")
        for number in range(10):
            await publisher.publish(stored([number], tokens(1, number)))
        await it.holds(tokens(1, 9), 1)
        publisher.sequence, publisher.buffer = 0, []
        await publisher.publish(stored([0], tokens(1, 100)))
        await it.holds(tokens(1, 100), 1)
        assert it.index.confirmed_blocks("a") == 1
        assert it.ingest.counts.restarts == 1
        epochs = {told[0] for told in it.shared.told}
        assert len(epochs) == 2  # so that the other proxies forget as well


async def test_E04_events_of_a_process_that_is_gone_cannot_add_anything(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        await publisher.publish(stored([1], tokens(1)))
        await it.holds(tokens(1), 1)
        following = it.ingest.following("a")
        assert following is not None
        await publisher.publish(stored([2], tokens(1, 2)))  # on its way while the restart is noticed
        publisher.sequence, publisher.buffer = 0, []
        it.started = 2.0
        it.restart()
        assert it.held(tokens(1)) == 0
        following.live(1, b"late")
        following.replayed(1, b"late")
        await publisher.publish(stored([3], tokens(1, 3)))
        await it.holds(tokens(1, 3), 1)
        assert it.index.confirmed_blocks("a") == 1
        assert {told[0] for told in it.shared.told if told[0] != "1.0"} == {"2.0"}


async def test_E04_what_a_removed_replica_has_queued_is_not_applied(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        for number in range(3):
            await publisher.publish(stored([number], tokens(1, number)))
        it.forget("a")
        it.ingest.removed("a")
        it.fleet.remove("a")
        await turns(20)
        assert it.index.blocks("a") == it.index.confirmed_blocks("a") == 0
        assert it.shared.forgot == ["a"]


async def test_D03_another_replica_at_the_same_address_inherits_nothing(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1], tokens(1)))
        await it.holds(tokens(1), 1)
        old, it.model, it.shared = it.shared, ModelPool("n"), Shared()
        it.model.keyer = Keyer(secret=b"s", model="n", block_size=SIZE)
        it.model.engine_tokens = EngineTokens.__new__(EngineTokens)
        publisher.sequence, publisher.buffer, it.started = 0, [], 2.0
        it.forget("a")
        it.ingest.restarted("a")
        it.describe(models={"n": None})
        await eventually(lambda: old.forgot == ["a"], "what was shared of the old one is forgotten")
        assert it.index.blocks("a") == 0
        await publisher.publish(stored([1], tokens(1, 5)))
        await it.holds(tokens(1, 5), 1)
        assert it.index.confirmed_blocks("a") == 1
        assert {told[0] for told in it.shared.told} == {"2.0"}


@pytest.mark.parametrize("factor", [0.5, 4])
async def test_E08_other_block_sizes_that_divide_are_followed(publisher, factor):
    async with rig(publisher) as it:
        size = int(SIZE * factor)
        ids = tokens(8)
        handles = list(range(1, len(ids) // size + 1))
        await publisher.publish(stored(handles, ids, block_size=size))
        await it.holds(ids, 8)
        await publisher.publish(removed(handles[-1]))
        await it.holds(ids, 8 - max(1, int(factor)))


async def test_E08_block_sizes_that_do_not_fit_are_refused_with_a_loud_word(publisher, caplog):
    async with rig(publisher) as it:
        await publisher.publish(stored([1], [1] * 24, block_size=24))
        await eventually(lambda: "blocks of 24 tokens" in caplog.text, "it is said")
        assert it.ingest.mode("a") == "learned"
        assert it.ingest.following("a") is None
        claims = len(it.shared.claims)
        await asyncio.sleep(0.1)  # several times what a next try would wait
        assert len(it.shared.claims) == claims
        assert caplog.text.count("blocks of 24 tokens") == 1


async def test_E12_a_replica_that_never_publishes_is_learned_and_one_line_says_what_to_do(publisher, caplog):
    async with rig(publisher, silent_seconds=0.05) as it:
        await it.becomes("events")  # it has answered a replay
        for _ in range(3):
            it.ingest.served("a", 500)
            await asyncio.sleep(0.04)
        assert it.ingest.mode("a") == "learned"
        assert "a" in it.fleet.replicas
        it.ingest.served("a", 500)
        assert caplog.text.count("--kv-events-config") == 1
        await publisher.publish(stored([1], tokens(1)))
        await it.becomes("events")
        assert it.held(tokens(1)) == 1


async def test_E12_a_replica_without_traffic_or_with_short_prompts_may_be_silent(publisher):
    async with rig(publisher, silent_seconds=0.01) as it:
        await it.becomes("events")
        for _ in range(5):
            it.ingest.served("a", SIZE - 1)
            await asyncio.sleep(0.01)
        assert it.ingest.mode("a") == "events"
        for number in range(5):
            it.ingest.served("a", SIZE)
            await publisher.publish(stored([number], tokens(1, number)))
            await it.holds(tokens(1, number), 1)
        assert it.ingest.mode("a") == "events"


async def test_E12_after_a_silence_nothing_is_missing(publisher):
    async with rig(publisher, silent_seconds=0.0) as it:
        await publisher.publish(stored([1, 2], tokens(2)))
        await it.holds(tokens(2), 2)
        it.ingest.served("a", 500)
        assert it.ingest.mode("a") == "learned"
        await publisher.publish(removed(2), lose=True)
        await publisher.publish(stored([3], tokens(1, 3)))
        await it.becomes("events")
        assert (it.held(tokens(2)), it.held(tokens(1, 3))) == (1, 1)


async def test_prompts_in_bytes_cannot_be_compared_with_events(publisher, caplog):
    async with rig(publisher, described=False) as it:
        it.model.engine_tokens = None
        it.describe()
        await eventually(lambda: "cannot be used" in caplog.text, "it is said")
        assert it.ingest.mode("a") == "bytes"
        assert it.shared.claims == []


async def test_a_tokenizer_that_is_given_up_ends_the_following(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        it.model.engine_tokens, it.model.keyer = None, Keyer(secret=b"s", model="m", block_size=SIZE)
        await eventually(lambda: it.ingest.following("a") is None, "it is not followed any more")
        assert it.ingest.mode("a") == "bytes"


async def test_it_waits_for_the_tokenizer(publisher):
    async with rig(publisher, described=False) as it:
        keyer, it.model.keyer = it.model.keyer, None
        it.describe()
        await publisher.publish(stored([1], tokens(1)))
        await turns(10)
        it.model.keyer = keyer
        await it.holds(tokens(1), 1)


async def test_data_parallel_ranks_behind_one_address_are_not_guessed_at(publisher, caplog):
    async with rig(publisher, described=False) as it:
        it.feed = FeedSpec(publisher.endpoint, ranks=2)
        it.describe()
        await eventually(lambda: "2 data-parallel ranks" in caplog.text, "it is said")
        assert it.ingest.mode("a") == "learned"


async def test_an_endpoint_that_is_none_is_told_once(caplog):
    async with rig(None, described=False) as it:
        it.feed = FeedSpec("nonsense")
        it.describe()
        await eventually(lambda: len(it.shared.claims) > 3, "it is tried again")
        assert caplog.text.count("cannot be followed") == 1


async def test_a_replica_without_a_feed_is_left_alone(caplog):
    async with rig(None) as it:
        it.ingest.served("a", 1000)
        it.ingest.flushed("a")
        it.ingest.resync("a", "a test")
        it.ingest.restarted("a")
        it.ingest.described("a")
        assert it.ingest.mode("a") == "learned"
    assert not caplog.records


async def test_another_proxy_goes_on_where_this_one_lost_the_claim(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1], tokens(1)))
        await publisher.publish(stored([2], tokens(2)[SIZE:], parent=1))
        await it.holds(tokens(2), 2)
        it.shared.free = False
        it.shared.claims[-1].lost.set()
        await publisher.publish(stored([3], tokens(1, 3)))
        await eventually(lambda: it.ingest.following("a") is None, "it follows no more")
        assert it.held(tokens(1, 3)) == 0
        keys = it.keys(tokens(2))
        it.shared.left = Resume("1.0", 1, [(1, keys[0], 1), (2, keys[1], 1)])
        publisher.buffer = publisher.buffer[1:]  # what was committed is not all to be had any more
        it.shared.free = True
        await it.holds(tokens(1, 3), 1)
        await it.becomes("events")
        assert it.held(tokens(2)) == 2
        await publisher.publish(stored([4], tokens(3)[2 * SIZE :], parent=2), removed(1))
        await it.holds(tokens(3), 0)  # the handles of before are known
        assert it.index.confirmed_blocks("a") == 3


async def test_what_another_proxy_left_of_another_process_is_not_taken_over(publisher):
    async with rig(publisher, described=False) as it:
        it.index.set_mode("a", "events")  # as the other proxy has told
        it.index.apply("a", cleared=False, removed=[], stored=it.keys(tokens(1, 7)))
        it.shared.left = Resume("0.5", 40, [(7, it.keys(tokens(1, 7))[0], 1)])
        await publisher.publish(stored([1], tokens(1)))
        it.describe()
        await it.holds(tokens(1), 1)
        assert it.held(tokens(1, 7)) == 0
        assert it.shared.told[0] == ("1.0", -1, True, [], [])


async def test_what_the_other_proxies_have_lost_can_be_told_again(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1, 2, 3], tokens(3)), stored([1], tokens(1)), removed(2))
        await it.holds(tokens(3), 1)
        whole = it.shared.claims[-1].whole()
        first, _, third = it.keys(tokens(3))
        assert (whole.epoch, whole.seq, whole.delta.cleared) == ("1.0", 0, True)
        assert sorted(whole.delta.stored) == sorted((first, third))
        assert sorted(whole.delta.handles) == [(1, first, 2), (3, third, 1)]
        it.ingest.following("a").close()
        assert it.shared.claims[-1].whole() is None


async def test_a_flush_is_known_before_the_engine_says_so(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1, 2], tokens(2)))
        await it.holds(tokens(2), 2)
        it.ingest.flushed("a")
        assert it.held(tokens(2)) == 0
        assert it.ingest.mode("a") == "events"
        assert it.shared.told[-1][2] is True
        await publisher.publish(CLEARED, stored([1], tokens(1)))
        await it.holds(tokens(2), 1)


async def test_a_flush_of_a_replica_that_another_proxy_follows_keeps_its_mode():
    async with rig(None) as it:
        it.index.set_mode("a", "events")
        it.index.apply("a", cleared=False, removed=[], stored=it.keys(tokens(1)))
        it.ingest.flushed("a")
        assert it.held(tokens(1)) == 0
        it.index.apply("a", cleared=False, removed=[], stored=it.keys(tokens(1)))
        assert it.held(tokens(1)) == 1


async def test_drift_is_answered_by_reading_everything_anew(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1, 2], tokens(2)))
        await it.holds(tokens(2), 2)
        it.index.apply("a", cleared=False, removed=[], stored=it.keys(tokens(1, 9)))  # nobody knows why
        it.ingest.resync("a", "a test")
        assert it.ingest.mode("a") == "stale"
        await it.becomes("events")
        assert (it.held(tokens(2)), it.held(tokens(1, 9))) == (2, 0)


async def test_a_publisher_that_comes_back_is_looked_at_and_what_it_said_meanwhile_is_read(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1], tokens(1)))
        await it.holds(tokens(1), 1)
        looks = it.looks
        await publisher.stop()
        await eventually(lambda: it.looks > looks, "it is looked at")
        buffer = publisher.buffer[:]
        await publisher.start()  # the same process: only its connection was gone
        publisher.buffer = buffer
        publisher.sequence = 1
        await publisher.publish(stored([2], tokens(2)[SIZE:], parent=1), lose=True)
        await it.holds(tokens(2), 2)  # although nothing is published after it


async def test_a_restart_while_nobody_listened_is_found_when_the_publisher_is_joined_again(publisher):
    async with rig(publisher) as it:
        await publisher.publish(stored([1], tokens(1)))
        await it.holds(tokens(1), 1)
        await publisher.stop()
        it.answers = False
        await turns(10)
        it.answers, it.started = True, 2.0
        await publisher.start()
        await eventually(lambda: it.held(tokens(1)) == 0, "what the old process held is forgotten")
        await it.becomes("events")


async def test_a_message_that_is_no_batch_is_counted_and_the_next_ones_count(publisher):
    async with rig(publisher) as it:
        await it.becomes("events")
        await publisher.send(b"\xc1 nonsense")
        await publisher.publish({"type": "Unheard"}, stored([1], tokens(1)))
        await it.holds(tokens(1), 1)
        assert it.ingest.counts.skipped == 2


async def test_many_batches_of_a_replay_leave_the_loop_its_turns(publisher):
    for number in range(400):
        hashes = [number * 64 + each for each in range(64)]
        await publisher.publish(stored(hashes, tokens(64, number)))
    async with rig(publisher) as it:
        rounds = 0
        while it.index.confirmed_blocks("a") < 400 * 64:
            await asyncio.sleep(0)
            rounds += 1
        assert rounds > 20


async def test_it_logs_nothing_where_all_is_well(publisher, caplog):
    caplog.set_level(logging.WARNING)
    async with rig(publisher) as it:
        await publisher.publish(stored([1], tokens(1)))
        await it.becomes("events")
    assert not caplog.records
