"""One proxy at a time ingests a replica; nothing of another, or of an epoch that is over, counts."""

import asyncio
import os
import signal
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from proxy.shared.base import Claim
from proxy.shared.layout import Names, handles_from
from tests.support.eventually import eventually
from tests.support.sharing import Fleet, Peer, Valkey, delta, fleet, handle_of, own_fleet, own_valkey, valkey

POLICIES = (
    *("noeviction", "allkeys-lru", "allkeys-random"),
    *("volatile-lru", "volatile-random", "volatile-ttl"),
)
__all__ = ["fleet", "own_fleet", "own_valkey", "valkey"]


async def claimed(peer: Peer, replica: str = "r") -> Claim:
    claim = await eventually(lambda: peer.pool.claim(replica), f"{peer.origin} gets the claim")
    assert isinstance(claim, Claim)
    return claim


async def test_one_of_many_gets_the_claim_and_the_next_gets_it_when_that_one_closes(fleet: Fleet) -> None:
    peers = [await fleet.join(f"p{index}") for index in range(4)]
    claims = await asyncio.gather(*(peer.pool.claim("r") for peer in peers))
    (first,) = [(peer, claim) for peer, claim in zip(peers, claims, strict=True) if claim]
    rest = [peer for peer in peers if peer is not first[0]]
    assert await first[0].pool.claim("r") is None
    await first[0].pool.close()
    assert first[1].lost.is_set()
    second = await rest[0].pool.claim("r")
    assert second is not None
    assert int(second.token.partition(":")[0]) > int(first[1].token.partition(":")[0])
    await rest[0].pool.release(second)
    assert await rest[1].pool.claim("r") is not None


async def test_a_proxy_that_was_killed_is_followed_by_another_which_resumes(own_fleet: Fleet) -> None:
    a, b = await own_fleet.join("a"), await own_fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "epoch", 41, delta(stored=range(3000)))
    a.ingest(claim, "epoch", 42, delta(stored=[7000], removed=range(10), copies=3))
    await eventually(lambda: a.pool.counts.commits == 2)
    await a.link.close()  # from here on it says no more, as if it were killed
    second = await claimed(b)
    resume = await b.pool.resume(second)
    assert resume is not None
    assert (resume.epoch, resume.seq) == ("epoch", 42)
    expected = [(handle_of(key), key, 1) for key in range(10, 3000)]
    assert sorted(resume.handles) == [*expected, (handle_of(7000), 7000, 3)]
    b.pool.commit(second, "epoch", 43, delta(stored=[8000], removed=[10]))
    await eventually(lambda: own_fleet.set_of("r") == {*range(11, 3000), 7000, 8000})
    a.pool.commit(claim, "epoch", 43, delta(stored=[9000]))
    assert b.pool.counts.rewrites == 0


