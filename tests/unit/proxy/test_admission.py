"""Admission: order of classes, ceilings, ageing, time limits, and that nothing is kept of who has gone."""

import pytest
from prometheus_client import CollectorRegistry

from proxy.admission import SEEN_SECONDS, Admission
from proxy.concurrency import ALL
from proxy.description import Description
from proxy.errors import Shed
from proxy.fair import QUANTUM
from proxy.fleet import Fleet
from proxy.priority import Priority
from proxy.queue_metrics import QueueMetrics

INTERACTIVE, STANDARD, BATCH = range(3)


class Scene:
    """A fleet with a limit, its admission, and requests that are sent to the emptiest replica."""

    def __init__(
        self, limit: int = 1, replicas: int = 1, models: dict[str, tuple[str, ...]] | None = None, **rules
    ):
        self.now = 0.0
        self.fleet = Fleet(lambda: self.now)
        self.fleet.limit(limit)
        for number in range(replicas):
            name = f"r{number}"
            serves = dict.fromkeys((models or {}).get(name, ("m",)))
            self.fleet.add(name, f"http://{name}", Description("vllm", serves))
            self.fleet.mark(name, up=True)
        self.admission = Admission(self.fleet, Priority(**rules))
        self.fleet.freed = self.admission.pump
        self.order: list[str] = []
        self.late: list[str] = []
        self.running = {}
        self.tickets = {}
        """Of those that had to wait."""

    def ask(self, name: str, rank: int = STANDARD, caller: str = "c", *, tokens=100, sequences=1, model="m"):
        admission = self.admission
        allowed = admission.allowed(rank, self.now, model)
        if admission.passes(model, sequences, allowed):
            self.send(name, model, sequences, allowed)
            return

        def ready(allowed):
            if allowed is None:
                self.late.append(name)
            else:
                self.send(name, model, sequences, allowed)

        self.tickets[name] = admission.enter(model, rank, caller, tokens, sequences, ready)

    def send(self, name, model, sequences, allowed):
        views = self.fleet.candidates(model)
        view = min(views, key=lambda view: view.in_flight)
        self.running[name] = self.fleet.reserve(view.name, 0, sequences, stream=True)
        self.order.append(name)

    def end(self, name):
        self.running.pop(name).release()

    def finish(self):
        """End whatever runs, one after the other, until nothing does."""
        while self.running:
            self.end(next(iter(self.running)))

    @property
    def queued(self):
        return list(self.admission.queued().values())


def test_while_there_is_room_nothing_waits_and_nothing_is_kept():
    scene = Scene(limit=2)
    scene.ask("a")
    scene.ask("b")
    assert (scene.order, scene.tickets) == (["a", "b"], {})
    assert not any(mine.lanes or mine.tickets for mine in scene.admission.classes)


def test_without_a_replica_nobody_waits():
    scene = Scene(replicas=0)
    assert scene.admission.passes("m", 1, ALL)
    scene = Scene()
    scene.ask("a")
    scene.ask("b")
    with pytest.raises(ValueError, match="empty"):  # it is let in at once, and finds none
        scene.fleet.mark("r0", up=False)
    assert scene.queued == [0, 0, 0]


def test_the_highest_class_goes_first_and_each_caller_in_its_order():
    scene = Scene()
    for name, rank in (("x", 1), ("b1", 2), ("s1", 1), ("b2", 2), ("i1", 0), ("s2", 1), ("i2", 0)):
        scene.ask(name, rank)
    assert scene.queued == [2, 2, 2]
    scene.finish()
    assert scene.order == ["x", "i1", "i2", "s1", "s2", "b1", "b2"]
    assert scene.queued == [0, 0, 0]


def test_weights_share_what_is_let_in_by_tokens():
    scene = Scene(weights={"interactive": 3, "standard": 2, "batch": 1})
    scene.ask("x")
    for number in range(60):
        for rank in range(3):
            scene.ask(f"{rank}{number}", rank, tokens=50 * (rank + 1))
    for _ in range(66):
        scene.end(next(iter(scene.running)))
    tokens = [sum(50 * (rank + 1) for name in scene.order[1:] if name[0] == str(rank)) for rank in range(3)]
    share = [each / sum(tokens) for each in tokens]
    assert share == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=0.04)


