"""Whatever prompts come, from whomever: what is known of hot prefixes is bounded, and leads nobody astray."""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies import registry
from proxy.description import Description
from proxy.errors import NoReplica
from proxy.fleet import Fleet
from proxy.hot import MOST, TRACKED, Hot
from proxy.index.memory import MemoryIndex
from proxy.prefix import SHRINK_SECONDS
from proxy.router import Lease, Router, RouteRequest
from proxy.sketch import LEVELS, PLACES

NAMES = ("a", "b", "c")
BLOCK = 16


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.fleet = Fleet(lambda: self.now)
        self.index = MemoryIndex()
        self.router = Router(self.fleet, self.index, registry.create("prefix_cost", {}), Random(1))
        self.hot = self.router.hot = Hot(self.fleet, self.index)
        self.leases: list[Lease] = []
        self.rng = Random(3)
        self.shrunk_at = -SHRINK_SECONDS
        for name in NAMES:
            self.come(name)

    def come(self, name: str) -> None:
        self.fleet.add(name, f"http://{name}", Description(models={"m": None}, max_seqs=8))
        self.fleet.mark(name, up=True)
        self.index.resize(name, 400)

    @rule(prefix=st.integers(1, 40), shared=st.integers(0, 120), unique=st.integers(0, 300))
    def ask(self, prefix: int, shared: int, unique: int) -> None:
        self.send(prefix, shared, unique)

    @rule(prefix=st.integers(1, 2), count=st.integers(1, 60))
    def flood(self, prefix: int, count: int) -> None:
        for _ in range(count):
            self.send(prefix, 100, 3)

    @rule(count=st.integers(1, 80))
    def hostile(self, count: int) -> None:
        """Prompts that share nothing, some of them of one block, some long."""
        for _ in range(count):
            self.send(0, 0, self.rng.choice((1, 8, 9, 64, 500)))

    def send(self, prefix: int, shared: int, unique: int) -> None:
        keys = array("Q", [prefix * 1000 + block for block in range(shared)])
        keys.extend(self.rng.getrandbits(64) for _ in range(unique))
        before = {name: dict(self.index.match(keys)).get(name, 0) for name in NAMES}
        grown = self.hot.grown
        try:
            lease = self.router.route(RouteRequest("m", keys, len(keys) * BLOCK + 1, stream=True))
        except NoReplica:
            assert not self.fleet.replicas
            return
        assert self.hot.grown <= grown + 1
        assert lease.matched == before[lease.replica.name] * BLOCK  # led or not, what is held is what is held
        if self.hot.grown > grown:  # a replica more holds it, and one that did not hold the whole of it
            assert before[lease.replica.name] < max(before.values())
        self.leases.append(lease)

    @rule(seconds=st.floats(0.0, 5.0))
    def time(self, seconds: float) -> None:
        self.now += seconds
        shrunk = self.hot.shrunk
        self.hot.tick()
        assert self.hot.shrunk <= shrunk + len(self.hot.hottest())

    @rule(which=st.integers(0, 1000), answered=st.booleans())
    def end(self, which: int, answered: bool) -> None:
        if self.leases:
            lease = self.leases.pop(which % len(self.leases))
            if answered:
                lease.first_token(self.now)
            lease.close(answered=answered)

    @rule(which=st.integers(0, 2))
    def leave_or_come_back(self, which: int) -> None:
        name = NAMES[which]
        if name in self.fleet.replicas:
            self.fleet.remove(name)
            self.index.forget(name)
        else:
            self.come(name)

    @invariant()
    def is_bounded(self) -> None:
        hot = self.hot
        assert len(hot._sketch) <= 2 * LEVELS * PLACES
        assert len(hot._placed) <= MOST
        assert len(hot.hottest()) <= 2 * TRACKED
        assert all(len(prefix.keys) <= 2 * prefix.blocks for prefix in hot.hottest())

    @invariant()
    def is_consistent(self) -> None:
        for prefix in self.hot.hottest():
            assert 1 <= prefix.wanted <= len(NAMES)
            holders = [one.view.name for one in prefix.holders]
            assert len(set(holders)) == len(holders)
            assert not prefix.released & set(holders)
            assert prefix.depth >= prefix.blocks
            assert prefix.rate >= 0
            assert prefix.saving >= 0
            if prefix.released:
                assert prefix.hot


TestHot = Machine.TestCase
TestHot.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
