"""Starting beside others: settings that must agree, what is there already, what the others have in flight."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import AsyncExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from proxy.description import NOTHING, Load
from proxy.shared import commits, loads
from proxy.shared.base import Claim, Disagreement
from proxy.shared.loads import pack, unpack
from tests.support.eventually import eventually
from tests.support.sharing import SECRET, Fleet, Peer, Valkey, delta, fleet, own_fleet, own_valkey, valkey

__all__ = ["fleet", "own_fleet", "own_valkey", "valkey"]


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("secret", {"secret": b"another"}),
        ("block size", {"block_size": 32}),
        ("tokenizer", {"tokenizer": "other"}),
    ],
)
async def test_a_proxy_that_differs_is_refused_and_told_in_what(
    fleet: Fleet, what: str, other: dict[str, Any]
) -> None:
    await fleet.join("a")
    with pytest.raises(Disagreement) as refused:
        await fleet.join("b", **other)
    assert refused.value.what == what
    assert refused.value.ours != refused.value.theirs
    assert refused.value.ours in str(refused.value)
    assert refused.value.theirs in str(refused.value)
    held = b"".join(part for pair in fleet.redis.hgetall(fleet.names.meta).items() for part in pair)
    assert SECRET not in held
    assert SECRET.decode() not in str(refused.value)


async def test_another_layout_is_refused(fleet: Fleet) -> None:
    a = await fleet.join("a")
    fleet.redis.hset(fleet.names.meta, "layout", "2")
    with pytest.raises(Disagreement) as refused:
        await a.pool.agree()
    assert (refused.value.what, refused.value.ours, refused.value.theirs) == ("layout", "1", "2")


async def test_many_that_start_at_once_agree_on_the_first(fleet: Fleet) -> None:
    joined = await asyncio.gather(
        *(fleet.join(f"p{size}-{index}", block_size=size) for size in (16, 32) for index in range(4)),
        return_exceptions=True,
    )
    peers = [peer for peer in joined if isinstance(peer, Peer)]
    refused = [error for error in joined if isinstance(error, Disagreement)]
    assert len(peers) == len(refused) == 4


async def test_a_difference_found_later_ends_the_sharing_and_its_end_begins_it_again(
    own_valkey: Valkey, own_fleet: Fleet
) -> None:
    """Redis was emptied, and a proxy with other settings was there first."""
    a = await own_fleet.join("a")
    claim = await a.pool.claim("r")
    assert claim is not None
    own_valkey.stop()
    own_valkey.start()
    own_fleet.redis.delete(own_fleet.names.meta)
    own_fleet.redis.hset(own_fleet.names.meta, mapping={"layout": "1", "secret": "another"})
    await eventually(lambda: not a.pool.up and a.link.up)
    if not claim.lost.is_set():  # it agreed before the other was there, and looks again every ten seconds
        a.pool._look.set()
    await eventually(claim.lost.is_set)
    assert await a.pool.claim("r") is None
    a.pool.retracted(1)
    assert a.pool.counts.publications_dropped == 1
    own_fleet.redis.delete(own_fleet.names.meta)
    a.pool._look.set()
    await eventually(lambda: a.pool.up)
    assert await eventually(lambda: a.pool.claim("r"))


async def test_a_proxy_may_start_before_redis_does(own_valkey: Valkey, own_fleet: Fleet) -> None:
    own_valkey.stop()
    a = await own_fleet.join("a", synced=False)
    assert not a.pool.up
    assert await a.pool.claim("r") is None
    a.pool.predicted(1, "r", array("Q", [1]))
    own_valkey.start()
    claim = await eventually(lambda: a.pool.claim("r"))
    a.ingest(claim, "e", 1, delta(stored=[1]))
    await eventually(lambda: own_fleet.set_of("r") == {1})


async def test_a_proxy_that_starts_reads_what_changes_meanwhile(fleet: Fleet) -> None:
    a = await fleet.join("a")
    claims = {}
    for replica in ("x", "y"):
        claims[replica] = claim = await a.pool.claim(replica)
        assert claim is not None
        a.ingest(claim, "e", 0, delta(stored=range(20_000)))
    await eventually(lambda: a.pool.counts.commits == 2)
    b = await fleet.join("b", synced=False)
    seq = 0
    while not b.pool.synced or seq < 50:
        seq += 1
        a.ingest(claims["x"], "e", seq, delta(stored=[50_000 + seq], removed=range(seq * 20, seq * 20 + 20)))
        if seq == 20:
            a.ingest(claims["y"], "e2", 0, delta(stored=range(7)))  # it has restarted
        await asyncio.sleep(0.001)
    expected = {replica: held for replica, (_, _, held) in a.books.items()}
    await eventually(lambda: b.listener.held == expected)
    assert b.listener.epochs == {"x": "e", "y": "e2"}
    assert b.listener.lost == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["commit"] * 6 + ["restart", "clear", "release", "forget", "lose", "gap"]),
        st.integers(0, 1),
        st.integers(0, 40),
    ),
    max_size=25,
)


@effort(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
async def test_whatever_happens_the_followers_end_with_what_the_ingester_knows(
    valkey: Valkey, plan: list[tuple[str, int, int]]
) -> None:
    """Two proxies that pass a replica to and fro, and one that only listens."""
    async with AsyncExitStack() as stack:
        stack.enter_context(patch.object(commits, "AGAIN_FIRST", 0.01))
        fleet = Fleet(valkey, stack)
        peers = [await fleet.join(origin) for origin in ("a", "b")]
        watcher = await fleet.join("w")
        claim: Claim | None = None
        holder, epoch, seq, held = peers[0], 0, 0, set[int]()
        for what, who, value in plan:
            if claim is None or claim.lost.is_set():
                holder = peers[who]
                claim = await eventually(lambda holder=holder: holder.pool.claim("r"))
                resume = await holder.pool.resume(claim)
                if resume is None or resume.epoch != f"e{epoch}" or resume.seq != seq:
                    # A past of the feed; what is missing would be replayed. Here it is not.
                    epoch, seq, held = epoch + 1, 0, set()
                else:
                    assert {key for _, key, _ in resume.handles} == held
                holder.books["r"] = (f"e{epoch}", seq, set(held))
                claim.whole = lambda holder=holder: holder.whole("r")
            seq += 1
            if what == "commit":
                removed = {key for key in held if key % 3 == value % 3}
                held = (held - removed) | set(range(value, value + 5))
                holder.ingest(claim, f"e{epoch}", seq, delta(stored=range(value, value + 5), removed=removed))
            elif what == "restart":
                epoch, held = epoch + 1, {value}
                holder.ingest(claim, f"e{epoch}", seq, delta(stored=[value]))
            elif what == "clear":
                held = {value}
                holder.ingest(claim, f"e{epoch}", seq, delta(cleared=True, stored=[value]))
            else:
                seq -= 1
                if what == "release":
                    await holder.pool.release(claim)
                elif what == "forget":
                    peers[who].pool.forgotten("r")
                    epoch, seq, held = epoch + 1, 0, set()
                    await eventually(claim.lost.is_set)
                    await eventually(lambda who=who: not peers[who].pool._outbox.forgets("r"))
                elif what == "lose":
                    fleet.redis.delete(fleet.names.meta, *fleet.keys())
                elif what == "gap":
                    fleet.redis.incr(fleet.names.number)
        if claim is None or claim.lost.is_set():
            claim = await eventually(lambda: peers[0].pool.claim("r"))
            holder, epoch, seq, held = peers[0], epoch + 1, 0, {99}
            claim.whole = lambda: holder.whole("r")
        held = held | {100}
        holder.ingest(claim, f"e{epoch}", seq + 1, delta(cleared=True, stored=held))
        holder.books["r"] = (f"e{epoch}", seq + 1, set(held))
        others = [peer for peer in (*peers, watcher) if peer is not holder]
        for peer in others:
            await eventually(lambda peer=peer: peer.listener.held.get("r") == held, f"{peer.origin} knows it")
            assert peer.listener.epochs["r"] == f"e{epoch}"
        assert fleet.set_of("r") == held


async def test_loads_of_the_others_are_summed_while_they_live(fleet: Fleet) -> None:
    a, b, c = [await fleet.join(origin) for origin in "abc"]
    a.load["r"] = Load(1, 100, 1)
    b.load["r"], b.load["s"] = Load(2, 200, 0), Load(1, 0, 1)
    await eventually(lambda: c.pool.others("r") == (3, 300, 1) and c.pool.others("s") == (1, 0, 1))
    await eventually(lambda: a.pool.others("r") == (2, 200, 0))
    b.load.clear()
    await eventually(lambda: c.pool.others("r") == (1, 100, 1) and c.pool.others("s") == NOTHING)
    await a.link.close()  # as if it were killed
    await eventually(lambda: c.pool.others("r") == NOTHING)
    await eventually(lambda: fleet.redis.hkeys(fleet.names.load) in ([b"b", b"c"], [b"c", b"b"]))
    await b.pool.close()
    assert not fleet.redis.exists(fleet.names.live("b"))


async def test_a_load_that_has_not_changed_is_not_sent_again(fleet: Fleet) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    a.load["r"] = Load(1, 2, 3)
    await eventually(lambda: b.pool.others("r") == (1, 2, 3))
    mark = pack({"r": Load(9, 9, 9)})
    fleet.redis.hset(fleet.names.load, "a", mark)  # would be overwritten if it were sent
    await eventually(lambda: b.pool.others("r") == (9, 9, 9))
    await asyncio.sleep(3 * loads.ROUND)
    assert fleet.redis.hget(fleet.names.load, "a") == mark
    fleet.redis.delete(fleet.names.load)  # evicted
    await eventually(lambda: b.pool.others("r") == (1, 2, 3))


async def test_loads_are_unknown_while_redis_is_away(
    own_valkey: Valkey, own_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "LIVE", 0.6)
    a, b = await own_fleet.join("a"), await own_fleet.join("b")
    a.load["r"] = Load(1, 2, 3)
    await eventually(lambda: b.pool.others("r") == (1, 2, 3))
    own_valkey.stop()
    await eventually(lambda: b.pool.others("r") == NOTHING)
    own_valkey.start()
    await eventually(lambda: b.pool.others("r") == (1, 2, 3))


names = st.text(alphabet=st.characters(codec=None), max_size=30)
numbers = st.builds(Load, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))


@given(st.dictionaries(names, numbers))
def test_a_load_reads_back_without_what_is_idle(load: dict[str, Load]) -> None:
    assert unpack(pack(load)) == {name: each for name, each in load.items() if any(each)}


@given(st.binary(max_size=100))
def test_a_foreign_field_is_no_load_and_no_error(field: bytes) -> None:
    assert isinstance(unpack(field), dict)
    assert isinstance(unpack(b"\x01" + field), dict)