def test_a_class_that_was_away_saves_nothing_up():
    scene = Scene(weights={"interactive": 1, "standard": 1})
    scene.ask("x")
    for number in range(20):
        scene.ask(f"i{number}", INTERACTIVE, tokens=1000)
    for _ in range(10):
        scene.end(next(iter(scene.running)))
    for number in range(10):
        scene.ask(f"s{number}", STANDARD, tokens=1000)
    for _ in range(10):
        scene.end(next(iter(scene.running)))
    assert sum(name[0] == "s" for name in scene.order) == 5


def test_a_class_that_its_ceiling_held_back_saves_nothing_up():
    scene = Scene(limit=4, ceilings={"batch": 0.5}, weights={"interactive": 1, "batch": 1}, ageing=1e9)
    scene.ask("i", INTERACTIVE)
    for number in range(3):
        scene.ask(f"more{number}", INTERACTIVE)
    for number in range(20):
        scene.ask(f"b{number}", BATCH, tokens=1000)
        scene.ask(f"i{number}", INTERACTIVE, tokens=1000)
    for _ in range(12):  # three are always left, which is above the ceiling of the lower class
        scene.end(next(iter(scene.running)))
    assert not any(name[0] == "b" for name in scene.order)
    scene.admission.classes[BATCH].allowed = ALL
    for _ in range(8):
        scene.end(next(iter(scene.running)))
    assert sum(name[0] == "b" for name in scene.order) == 4


def test_lower_classes_leave_headroom_while_a_higher_one_is_about():
    scene = Scene(limit=10, ceilings={"standard": 0.8, "batch": 0.5})
    scene.ask("i", INTERACTIVE)
    for number in range(10):
        scene.ask(f"b{number}", BATCH)
    assert len(scene.running) == 5
    for number in range(10):
        scene.ask(f"s{number}", STANDARD)
    assert len(scene.running) == 8
    for number in range(2):
        scene.ask(f"i{number}", INTERACTIVE)
    assert len(scene.running) == 10
    assert scene.queued == [0, 7, 6]
    scene.end("i0")
    assert scene.queued == [0, 7, 6]  # the room above the ceilings is for the higher class


def test_room_is_kept_for_nobody_who_has_not_been_seen():
    scene = Scene(limit=10, ceilings={"standard": 0.8, "batch": 0.5})
    for number in range(12):
        scene.ask(f"b{number}", BATCH)
    assert len(scene.running) == 10
    scene.ask("i", INTERACTIVE)
    scene.end("b0")
    assert scene.order[-1] == "i"
    scene.now += SEEN_SECONDS
    for name in list(scene.running)[:2]:
        scene.end(name)
    assert scene.queued == [0, 0, 0]


def test_prefill_that_waits_keeps_lower_classes_away():
    scene = Scene(limit=10, prefill={"batch": 0.5})
    scene.ask("i", INTERACTIVE)
    [replica] = scene.fleet.replicas.values()
    replica.view.queued_tokens, replica.view.prefill_rate = 5001, 10_000.0
    scene.ask("b", BATCH)
    scene.ask("s", STANDARD)
    assert scene.order == ["i", "s"]
    replica.view.queued_tokens = 5000
    scene.admission.pump()
    assert scene.order == ["i", "s", "b"]


def test_a_class_that_waits_gets_a_turn_within_its_age_over_its_ceiling():
    scene = Scene(limit=4, ceilings={"batch": 0.25}, ageing=5.0, weights={"batch": 1e-9})
    for number in range(3):
        scene.ask(f"i{number}", INTERACTIVE)
    scene.ask("b0", BATCH)
    scene.ask("b1", BATCH)
    for step in range(20):
        scene.now += 1.0
        scene.ask(f"more{step}", INTERACTIVE)
        scene.end(next(name for name in scene.running if name[0] != "b"))
    let_in = [scene.order.index(name) for name in ("b0", "b1")]
    assert let_in == sorted(let_in)
    assert len([name for name in scene.order[: let_in[1]] if name[0] != "b"]) <= 3 + 2 * 6


