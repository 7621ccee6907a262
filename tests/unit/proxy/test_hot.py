"""Hot prefixes through the router: grown one replica at a time, kept while needed, shrunk when cold."""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from itertools import pairwise
from random import Random

import pytest

from policies import base, registry
from policies.base import follows_prefixes
from proxy.description import Description, Load
from proxy.fleet import Fleet
from proxy.hot import MOST, TRACKED, Hot
from proxy.index.memory import MemoryIndex
from proxy.prefix import SHRINK_SECONDS, Prefix
from proxy.router import Lease, Router, RouteRequest

BLOCK = 16
RATE = 10_000.0
"""Tokens a second that a replica computes here; the fleet learns it from the times below."""


class World:
    """A router over replicas that answer at once in their order, and the time, which tests move."""

    def __init__(self, replicas: int = 4, policy: str = "prefix_cost", blocks: int = 65_536) -> None:
        self.now = 0.0
        self.fleet = Fleet(lambda: self.now)
        self.index = MemoryIndex()
        for number in range(replicas):
            name = f"r{number}"
            self.fleet.add(name, f"http://{name}", Description("vllm", {"m": None}, max_seqs=64))
            self.fleet.mark(name, up=True)
            self.index.resize(name, blocks)
        chosen = registry.create(policy, {})
        self.router = Router(self.fleet, self.index, chosen, Random(1))
        self.hot = self.router.hot = Hot(self.fleet, self.index, lambda: follows_prefixes(chosen))
        self.rng = Random(2)
        self.step = 0

    def send(self, prefix: int = 1, shared: int = 250, unique: int = 20) -> Lease:
        """One prompt of a prefix, answered at the pace of the replica."""
        keys = array("Q", [prefix * 1_000_000 + block for block in range(shared)])
        keys.extend(self.rng.getrandbits(64) for _ in range(unique))
        lease = self.router.route(RouteRequest("m", keys, len(keys) * BLOCK + 1, stream=True))
        cached = lease.matched
        lease.first_token(self.now + (lease.request.tokens - cached) / RATE)
        lease.close(answered=True, reported=cached)
        return lease

    def pass_by(self, seconds: float, rate: float = 0.0, **sent: int) -> list[Lease]:
        """Let time pass with so many prompts a second."""
        leases = []
        for _ in range(round(seconds * 20)):
            self.now += 0.05
            self.step += 1
            if rate and self.step % max(1, round(20 / rate)) == 0:
                leases += [self.send(**sent) for _ in range(max(1, round(rate / 20)))]
            if self.step % 5 == 0:
                self.hot.tick()
        return leases

    def holders(self, prefix: int = 1, shared: int = 250) -> set[str]:
        keys = array("Q", [prefix * 1_000_000 + block for block in range(shared)])
        return {name for name, blocks in self.index.match(keys).items() if blocks == shared}


def test_a_prefix_that_takes_more_of_a_replica_than_it_may_is_held_by_more_of_them():
    world = World()
    world.pass_by(20, rate=20)  # 20 x 321 tokens a second of 10,000: 0.64 of a replica
    (prefix,) = world.hot.hottest()
    assert prefix.depth == 250
    assert prefix.rate == pytest.approx(20, rel=0.1)
    assert prefix.wanted == len(world.holders()) == 4
    assert prefix.state == "steady"
    assert len(world.hot) == 1
    assert world.hot.grown == 3


def test_without_a_lead_it_stays_where_it_is():
    world = World()
    world.router.hot = None
    world.pass_by(20, rate=20)
    assert len(world.holders()) == 1


def test_it_grows_by_one_replica_at_a_time_and_then_waits():
    world = World(replicas=8)
    grew: list[float] = []
    held = 0
    for _ in range(200):
        world.pass_by(0.05, rate=40)
        if len(world.holders()) > held:
            assert len(world.holders()) == held + 1
            held += 1
            grew.append(world.now)
    assert held == 8
    cooldown = 250 * BLOCK / world.fleet.replicas["r0"].view.prefill_rate
    gaps = [later - sooner for sooner, later in pairwise(grew[1:])]
    assert min(gaps) >= min(cooldown, 5.0) - 0.05


