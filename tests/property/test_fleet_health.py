"""Whatever requests end in, whatever probes say, whoever dies, comes and goes: the laws of health and load.

The product's router, fleet, breakers and admission, on a virtual clock. Checked after every step: who is sent
requests may be sent them; at most one trial each, and it is a request that is still there; counts are those
of the requests that there are; nobody waits for whom there is room. At the end everything has ended, all
breakers close again by what is sent, and nobody is held back any more.
"""

from math import inf
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies import registry
from proxy.admission import Admission
from proxy.breaker import LONGEST, TRIAL_SECONDS, State
from proxy.caution import RAMP_SECONDS
from proxy.concurrency import any_room
from proxy.description import Description
from proxy.errors import NoReplica
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.priority import Priority
from proxy.router import Lease, Router, RouteRequest

NAMES = ("a", "b", "c")
WHICH = st.integers(0, 1000)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.fleet = Fleet(lambda: self.now)
        self.fleet.limit(4)
        self.admission = Admission(self.fleet, Priority(ageing=1e9))
        self.fleet.freed = self.admission.pump
        self.router = Router(self.fleet, MemoryIndex(), registry.create("prefix_cost", {}), Random(1))
        self.leases: list[Lease] = []
        self.gone: list[Lease] = []
        """Those on replicas that were removed since."""
        self.refused = 0
        for name in NAMES:
            self.add(name)

    def add(self, name: str) -> None:
        self.fleet.add(name, f"http://{name}", Description(models={"m": None}, max_seqs=4))
        self.fleet.mark(name, up=True)

    @rule(tokens=st.integers(0, 5000), stream=st.booleans())
    def ask(self, tokens: int, stream: bool) -> None:
        route = RouteRequest("m", tokens=tokens, stream=stream)

        def ready(allowed) -> None:
            if allowed is None:  # too late
                return
            route.allowed = allowed
            try:
                lease = self.router.route(route)
            except NoReplica:
                self.refused += 1
                return
            assert lease.replica.up
            self.leases.append(lease)

        allowed = self.admission.allowed(0, self.now, "m")
        if self.admission.passes("m", 1, allowed):
            ready(allowed)
        else:
            self.admission.enter("m", 0, "me", tokens, 1, ready)

    def one(self, which: int, *, remove: bool) -> Lease | None:
        if not self.leases:
            return None
        at = which % len(self.leases)
        return self.leases.pop(at) if remove else self.leases[at]

    @rule(which=WHICH)
    def first_token(self, which: int) -> None:
        if (lease := self.one(which, remove=False)) is not None:
            lease.first_token(self.now)

    @rule(which=WHICH, healthy=st.sampled_from([True, False, False, None]), times=st.integers(1, 8))
    def end(self, which: int, healthy: bool | None, times: int) -> None:
        for _ in range(times):
            if (lease := self.one(which, remove=True)) is None:
                return
            if healthy is not None:
                lease.reservation.judge(healthy=healthy)
            lease.close(answered=bool(healthy))
            lease.close(answered=True)

    @rule(which=WHICH)
    def full(self, which: int) -> None:
        if (lease := self.one(which, remove=True)) is not None:
            lease.reservation.pressed()
            lease.close(answered=False)

    @rule(name=st.sampled_from(NAMES), up=st.booleans())
    def mark(self, name: str, up: bool) -> None:
        if name in self.fleet.replicas:
            self.fleet.mark(name, up=up)

    @rule(name=st.sampled_from(NAMES), in_time=st.booleans())
    def probe(self, name: str, in_time: bool) -> None:
        if name in self.fleet.replicas:
            (self.fleet.answered if in_time else self.fleet.missed)(name)

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        """Killed under load: every request on it fails, and it comes back as another process."""
        replica = self.fleet.replicas.get(name)
        if replica is None:
            return
        self.fleet.mark(name, up=False)
        for lease in [lease for lease in self.leases if lease.replica is replica]:
            self.leases.remove(lease)
            lease.reservation.judge(healthy=False)
            lease.close(answered=False)
        self.fleet.restarted(name)
        self.fleet.mark(name, up=True)

    @rule(name=st.sampled_from(NAMES))
    def come_or_go(self, name: str) -> None:
        replica = self.fleet.replicas.get(name)
        if replica is None:
            self.add(name)
        else:
            self.gone += [lease for lease in self.leases if lease.replica is replica]
            self.leases = [lease for lease in self.leases if lease.replica is not replica]
            self.fleet.remove(name)

    @rule(healthy=st.sampled_from([True, False, None]))
    def end_those_that_are_gone(self, healthy: bool | None) -> None:
        for lease in self.gone:
            if healthy is not None:
                lease.reservation.judge(healthy=healthy)
            lease.close(answered=bool(healthy))
        self.gone.clear()

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.1, 11.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.fleet.tick()
        self.admission.expire()

    @invariant()
    def who_is_sent_requests_may_be(self) -> None:
        usable = {r.name: r for r in self.fleet.replicas.values() if r.up}
        found = {view.name for view in self.fleet.candidates("m")}
        admitted = {name for name, replica in usable.items() if replica.breaker.admits}
        assert found == (admitted or set(usable))

    @invariant()
    def at_most_one_trial_each(self) -> None:
        for replica in self.fleet.replicas.values():
            breaker = replica.breaker
            assert (replica in self.fleet.tripped) == (breaker.state is not State.CLOSED)
            if breaker.trial is not None:
                assert breaker.state is State.HALF_OPEN
                assert any(lease.reservation is breaker.trial for lease in self.leases)
        assert self.fleet.tripped <= set(self.fleet.replicas.values())

    @invariant()
    def what_is_counted_is_what_there_is(self) -> None:
        for replica in self.fleet.replicas.values():
            there = [lease for lease in self.leases if lease.replica is replica]
            assert replica.load.in_flight == len(there)
            assert min(replica.load) >= 0
            assert replica.view.soft_limit >= 0

    @invariant()
    def nobody_waits_for_whom_there_is_room(self) -> None:
        if self.admission.waiting:
            views = self.fleet.candidates("m")
            assert views
            assert not any_room(views, 1)

    def teardown(self) -> None:
        for name in NAMES:
            if name not in self.fleet.replicas:
                self.add(name)
            self.fleet.mark(name, up=True)
            self.fleet.answered(name)
        for lease in self.gone:
            lease.close(answered=True)
        for _ in range(3000):
            if not self.leases:
                break
            self.leases.pop().close(answered=True)
        assert not self.admission.waiting
        for _ in range(2 * len(NAMES)):  # what is sent now goes well
            self.now += LONGEST + TRIAL_SECONDS
            self.ask(100, stream=True)
            lease = self.leases.pop()
            lease.reservation.judge(healthy=True)
            lease.close(answered=True)
        self.now += RAMP_SECONDS
        self.fleet.tick()
        for replica in self.fleet.replicas.values():
            assert replica.breaker.state is State.CLOSED
            assert replica.view.soft_limit == inf
            assert tuple(replica.load) == (0, 0, 0)
        assert not self.fleet.tripped


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
test_the_laws_of_health_hold = Machine.TestCase
