"""Replicas kept free of batch while it has long prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.admission import AHEAD, SEEN_SECONDS, Admission
from proxy.concurrency import ALL, Allowance, any_room, has_room
from proxy.description import Description
from proxy.fleet import Fleet
from proxy.priority import Priority
from proxy.reserve import CROWDED, FIRST_SECONDS, LEFT, QUIET_SECONDS, SEQUENCE_TOKENS, SLACK, Reserve, keep

INTERACTIVE, BATCH = 0, 2
LONG, SHORT = 3000, 100


class Scene:
    """Some replicas; time stands still unless it is told to go on."""

    def __init__(self, replicas: int = 4, limit: int = 8, **rules) -> None:
        self.now = 1000.0
        self.fleet = Fleet(lambda: self.now)
        self.fleet.limit(limit)
        for number in range(replicas):
            self.fleet.add(f"r{number}", f"http://r{number}", Description("vllm", {"m": None}))
            self.fleet.mark(f"r{number}", up=True)
        self.admission = Admission(self.fleet, Priority(**rules))
        self.fleet.freed = self.admission.pump
        self.sent: list[tuple[int, str]] = []
        """Rank and replica of each that was let in."""

    def ask(self, rank: int, tokens: int) -> None:
        """A request that waits, if it must, and is sent to the emptiest replica that has room."""
        admission = self.admission

        def send(allowed) -> None:
            views = [v for v in self.fleet.candidates("m") if has_room(v, 1, allowed)]
            view = min(views, key=lambda view: view.in_flight)
            self.sent.append((rank, view.name))
            self.fleet.reserve(view.name, tokens, 1, stream=True)
            if admission.reserve.watched:
                admission.sent("m", rank, tokens, 1)

        allowed = admission.allowed(rank, self.now, "m")
        if admission.passes("m", 1, allowed):
            send(allowed)
        else:
            admission.enter("m", rank, "c", tokens, 1, send)

    def end_all(self) -> None:
        for replica in list(self.fleet.replicas.values()):
            for _ in range(replica.view.in_flight):
                replica.view.in_flight -= 1
                replica.view.queued_tokens = 0
        self.fleet.freed()

    def flood(self, seconds: float, *, chats: int, batch: int = LONG) -> None:
        """Each second so many chats, more batch than there is room for, and everything ends."""
        for _ in range(round(seconds)):
            for _ in range(chats):
                self.ask(INTERACTIVE, SHORT)
            while sum(self.admission.queued().values()) < 20:
                self.ask(BATCH, batch)
            self.now += 1.0
            self.admission.expire()
            self.end_all()

    @property
    def kept(self) -> frozenset[str]:
        return self.admission.allowed(BATCH, self.now, "m").kept


def test_while_batch_has_long_prompts_replicas_are_kept_for_those_above():
    scene = Scene()
    scene.flood(20, chats=8)
    assert scene.kept == {"r0"}
    assert scene.admission.allowed(INTERACTIVE, scene.now, "m") == ALL
    scene.sent.clear()
    scene.flood(5, chats=8)
    assert {name for rank, name in scene.sent if rank == BATCH} == {"r1", "r2", "r3"}


def test_batch_has_all_of_the_others_that_it_can_use():
    scene = Scene()
    scene.flood(20, chats=8)
    assert scene.admission.allowed(BATCH, scene.now, "m") == Allowance(1.0, AHEAD, frozenset({"r0"}))


@pytest.mark.parametrize("batch", [SHORT, 350])
def test_short_prompts_of_batch_keep_nothing_from_it(batch):
    scene = Scene()
    scene.flood(20, chats=8, batch=batch)
    assert not scene.admission.reserve.watched
    assert not scene.kept


def test_nothing_is_kept_where_those_above_need_next_to_nothing():
    scene = Scene()
    scene.ask(INTERACTIVE, SHORT)
    scene.flood(20, chats=0)
    assert scene.admission.reserve.watched
    assert not scene.kept


def test_what_is_kept_is_let_go_as_those_above_leave():
    scene = Scene()
    scene.flood(20, chats=8)
    assert scene.kept
    scene.flood(40, chats=0)
    assert SEEN_SECONDS > 40, "the class still counts as seen"
    assert not scene.kept


def test_what_is_kept_is_let_go_when_no_long_prompt_comes_any_more():
    scene = Scene()
    scene.flood(20, chats=8)
    scene.end_all()
    for _ in range(40):  # what waits is let in and ends
        scene.now += 1.0
        scene.admission.expire()
        scene.end_all()
    assert not scene.admission.waiting
    assert not scene.admission.reserve.watched
    assert not scene.kept


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_small_fleet_still_serves_batch(replicas):
    scene = Scene(replicas)
    scene.flood(20, chats=8)
    scene.sent.clear()
    scene.flood(10, chats=8)
    assert any(rank == BATCH for rank, _ in scene.sent)
    assert len(scene.kept) < replicas


def test_a_replica_that_is_kept_takes_nothing_even_if_it_is_idle():
    scene = Scene(2)
    views = scene.fleet.candidates("m")
    allowed = Allowance(kept=frozenset({"r0"}))
    assert [has_room(view, 1, allowed) for view in views] == [False, True]
    assert not any_room(views[:1], 1, allowed)


def test_the_first_judgement_waits_for_something_to_judge_by():
    scene = Scene()
    reserve = Reserve(scene.fleet)
    reserve.let_in("m", LONG)
    reserve.sent("m", 3000, 10, last=True)
    reserve.sent("m", 1000, 3, last=False)
    scene.now += FIRST_SECONDS / 2
    assert not reserve.tick()
    scene.now += FIRST_SECONDS / 2
    assert reserve.tick()
    assert reserve.watched["m"].kept == {"r0"}
    scene.now += QUIET_SECONDS
    assert reserve.tick(), "no long prompt has come since"
    assert not reserve.watched


def test_the_load_is_measured_by_what_batch_gets_done_on_a_replica():
    scene = Scene()
    reserve = Reserve(scene.fleet)
    reserve.let_in("m", LONG)
    watched = reserve.watched["m"]
    reserve.sent("m", round(3 * SEQUENCE_TOKENS), 1, last=True)
    reserve.sent("m", 0, 1, last=False)
    assert watched.load(5) == pytest.approx(1.0), "a fifth of the work"
    watched.kept = frozenset({"r0"})
    assert watched.load(5) == pytest.approx(1.0), "a quarter of what four of them do"


def test_models_and_unknown_ones_are_kept_apart():
    scene = Scene()
    reserve = Reserve(scene.fleet)
    reserve.let_in("nobody's", LONG)
    reserve.sent("m", LONG, 1, last=False)
    assert not reserve.watched


@given(load=st.floats(0, 64, allow_nan=False), replicas=st.integers(0, 64), now=st.integers(0, 64))
def test_what_is_kept_carries_the_load_and_leaves_batch_its_share(load, replicas, now):
    kept = keep(load, replicas, now)
    slack, fits = (SLACK, CROWDED) if kept == now else (0.0, 1.0)
    assert 0 <= kept <= max(0, replicas - 1)
    if kept:
        assert load <= fits * kept
        assert replicas - kept >= (LEFT - slack) * (replicas - load)
        assert kept <= 2 * load + 1
    if keep(load, replicas):  # what is worth keeping anew stays
        assert keep(load, replicas, kept) >= keep(load, replicas)


def test_a_fifth_of_four_replicas_is_given_one_and_less_than_that_is_not():
    assert keep(0.8, 4) == 1
    assert keep(0.5, 4) == 0
    assert keep(0.5, 4, 1) == 1, "but it is left to them"
    assert keep(0.1, 4, 1) == 0
    assert keep(1.2, 4) == 0, "they would not fit"
    assert keep(3.2, 16) == 4
    assert keep(0.0, 32) == 0