def test_a_prefix_that_one_replica_can_serve_is_left_to_the_policy():
    world = World()
    world.pass_by(30, rate=1)
    (prefix,) = world.hot.hottest()
    assert (prefix.wanted, prefix.hot, len(world.hot)) == (1, False, 0)
    assert len(world.holders()) == 1
    assert not world.hot.active


def test_the_request_that_spreads_it_goes_to_the_replica_with_the_least_to_do():
    world = World(replicas=3)
    world.pass_by(0.3, rate=20)
    busy = world.router.route(RouteRequest("m", array("Q"), 3000, stream=True), exclude=world.holders())
    first = world.holders()
    while len(world.holders()) == len(first):
        world.pass_by(0.25, rate=20)
    assert world.holders() - first == {"r0", "r1", "r2"} - first - {busy.replica.name}
    busy.close(answered=True)


def test_a_replica_with_no_room_is_not_chosen_to_spread_it():
    world = World(replicas=2)
    world.pass_by(0.5, rate=20)
    (other,) = {"r0", "r1"} - world.holders()
    world.fleet.replicas[other].view.soft_limit = 0
    world.pass_by(20, rate=20)
    assert other not in world.holders()
    assert world.hot.grown == 0


def test_when_demand_falls_surplus_replicas_are_no_longer_credited_and_one_remains():
    world = World()
    world.pass_by(20, rate=20)
    assert len(world.holders()) == 4
    world.pass_by(10 * SHRINK_SECONDS, rate=0.5)
    (prefix,) = world.hot.hottest()
    assert (prefix.wanted, len(prefix.holders), len(prefix.released)) == (1, 1, 3)
    assert prefix.state == "shrinking"
    assert world.hot.shrunk == 3
    home = prefix.holders[0].view.name
    late = world.pass_by(30, rate=0.5)
    assert {lease.replica.name for lease in late} == {home}
    assert all(lease.decision == "hit" for lease in late)


def test_it_shrinks_by_one_replica_at_a_time():
    world = World()
    world.pass_by(20, rate=20)
    shrunk = [world.now]
    before = 0
    for _ in range(1600):
        world.pass_by(0.05, rate=0.5)
        if world.hot.shrunk > before:
            assert world.hot.shrunk == before + 1
            before += 1
            shrunk.append(world.now)
    assert before == 3
    assert min(b - a for a, b in pairwise(shrunk)) >= SHRINK_SECONDS - 0.1


def test_what_it_no_longer_takes_is_free_for_others():
    """Caches with room for one prefix and a half: where one is given up, the other stays."""
    world = World(replicas=2, blocks=500)
    world.pass_by(20, rate=20)
    assert len(world.holders()) == 2
    world.pass_by(60, rate=0.5)
    (kept,) = {one.view.name for one in world.hot.hottest()[0].holders}
    decisions = []
    for _ in range(40):
        world.pass_by(1, rate=0.5)
        decisions.append(world.send(prefix=7, shared=300, unique=0).decision)
    assert world.holders() == {kept}
    assert world.holders(7, 300) == {"r0", "r1"} - {kept}
    assert set(decisions[1:]) == {"hit"}


def test_when_demand_comes_back_what_was_released_is_credited_again_at_no_cost():
    world = World()
    world.pass_by(20, rate=20)
    world.pass_by(10 * SHRINK_SECONDS, rate=0.5)
    assert world.hot.hottest()[0].released
    grown = world.hot.grown
    world.pass_by(20, rate=20)
    (prefix,) = world.hot.hottest()
    assert not prefix.released
    assert len(prefix.holders) == 4
    assert world.hot.grown == grown