def test_too_many_and_too_slow_are_turned_away_with_the_drain_rate():
    scene = Scene(queue={"standard": 20}, wait={"standard": 60})
    scene.ask("x")
    for number in range(20):
        scene.ask(f"s{number}")
    with pytest.raises(Shed) as first:
        scene.ask("one more")
    assert first.value.retry_after == 120.0  # none was let in yet, so nobody knows
    for _ in range(10):
        scene.now += 0.5
        scene.end(next(iter(scene.running)))
    for number in range(10):
        scene.ask(f"t{number}")
    with pytest.raises(Shed) as second:
        scene.ask("one more")
    assert second.value.retry_after == pytest.approx(0.45 * 21)
    scene.ask("other class", INTERACTIVE)
    assert scene.admission.shed == {("standard", "full"): 2}
    scene.now += 58.0
    scene.admission.expire()
    assert (scene.late, scene.queued) == ([f"s{number}" for number in range(10, 20)], [1, 10, 0])
    assert scene.admission.late(STANDARD).status == 429
    assert scene.admission.shed[("standard", "late")] == 1


def test_who_leaves_is_out_at_once_and_leaving_twice_changes_nothing():
    scene = Scene()
    for name in "xabc":
        scene.ask(name)
    leave = scene.admission.leave
    leave(scene.tickets["a"])
    leave(scene.tickets["a"])
    assert scene.queued == [0, 2, 0]
    scene.end("x")
    assert scene.order == ["x", "b"]
    leave(scene.tickets["b"])  # it was let in: its load is its own business
    scene.end("b")
    scene.end("c")
    assert scene.order == ["x", "b", "c"]
    assert scene.admission.waiting == 0
    assert not any(mine.lanes or mine.tickets for mine in scene.admission.classes)


def test_a_model_whose_replicas_are_full_does_not_hold_another_up():
    scene = Scene(replicas=2, models={"r0": ("a",), "r1": ("b",)})
    scene.ask("a0", model="a")
    scene.ask("b0", model="b")
    scene.ask("a1", model="a")
    scene.ask("b1", model="b")
    scene.end("b0")
    assert scene.order == ["a0", "b0", "b1"]
    scene.finish()
    assert scene.order[-1] == "a1"


def test_many_sequences_wait_for_as_much_room():
    scene = Scene(limit=8)
    scene.ask("x", sequences=5)
    scene.ask("large", sequences=4)
    scene.ask("small")
    assert scene.order == ["x"]
    scene.end("x")
    assert scene.order == ["x", "large", "small"]
    scene.finish()
    scene.ask("huge", sequences=100)
    assert scene.order[-1] == "huge"


def test_what_a_request_did_not_cost_is_given_back_to_its_caller():
    def let_in(settled: bool) -> int:
        scene = Scene()
        scene.ask("x")
        for number in range(30):
            scene.ask(f"warm{number}", caller="warm", tokens=QUANTUM)
            scene.ask(f"cold{number}", caller="cold", tokens=QUANTUM)
        for _ in range(20):
            scene.end(next(iter(scene.running)))
            if settled and scene.order[-1].startswith("warm"):
                scene.admission.settle(scene.tickets[scene.order[-1]], QUANTUM // 2)
        return sum(name.startswith("warm") for name in scene.order)

    assert let_in(False) == pytest.approx(10, abs=1)
    assert let_in(True) == pytest.approx(13, abs=1)


def test_someone_elses_load_counts():
    scene = Scene(limit=2)
    scene.ask("x")
    [replica] = scene.fleet.replicas.values()
    from proxy.description import NOTHING, Load

    replica.share(Load(1, 0, 0))
    scene.ask("y")
    assert scene.order == ["x"]
    replica.share(NOTHING)
    scene.admission.expire()  # nobody tells of it: it is found a moment later
    assert scene.order == ["x", "y"]


def test_the_metrics_say_who_waits_and_who_was_turned_away():
    scene, registry = Scene(queue={"batch": 0}), CollectorRegistry()
    registry.register(QueueMetrics(scene.admission))
    scene.ask("a", INTERACTIVE)
    scene.ask("b", INTERACTIVE)
    with pytest.raises(Shed):
        scene.ask("c", BATCH)
    assert registry.get_sample_value("warmroute_queue_length", {"priority": "interactive"}) == 1
    assert registry.get_sample_value("warmroute_queue_length", {"priority": "batch"}) == 0
    assert registry.get_sample_value("warmroute_shed_total", {"priority": "batch", "reason": "full"}) == 1
