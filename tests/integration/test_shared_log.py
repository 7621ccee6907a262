"""What one proxy says reaches the others, once and in order; what is missed is noticed."""

from array import array

import pytest

from proxy.shared import log as log_module
from proxy.shared.layout import Retracted, pack
from tests.support.eventually import eventually
from tests.support.sharing import Fleet, delta, fleet, own_fleet, own_valkey, valkey

__all__ = ["fleet", "own_fleet", "own_valkey", "valkey"]


async def test_placements_reach_the_other_proxies_in_order_and_do_not_come_back(fleet: Fleet) -> None:
    a, b, c = [await fleet.join(origin) for origin in "abc"]
    said = []
    for number in range(50):
        keys = array("Q", range(number, number + 5))
        a.pool.predicted(number, "r{1}:x", keys)
        said.append(("predicted", "a", number, "r{1}:x", list(keys)))
        if number % 3 == 0:
            a.pool.reported(number, 5, 2)
            said.append(("reported", "a", number, 5, 2))
        if number % 7 == 0:
            a.pool.retracted(number)
            said.append(("retracted", "a", number))
    for peer in (b, c):
        await eventually(lambda peer=peer: len(peer.listener.said) >= len(said), "all has arrived")
        assert peer.listener.said == said
    assert a.listener.said == []
    assert a.pool.counts.published == len(said)
    await eventually(lambda: a.pool.lag > 0, "it has read its own words back")


async def test_what_waits_goes_together(fleet: Fleet) -> None:
    a = await fleet.join("a")
    for number in range(1000):
        a.pool.retracted(number)
    await eventually(lambda: a.pool.counts.published == 1000)
    assert fleet.redis.xlen(fleet.names.log) < 20


@pytest.mark.parametrize("missing", ["entry", "number", "log", "both", "everything"])
async def test_a_gap_in_the_log_is_noticed_and_everything_is_read_anew(fleet: Fleet, missing: str) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    claim = await a.pool.claim("r")
    assert claim is not None
    claim.whole = lambda: a.whole("r")
    a.ingest(claim, "e", 1, delta(stored=range(100)))
    await eventually(lambda: b.listener.held.get("r") == set(range(100)))
    if missing == "entry":
        fleet.redis.incr(fleet.names.number)
    elif missing == "number":
        fleet.redis.delete(fleet.names.number)
    elif missing == "log":  # its numbers go on, so nothing is missing
        fleet.redis.delete(fleet.names.log)
    elif missing == "both":
        fleet.redis.delete(fleet.names.number, fleet.names.log)
    else:
        fleet.redis.delete(*fleet.keys())
    a.ingest(claim, "e", 2, delta(stored=range(100, 110), removed=range(50)))
    await eventually(lambda: b.listener.held.get("r") == set(range(50, 110)))
    assert (b.pool.counts.gaps > 0) == (missing != "log")
    assert b.listener.lost >= b.pool.counts.gaps
    await eventually(lambda: b.listener.modes["r"] == "events")


async def test_a_log_that_was_lost_while_nobody_spoke_is_noticed(fleet: Fleet) -> None:
    """Entries of the new log may have lower ids than what the follower waits for."""
    a, b = await fleet.join("a"), await fleet.join("b")
    for number in range(3):
        a.pool.retracted(number)
    await eventually(lambda: len(b.listener.said) == 3)
    fleet.redis.delete(fleet.names.log, fleet.names.number)
    fleet.redis.incr(fleet.names.number)
    body = pack(Retracted(7))
    fleet.redis.execute_command("XADD", fleet.names.log, "1-1", "n", 1, "o", "z", "b", body)
    await eventually(lambda: b.pool.counts.gaps == 1)
    await eventually(lambda: b.pool.synced)
    a.pool.retracted(8)
    await eventually(lambda: b.listener.said[-1] == ("retracted", "a", 8))


@pytest.mark.parametrize("fields", [{"b": b"\xff"}, {"o": "z"}, {"o": "z", "b": b"\x02\0"}])
async def test_an_entry_that_cannot_be_read_costs_itself_and_is_counted(
    fleet: Fleet, fields: dict[str, bytes]
) -> None:
    a, b = await fleet.join("a"), await fleet.join("b")
    number = fleet.redis.incr(fleet.names.number)
    fleet.redis.xadd(fleet.names.log, {"n": number, **fields})
    await eventually(lambda: b.pool.counts.broken > 0)
    await eventually(lambda: b.pool.synced and a.pool.synced)
    a.pool.retracted(1)
    await eventually(lambda: b.listener.said == [("retracted", "a", 1)])


async def test_a_proxy_that_starts_learns_what_was_predicted_of_replicas_that_nobody_ingests(
    fleet: Fleet,
) -> None:
    a = await fleet.join("a")
    claim = await a.pool.claim("followed")
    assert claim is not None
    a.ingest(claim, "e", 1, delta(stored=[1]))
    a.pool.predicted(1, "followed", array("Q", [1, 2]))
    for number in range(2, 300):
        a.pool.predicted(number, "learned", array("Q", [number]))
    a.pool.retracted(250)
    await eventually(lambda: a.pool.counts.published == 300 and a.pool.counts.commits == 1)
    b = await fleet.join("b")
    expected = [("predicted", "a", number, "learned", [number]) for number in range(2, 300)]
    assert b.listener.said == [*expected, ("retracted", "a", 250)]
    assert b.listener.held == {"followed": {1}}


async def test_the_log_keeps_to_its_bytes(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "BYTES", 4 << 20)
    a = await fleet.join("a")
    for number in range(1000):  # 32 MB
        a.pool.predicted(number, "r", array("Q", range(4096)))
        await eventually(lambda number=number: a.pool.counts.published > number)
    assert fleet.redis.memory_usage(fleet.names.log, samples=0) < 12 << 20


async def test_two_pools_and_two_namespaces_do_not_hear_each_other(fleet: Fleet) -> None:
    a = await fleet.join("a")
    b = await fleet.join("b", pool="model:2")
    c = await fleet.join("c", pool="model")
    a.pool.retracted(1)
    b.pool.retracted(2)
    await eventually(lambda: c.listener.said == [("retracted", "a", 1)])
    assert a.listener.said == b.listener.said == []