def test_a_conversation_that_goes_deeper_is_not_led_away_from_its_replica():
    world = World()
    world.pass_by(20, rate=20)
    turn = array("Q", [1_000_000 + block for block in range(250)] + list(range(5_000, 5_400)))
    for surplus in ("r0", "r1", "r2", "r3"):
        world.index.predict(surplus, turn[: 250 + 20])
    world.pass_by(10 * SHRINK_SECONDS, rate=0.5)
    (gone, *_) = world.hot.hottest()[0].released
    world.index.predict(gone, turn)
    lease = world.router.route(RouteRequest("m", turn, len(turn) * BLOCK + 1, stream=True))
    assert lease.replica.name == gone
    lease.close(answered=True)


def test_a_policy_that_does_not_follow_prefixes_is_only_watched():
    world = World(policy="least_load")
    world.pass_by(20, rate=20)
    (prefix,) = world.hot.hottest()
    assert prefix.rate == pytest.approx(20, rel=0.1)
    assert (world.hot.active, world.hot.grown, len(world.hot)) == ({}, 0, 0)


def test_prompts_that_are_mostly_something_else_are_not_demand():
    """A short header before long prompts: the policy sends those wherever there is room."""
    world = World()
    world.pass_by(20, rate=20, shared=20, unique=600)
    assert world.hot.grown == 0
    assert len(world.hot) == 0


def test_what_waits_to_be_looked_at_is_bounded_and_still_counted():
    world = World()
    for _ in range(3 * MOST):
        world.send()
    assert len(world.hot._placed) == MOST
    world.now += 1.0
    world.hot.tick()
    assert not world.hot._placed
    (prefix,) = world.hot.hottest()
    assert prefix.rate == pytest.approx(3 * MOST, rel=0.1)


def test_no_more_prefixes_are_tracked_than_there_is_room_for():
    world = World()
    for number in range(5 * TRACKED):
        for _ in range(8):
            world.send(prefix=number, shared=16)
        if number % 5 == 4:
            world.now += 0.25
            world.hot.tick()
    assert 0 < len(world.hot.hottest()) <= 2 * TRACKED


def test_a_replica_that_leaves_is_forgotten():
    world = World()
    world.pass_by(20, rate=20)
    world.fleet.remove("r0")
    world.index.forget("r0")
    world.pass_by(1, rate=20)
    (prefix,) = world.hot.hottest()
    assert "r0" not in {one.view.name for one in prefix.holders} | prefix.released
    assert prefix.wanted <= 3


def test_one_replica_alone_needs_no_lead():
    world = World(replicas=1)
    world.pass_by(20, rate=20)
    assert (world.hot.active, len(world.hot)) == ({}, 0)


def test_a_pace_that_drifts_upwards_shrinks_nothing():
    """Prompts of one length tell nothing of the rate: what is learned from them wanders."""
    views = [base.Replica(f"r{number}", prefill_rate=10_000.0) for number in range(4)]
    prefix = Prefix(1, 128, "m", array("Q", range(250)), BLOCK, since=0.0)

    def second(now: float, prompts: int) -> None:
        for _ in range(prompts):
            prefix.sent(prefix.keys, 250 * BLOCK + 400, 250 * BLOCK, 1.0)
        prefix.fade(1.0)
        prefix.held(views, {view.name: 250 for view in views})
        prefix.judge(now, views, 1.0)

    for now in range(20):
        second(now, 20)
    assert (prefix.wanted, len(prefix.holders)) == (4, 4)
    for view in views:
        view.prefill_rate = 1e6
    for now in range(20, 200):
        second(now, 20)
    assert (prefix.wanted, len(prefix.holders)) == (4, 4)
    for now in range(200, 400):
        second(now, now % 4 == 0)
    assert (prefix.wanted, len(prefix.holders)) == (1, 1)


def test_of_several_proxies_each_sees_its_share_and_counts_for_all():
    world = World()
    lease = world.send()
    assert world.hot._share() == 1.0
    lease = world.router.route(RouteRequest("m", lease.request.keys, 5000, stream=True))
    lease.replica.share(Load(3, 0, 3))
    assert world.hot._share() == 0.25
    lease.close(answered=True)
    assert world.hot._share() == 1 / 16  # others' alone: bounded