async def test_commits_of_a_lapsed_claim_are_refused(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", 1, delta(stored=[1, 2]))
    await eventually(lambda: fleet.set_of("r") == {1, 2})
    fleet.redis.delete(fleet.names.own("r"))  # it has run out
    second = await claimed(b)
    a.ingest(claim, "e", 2, delta(stored=[3]))
    await eventually(claim.lost.is_set)
    assert fleet.set_of("r") == {1, 2}
    assert a.pool.counts.commits_refused == 1
    assert not second.lost.is_set()
    b.ingest(second, "e2", 1, delta(stored=[4]))
    await eventually(lambda: a.listener.held.get("r") == {4}, "it follows what it ingested before")
    a.pool.commit(claim, "e", 3, delta(stored=[5]))
    assert a.pool.counts.commits_refused == 2


async def test_a_claim_that_ran_out_unnoticed_goes_on_if_nobody_took_it(fleet: Fleet) -> None:
    a = await fleet.join("a")
    claim = await claimed(a)
    a.ingest(claim, "e", 1, delta(stored=[1]))
    await eventually(lambda: fleet.set_of("r") == {1})
    fleet.redis.delete(fleet.names.own("r"))
    a.ingest(claim, "e", 2, delta(stored=[2]))
    await eventually(lambda: fleet.set_of("r") == {1, 2})
    assert not claim.lost.is_set()
    assert fleet.redis.get(fleet.names.own("r")).decode() == claim.token


async def test_a_commit_writes_set_handles_sequence_and_log_together(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", 7, delta(stored=[1, 2**64 - 1], copies=300))
    await eventually(lambda: b.listener.held.get("r") == {1, 2**64 - 1})
    rep = fleet.redis.hgetall(fleet.names.rep("r"))
    assert (rep[b"epoch"], rep[b"seq"], rep[b"torn"], rep[b"blocks"]) == (b"e", b"7", b"0", b"2")
    handles = fleet.redis.hgetall(fleet.names.handles("r", "e"))
    packed = b"".join(handle + held for handle, held in handles.items())
    assert sorted(handles_from(packed)) == [(0, 2**64 - 1, 255), (2, 1, 255)]


async def test_a_large_batch_is_cut_and_its_sequence_counts_only_at_the_end(fleet: Fleet) -> None:
    a = await fleet.join("a")
    claim = await claimed(a)
    a.ingest(claim, "e", 1, delta(stored=range(2500)))
    a.ingest(claim, "e", 2, delta(stored=range(2500, 4000), removed=range(1500)))
    await eventually(lambda: fleet.redis.hget(fleet.names.rep("r"), "seq") == b"2")
    assert fleet.set_of("r") == set(range(1500, 4000))
    assert fleet.redis.hlen(fleet.names.handles("r", "e")) == 2500
    for _id, fields in fleet.redis.xrange(fleet.names.log):
        assert len(fields[b"b"]) <= 8 * 1000 + 64


async def test_what_was_being_written_when_its_writer_died_is_not_resumed(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", 1, delta(stored=range(10)))
    await eventually(lambda: a.pool.counts.commits == 1)
    fleet.redis.hset(fleet.names.rep("r"), "torn", 1)  # as between two calls
    await a.pool.release(claim)
    assert await b.pool.resume(await claimed(b)) is None


async def test_handles_that_do_not_tell_of_every_block_are_not_resumed(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    change = delta(stored=range(10))
    change.handles = []
    a.pool.commit(claim, "e", 1, change)
    await eventually(lambda: a.pool.counts.commits == 1)
    await a.pool.release(claim)
    assert await b.pool.resume(await claimed(b)) is None


async def test_E04_nothing_of_an_old_incarnation_survives_or_comes_back(fleet: Fleet) -> None:
    """Restarted between two looks at its health: the new epoch ends the old one everywhere, at once."""
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "started 100", 900, delta(stored=range(10_000)))
    await eventually(lambda: len(b.listener.held.get("r", ())) == 10_000)
    old = fleet.names.blocks("r", "started 100"), fleet.names.handles("r", "started 100")
    assert fleet.redis.exists(*old) == 2
    a.ingest(claim, "started 200", 0, delta(stored=[5]))
    await eventually(lambda: b.listener.held.get("r") == {5})
    assert b.listener.epochs["r"] == "started 200"
    assert fleet.redis.exists(*old) == 0
    a.pool.commit(claim, "started 100", 901, delta(stored=[6, 7]))  # it sat in a queue
    assert claim.lost.is_set()
    assert a.pool.counts.commits_refused == 1
    c = await fleet.join("c")
    assert c.listener.held == {"r": {5}}
    assert fleet.set_of("r") == {5}


async def test_E04_a_removed_replica_is_not_added_again_by_events_in_the_queue(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    claim.whole = lambda: a.whole("r")  # even one that could be written whole
    a.ingest(claim, "e", 1, delta(stored=range(1000)))
    await eventually(lambda: len(b.listener.held.get("r", ())) == 1000)
    for seq in (2, 3, 4):
        a.ingest(claim, "e", seq, delta(stored=[seq + 5000]))
    b.pool.forgotten("r")
    await eventually(claim.lost.is_set)
    for seq in (5, 6, 7):
        a.ingest(claim, "e", seq, delta(stored=[seq + 5000]))
    await eventually(lambda: ("forgotten", "r") in a.listener.said)
    c = await fleet.join("c")
    assert "r" not in c.listener.held
    assert fleet.set_of("r") == set()
    names = fleet.names
    left = {names.rep("r").encode(), names.own("r").encode()} & set(fleet.keys())
    assert left <= {names.rep("r").encode()}, "only what keeps late writers out"


async def test_D03_another_pod_at_the_address_inherits_nothing(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a, "http://127.0.0.2:9000")
    a.ingest(claim, "pod A", 900, delta(stored=range(100)))
    await eventually(lambda: len(b.listener.held.get("http://127.0.0.2:9000", ())) == 100)
    a.pool.forgotten("http://127.0.0.2:9000")
    again = await claimed(b, "http://127.0.0.2:9000")
    assert await b.pool.resume(again) is None
    b.ingest(again, "pod B", 0, delta(stored=[1000]))
    await eventually(lambda: a.listener.held.get("http://127.0.0.2:9000") == {1000})
    late = await fleet.join("c")
    assert late.listener.held == {"http://127.0.0.2:9000": {1000}}


async def test_a_new_holder_that_does_not_resume_begins_anew_in_the_same_epoch(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", 5, delta(stored=range(10)))
    await a.pool.release(claim)
    second = await claimed(b)
    b.ingest(second, "e", 1, delta(stored=[20]))
    await eventually(lambda: fleet.set_of("r") == {20})
    await eventually(lambda: a.listener.held.get("r") == {20})


async def test_how_a_feed_is_followed_is_told_and_read_at_the_start(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", 5, delta(stored=range(10)))
    await eventually(lambda: b.listener.modes.get("r") == "events")
    a.pool.announce(claim, "e", "stale")
    await eventually(lambda: b.listener.modes.get("r") == "stale")
    c = await fleet.join("c")
    assert c.listener.modes == {"r": "stale"}
    a.ingest(claim, "e2", 0, delta(stored=[1]))  # still stale, until said otherwise
    await eventually(lambda: c.listener.epochs.get("r") == "e2")
    await eventually(lambda: c.listener.modes["r"] == "stale")


async def test_how_well_a_feed_is_followed_is_told_anew_by_whoever_resumes(fleet: Fleet) -> None:
    """A new claim does not know what the last one said: the first word is told, whatever it is."""
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", 5, delta(stored=range(10)))
    a.pool.announce(claim, "e", "stale")
    await eventually(lambda: b.listener.modes.get("r") == "stale")
    await a.pool.release(claim)
    second = await claimed(b)
    assert await b.pool.resume(second) is not None
    b.pool.announce(second, "e", "events")
    await eventually(lambda: a.listener.modes.get("r") == "events")


async def test_what_changed_before_a_feed_counted_is_read_when_it_does(fleet: Fleet) -> None:
    """As every ingester begins: nothing is known, a few batches, and only then can it be relied upon."""
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    a.ingest(claim, "e", -1, delta(cleared=True))
    a.pool.announce(claim, "e", "learned")
    await eventually(lambda: b.listener.modes.get("r") == "learned")
    for seq in range(3):
        a.ingest(claim, "e", seq, delta(stored=[seq]))
    await eventually(lambda: a.pool.counts.commits == 4)
    a.pool.announce(claim, "e", "events")
    await eventually(lambda: b.listener.modes.get("r") == "events")
    assert b.listener.held["r"] == {0, 1, 2}
    a.ingest(claim, "e", 3, delta(stored=[3], removed=[0]))
    await eventually(lambda: b.listener.held["r"] == {1, 2, 3})


async def test_every_key_has_a_time_to_live(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a, "r:{}%\x00\ud800")
    a.ingest(claim, "e:{", 5, delta(stored=range(10)))
    a.pool.predicted(1, "r", array("Q", [1]))
    b.pool.forgotten("another")
    await eventually(lambda: b.listener.held.get("r:{}%\x00\ud800") == set(range(10)))
    await eventually(lambda: b.listener.said)
    await eventually(lambda: fleet.redis.exists(fleet.names.live("a")))
    keys = fleet.keys()
    kinds = {key.removeprefix(fleet.names.tag.encode()).split(b":")[0] for key in keys}
    assert kinds == {
        *(b"meta", b"log", b"number", b"fence", b"replicas", b"load"),
        *(b"rep", b"own", b"r", b"h", b"live"),
    }
    assert [key for key in keys if fleet.redis.pttl(key) < 0] == []
    assert {key[: key.index(b"}") + 2] for key in keys} == {fleet.names.tag.encode()}


def counted(what: Callable[[], Any]) -> Callable[[], bool]:
    return lambda: what() > 0


@pytest.mark.parametrize("away", ["stopped", "emptied"])
async def test_X02_nothing_waits_for_redis_and_all_is_there_again_afterwards(
    own_valkey: Valkey, own_fleet: Fleet, away: str
) -> None:
    a, b = await own_fleet.join("a"), await own_fleet.join("b")
    claim = await claimed(a)
    claim.whole = lambda: a.whole("r")
    a.ingest(claim, "e", 1, delta(stored=range(5000)))
    await eventually(lambda: len(b.listener.held.get("r", ())) == 5000)
    if away == "stopped":
        os.kill(own_valkey.pid, signal.SIGSTOP)
    else:
        own_valkey.stop()
    await eventually(lambda: not a.link.up and not b.link.up)
    for seq in range(2, 50):
        a.ingest(claim, "e", seq, delta(stored=[10_000 + seq], removed=[seq]))
        a.pool.predicted(seq, "other", array("Q", [1]))
    assert await b.pool.claim("r") is None
    assert await b.pool.claim("another") is None
    assert a.pool.counts.publications_dropped == 48
    if away == "stopped":
        os.kill(own_valkey.pid, signal.SIGCONT)
    else:
        own_valkey.start()
    expected = {0, 1, *range(50, 5000), *range(10_002, 10_050)}
    await eventually(lambda: own_fleet.set_of("r") == expected)
    await eventually(lambda: b.listener.held.get("r") == expected and b.listener.modes["r"] == "events")
    assert not claim.lost.is_set()
    assert a.pool.counts.rewrites == (away == "emptied")
    c = await own_fleet.join("c")
    assert c.listener.held == {"r": expected}


async def test_X02_an_ingester_that_cannot_tell_the_whole_begins_again(
    own_valkey: Valkey, own_fleet: Fleet
) -> None:
    a = await own_fleet.join("a")
    claim = await claimed(a)
    a.ingest(claim, "e", 1, delta(stored=range(100)))
    await eventually(lambda: own_fleet.set_of("r") == set(range(100)))
    own_valkey.stop()
    own_valkey.start()
    a.ingest(claim, "e", 2, delta(stored=[100]))
    await eventually(claim.lost.is_set)
    assert own_fleet.set_of("r") == set()
    second = await claimed(a)
    assert await a.pool.resume(second) is None
    a.ingest(second, "e", 3, delta(stored=[7]))
    await eventually(lambda: own_fleet.set_of("r") == {7})


async def test_too_much_that_waits_is_replaced_by_the_whole(
    own_valkey: Valkey, own_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.shared.commits.WAITING", 1000)
    a = await own_fleet.join("a")
    claim = await claimed(a)
    claim.whole = lambda: a.whole("r")
    a.ingest(claim, "e", 1, delta(stored=range(100)))
    await eventually(lambda: a.pool.counts.commits == 1)  # the reply has come, too
    assert own_fleet.set_of("r") == set(range(100))
    os.kill(own_valkey.pid, signal.SIGSTOP)
    for seq in range(2, 30):
        a.ingest(claim, "e", seq, delta(stored=range(seq * 100, seq * 100 + 100), removed=[seq]))
    os.kill(own_valkey.pid, signal.SIGCONT)
    expected = {0, 1, *range(30, 100), *range(200, 3000)}
    await eventually(lambda: own_fleet.set_of("r") == expected)
    assert a.pool.counts.commits_dropped > 0
    assert a.pool.counts.rewrites == 1
    assert own_fleet.redis.hget(own_fleet.names.rep("r"), "seq") == b"29"


@pytest.mark.parametrize("lost", ["r", "h", "rep", "own", "replicas", "fence"])
async def test_X06_an_evicted_key_is_noticed_and_written_again(fleet: Fleet, lost: str) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await claimed(a)
    claim.whole = lambda: a.whole("r")
    a.ingest(claim, "e", 1, delta(stored=range(3000)))
    await eventually(lambda: len(b.listener.held.get("r", ())) == 3000)
    names = fleet.names
    key = {
        "r": names.blocks("r", "e"),
        "h": names.handles("r", "e"),
        "rep": names.rep("r"),
        "own": names.own("r"),
        "replicas": names.replicas,
        "fence": names.fence,
    }[lost]
    assert fleet.redis.unlink(key) == 1
    # Without any event: found out when the claim is renewed. (A fence is made anew by the next claim.)
    if lost != "fence":
        await eventually(lambda: fleet.redis.exists(key))
    await eventually(lambda: fleet.set_of("r") == set(range(3000)))
    assert a.pool.counts.rewrites == (lost in {"r", "h", "rep"})
    a.ingest(claim, "e", 2, delta(stored=[9000]))
    await eventually(lambda: b.listener.held.get("r") == {*range(3000), 9000})
    c = await fleet.join("c")
    assert c.listener.held["r"] == {*range(3000), 9000}
    assert not claim.lost.is_set()
    assert await c.pool.claim("s") is not None


async def test_X06_a_full_redis_refuses_softly_and_is_used_again_when_there_is_room(
    own_valkey: Valkey, own_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.shared.commits.AGAIN_FIRST", 0.3)
    a, b = await own_fleet.join("a"), await own_fleet.join("b")
    claim = await claimed(a)
    claim.whole = lambda: a.whole("r")
    a.ingest(claim, "e", 1, delta(stored=range(5000)))
    await eventually(lambda: len(b.listener.held.get("r", ())) == 5000)
    own_fleet.redis.config_set("maxmemory", 1)
    a.ingest(claim, "e", 2, delta(stored=range(5000, 6000)))
    a.pool.retracted(1)
    await eventually(counted(lambda: a.pool.counts.full))
    await eventually(counted(lambda: a.pool.counts.publications_dropped))
    await eventually(lambda: b.listener.modes.get("r") == "learned", "what is no longer kept up is not used")
    a.ingest(claim, "e", 3, delta(stored=[9000], removed=range(100)))
    assert own_fleet.set_of("r") == set()
    own_fleet.redis.config_set("maxmemory", 0)
    expected = {*range(100, 6000), 9000}
    await eventually(lambda: own_fleet.set_of("r") == expected)
    await eventually(lambda: b.listener.held.get("r") == expected and b.listener.modes["r"] == "events")
    assert not claim.lost.is_set()


@pytest.mark.parametrize(
    "policy",
    ["noeviction", "allkeys-lru", "allkeys-random", "volatile-lru", "volatile-random", "volatile-ttl"],
)
async def test_X06_a_limit_below_the_index_never_raises_and_never_claims_what_is_gone(
    own_valkey: Valkey, own_fleet: Fleet, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.shared.commits.AGAIN_FIRST", 0.3)
    redis = own_fleet.redis
    redis.set("somebody else's", "x" * 100_000)
    a, b = await own_fleet.join("a"), await own_fleet.join("b")
    redis.config_set("maxmemory-policy", policy)
    redis.config_set("maxmemory", redis.info("memory")["used_memory"] + (3 << 20))
    claims: dict[str, Claim] = {}
    for seq in range(1, 9):  # 8 replicas of 10,000 blocks: some 10 MB
        for replica in map(str, range(8)):
            claim = claims.get(replica)
            if claim is None or claim.lost.is_set():
                claim = await a.pool.claim(replica)
                if claim is None:
                    continue
                claims[replica] = claim
                claim.whole = lambda replica=replica: a.whole(replica)
            base = int(replica) << 32
            stored = range(base + seq * 1250, base + seq * 1250 + 1250)
            removed = range(base + seq * 1250 - 1300, base + seq * 1250 - 1250) if seq > 1 else ()
            a.ingest(claim, "e", seq, delta(stored=stored, removed=removed))
        await asyncio.sleep(0.05)
    for replica, (_epoch, _seq, held) in a.books.items():
        assert own_fleet.set_of(replica) <= held | set(
            range(int(replica) << 32, (int(replica) << 32) + 20_000)
        )
    redis.config_set("maxmemory", 0)
    for replica in map(str, range(8)):
        if replica not in a.books or claims[replica].lost.is_set():
            continue
        expected = a.books[replica][2]
        whole = f"{replica} is whole again"  # it waits longer each time that Redis was full
        await eventually(lambda r=replica, e=expected: own_fleet.set_of(r) == e, whole, within=60)
        await eventually(lambda r=replica, e=expected: b.listener.held.get(r) == e)
    assert any(not claim.lost.is_set() for claim in claims.values())


async def test_names_cannot_break_out_of_the_tag() -> None:
    names = Names("a}b:v1:{c", "d}:rep:{x")
    assert names.tag.count("{") == names.tag.count("}") == 1
    assert Names("a", "b:v1:c").tag != Names("a:v1:b", "c").tag
    assert names.blocks("a:b", "c") != names.blocks("a", "b:c")
