"""Whatever comes, waits, leaves, ends, fails and returns: the laws of admission and load.

Requests of all classes for two models on three replicas, one of which serves both. Checked after every step:
no figure below zero, nobody waits for whom there is room, ceilings hold for whoever is let in in its turn,
and what is counted is what there is. At the end everybody has been let in or turned away, and nothing is
left.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.admission import Admission
from proxy.concurrency import ALL, any_room, has_room
from proxy.description import Description, Load
from proxy.errors import Shed
from proxy.fleet import Fleet
from proxy.priority import Priority

RULES = Priority(
    ceilings={"standard": 0.75, "batch": 0.5},
    prefill={"batch": 0.0},
    queue={"interactive": 5, "standard": 5, "batch": 10},
    wait={"interactive": 10, "standard": 30, "batch": 100},
    ageing=3.0,
)
SERVES = {"one": ("x",), "two": ("x", "y"), "three": ("y",)}
RANKS = range(3)


class Fate:
    """What became of one request."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ticket = None
        self.calls = 0
        self.left = False
        self.reservation = None


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.fleet = Fleet(lambda: self.now)
        self.admission = Admission(self.fleet, RULES)
        self.fleet.freed = self.admission.pump
        self.fates: list[Fate] = []

    def start(self, concurrency) -> None:
        self.fleet.limit(concurrency)
        for name, models in SERVES.items():
            self.fleet.add(name, f"http://{name}", Description("vllm", dict.fromkeys(models), max_seqs=6))
            self.fleet.mark(name, up=True)

    @precondition(lambda self: not self.fleet.replicas)
    @rule(concurrency=st.sampled_from(["none", "adaptive", 1, 4]))
    def begin(self, concurrency) -> None:
        self.start(concurrency)

    @precondition(lambda self: self.fleet.replicas)
    @rule(
        model=st.sampled_from("xy"),
        rank=st.sampled_from(RANKS),
        caller=st.sampled_from("abc"),
        tokens=st.integers(0, 20_000),
        sequences=st.sampled_from([1, 1, 1, 2, 9]),
    )
    def ask(self, model, rank, caller, tokens, sequences) -> None:
        fate = Fate(rank)
        self.fates.append(fate)
        allowed = self.admission.allowed(rank, self.now, model)
        if self.admission.passes(model, sequences, allowed):
            assert not self.admission.waiting
            self.send(fate, model, tokens, sequences, allowed)
            return

        def ready(allowed) -> None:
            fate.calls += 1
            assert not fate.left
            if allowed is not None:
                self.send(fate, model, tokens, sequences, allowed)

        before = self.admission.queued()
        try:
            fate.ticket = self.admission.enter(model, rank, caller, tokens, sequences, ready)
        except Shed as error:
            refused = error
        else:
            return
        self.fates.remove(fate)
        mine = self.admission.classes[rank]
        assert before[mine.name] == mine.length
        assert 1.0 <= refused.retry_after <= 120.0

    def send(self, fate, model, tokens, sequences, allowed) -> None:
        views = self.fleet.candidates(model)
        if not views:  # it is told so
            return
        free = [view for view in views if has_room(view, sequences, allowed)]
        assert free, "let in without room"
        ceiling = self.admission.classes[fate.rank].allowed
        view = free[tokens % len(free)]
        if allowed != ALL and view.in_flight:
            assert allowed is ceiling or (fate.rank == RANKS[-1] and view.name not in allowed.kept)
            assert view.in_flight + sequences <= allowed.share * view.limit
        fate.reservation = self.fleet.reserve(view.name, tokens, sequences, stream=True)
        if self.admission.reserve.watched:
            self.admission.sent(model, fate.rank, tokens, sequences)

    def some(self, index, condition):
        found = [fate for fate in self.fates if condition(fate)]
        return found[index % len(found)] if found else None

    @rule(index=st.integers(0, 100))
    def leave(self, index) -> None:
        fate = self.some(index, lambda fate: fate.ticket is not None and not fate.left)
        if fate is not None:
            self.admission.leave(fate.ticket)
            self.admission.leave(fate.ticket)
            fate.left = True

    @rule(index=st.integers(0, 100))
    def first_token(self, index) -> None:
        fate = self.some(index, lambda fate: fate.reservation is not None)
        if fate is not None:
            fate.reservation.first_token(self.now)

    @rule(index=st.integers(0, 100), twice=st.booleans())
    def end(self, index, twice) -> None:
        fate = self.some(index, lambda fate: fate.reservation is not None)
        if fate is not None:
            reservation, fate.reservation = fate.reservation, None
            self.fates.remove(fate)
            reservation.release()
            if twice:
                reservation.release()

    @precondition(lambda self: self.fleet.replicas)
    @rule(name=st.sampled_from(sorted(SERVES)), up=st.booleans())
    def mark(self, name, up) -> None:
        self.fleet.mark(name, up=up)

    @precondition(lambda self: self.fleet.replicas)
    @rule(name=st.sampled_from(sorted(SERVES)), in_flight=st.integers(0, 5))
    def others(self, name, in_flight) -> None:
        self.fleet.replicas[name].share(Load(in_flight, 0, 0))
        self.admission.pump()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 70.0]))
    def wait(self, seconds) -> None:
        self.now += seconds
        self.admission.expire()
        for model, watched in self.admission.reserve.watched.items():
            views = self.fleet.candidates(model)
            assert len(watched.kept) < max(1, len(views)), "batch has a replica"
            assert watched.kept <= {view.name for view in views}

    @invariant()
    def what_is_counted_is_what_there_is(self) -> None:
        waiting = [f for f in self.fates if f.ticket is not None and not f.left and not f.calls]
        queued = self.admission.queued()
        assert self.admission.waiting == len(waiting) == sum(queued.values())
        assert all(queued[RULES.classes[rank]] == sum(f.rank == rank for f in waiting) for rank in RANKS)
        assert all(fate.calls <= 1 for fate in self.fates)
        for name, replica in self.fleet.replicas.items():
            mine = [f.reservation for f in self.fates if f.reservation is not None]
            there = [r for r in mine if r.replica.name == name]
            load = replica.load
            assert load.in_flight == sum(r.sequences for r in there)
            assert min(load) >= 0

    @invariant()
    def nobody_waits_for_whom_there_is_room(self) -> None:
        for mine in self.admission.classes:
            for model, lane in mine.lanes.items():
                views = self.fleet.candidates(model)
                allowed = self.admission.allowed(mine.rank, self.now, model)
                assert views
                assert not any_room(views, lane.first().sequences, allowed)

    def teardown(self) -> None:
        """Everything ends, one after the other, and time passes."""
        for replica in self.fleet.replicas.values():
            replica.share(Load(0, 0, 0))
        for name in self.fleet.replicas:
            self.fleet.mark(name, up=True)
        self.admission.pump()
        for _ in range(1000):
            running = [fate for fate in self.fates if fate.reservation is not None]
            if not running:
                break
            self.now += 0.01
            fate = running[0]
            reservation, fate.reservation = fate.reservation, None
            reservation.release()
        waited = [fate for fate in self.fates if fate.ticket is not None and not fate.left]
        assert all(fate.calls == 1 for fate in waited), "nobody starves"
        assert self.admission.waiting == 0
        assert not any(mine.lanes or mine.tickets for mine in self.admission.classes)
        for replica in self.fleet.replicas.values():
            view = replica.view
            assert view.in_flight == view.running == view.queued_tokens == 0


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_the_laws_of_admission_hold = Machine.TestCase
