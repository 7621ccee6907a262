"""Recent requests: what is kept of them, how much that is, and how decisions are put into words."""

import tracemalloc
from random import Random

import pytest

from policies import registry
from proxy import recent
from proxy.errors import NotFound
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.recent import Recent
from proxy.record import Record
from proxy.router import Router, RouteRequest
from tests.support.keying import keyer, keys

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Once upon a time there was a king. " * 40}]}


def fleet(count: int) -> Fleet:
    made = Fleet(lambda: 0.0)
    for i in range(count):
        made.add(f"r{i:03}", "http://x")
        made.mark(f"r{i:03}", up=True)
    return made


def router(count: int = 3, policy: str = "prefix_cost") -> Router:
    return Router(fleet(count), MemoryIndex(), registry.create(policy), Random(1), name=policy)


def ended(router: Router, name: str = "x", **request: object) -> Record:
    """A request that was routed, and whose record the ledger tells of."""
    lease = router.route(RouteRequest(**request))
    record = Record(name, "/v1/chat/completions", 0.0, policy=router.name)
    record.lease, record.replica, record.decision = lease, lease.replica.name, lease.decision
    lease.close(answered=True)
    return record


def told(router: Router, kept: Recent, **request: object) -> dict:
    kept.read([])  # which is when the next decisions are asked for in full
    kept.read([ended(router, **request)])
    return kept.find("x")


def test_every_decision_is_in_full_until_there_are_too_many_of_them():
    route, kept = router(), None
    kept = Recent(lambda: [route], in_full=2)
    kept.read([])
    kept.read([ended(route, str(i), tokens=100) for i in range(4)])
    full = ["terms" in kept.find(str(i))["replicas"][0] for i in range(4)]
    assert full == [True, True, False, False]
    assert all("score" in kept.find(str(i))["replicas"][0] for i in range(4))


def test_a_spill_is_explained_by_what_weighs_most():
    route, prompt = router(), keys(keyer(), CHAT)
    tokens = len(prompt) * 16 + 5
    route.index.predict("r001", prompt)
    route.fleet.replicas["r001"].view.queued_tokens = 50_000
    found = told(route, Recent(lambda: [route]), keys=prompt, tokens=tokens)
    assert found["decision"] == "spill"
    assert found["warmest"] == {"replica": "r001", "matched_tokens": len(prompt) * 16}
    assert found["why_not_the_warmest"].endswith("more for the prefill queue there.")
    assert found["why"] == found["why_not_the_warmest"]
    assert found["why"].startswith(f"r001 held {len(prompt) * 16:,} of {tokens:,} tokens")
    queue = next(row for row in found["replicas"] if row["replica"] == "r001")["terms"]["queue"]
    assert queue == pytest.approx(50_000 / 8000 * 1000)


def test_a_warmest_that_had_no_room_is_said_not_to_have_been_compared():
    route, prompt = router(), keys(keyer(), CHAT)
    route.fleet.limit(1)
    route.index.predict("r001", prompt)
    route.fleet.reserve("r001", 0, 1, stream=True)
    found = told(route, Recent(lambda: [route]), keys=prompt, tokens=len(prompt) * 16 + 5)
    assert found["replica"] != "r001"
    assert "could not be chosen" in found["why_not_the_warmest"]


def test_a_policy_without_scores_says_that_it_does_not_compare():
    route, prompt = router(policy="round_robin"), keys(keyer(), CHAT)
    route.index.predict("r002", prompt)
    found = told(route, Recent(lambda: [route]), keys=prompt, tokens=len(prompt) * 16 + 5)
    assert found["why_not_the_warmest"].endswith("round_robin does not compare what is cached.")
    assert found["runner_up"] is None
    assert found["unit"] == "points"
    assert [row["replica"] for row in found["replicas"]] == ["r002", found["replica"]]


def test_points_are_told_as_points():
    route = router(policy="prefix_affinity")
    found = told(route, Recent(lambda: [route]), tokens=1000)
    assert found["unit"] == "points"
    assert found["replicas"][0]["terms"].keys() == {"prefix", "queue", "space"}


def test_the_latest_are_kept_and_the_oldest_go():
    route = router()
    kept = Recent(lambda: [route], kept=10)
    kept.read([ended(route, str(i), tokens=10) for i in range(25)])
    assert [each["id"] for each in kept.latest(100)] == [str(i) for i in range(24, 14, -1)]
    assert [each["id"] for each in kept.latest(2)] == ["24", "23"]
    with pytest.raises(NotFound):
        kept.find("14")
    assert kept.find("15")["id"] == "15"


def test_of_two_requests_of_one_name_the_newer_is_told():
    route = router()
    kept = Recent(lambda: [route])
    kept.read([ended(route, tokens=10), ended(route, tokens=20)])
    assert kept.find("x")["replicas"][0]["uncached_tokens"] == 20


def test_of_a_large_fleet_the_best_and_the_warmest_are_kept():
    route, prompt = router(300, "prefix_affinity"), keys(keyer(), CHAT)
    for i in range(200):
        route.index.predict(f"r{i:03}", prompt[: 1 + i % 7])
    route.index.predict("r250", prompt)
    route.fleet.replicas["r250"].view.queued_tokens = 10**6
    kept = Recent(lambda: [route])
    found = told(route, kept, keys=prompt, tokens=len(prompt) * 16 + 5)
    assert found["warmest"]["replica"] == "r250"
    assert len(found["replicas"]) == recent.REPLICAS
    assert found["replicas"][0]["replica"] == found["replica"]
    assert found["replicas"][0]["terms"]


@pytest.mark.parametrize("count", [8, 300])
def test_what_is_kept_is_as_large_as_stated(count):
    route, prompt = router(count), keys(keyer(), CHAT)
    for replica in route.fleet.replicas:
        route.index.predict(replica, prompt)
    kept = Recent(lambda: [route], kept=256)
    records = [ended(route, f"{i:032x}", keys=prompt, tokens=len(prompt) * 16 + i) for i in range(64)]
    kept.read(records)
    for record in records:
        record.lease = None
    tracemalloc.start()
    try:
        for round_ in range(4):
            kept.read([])
            records = []
            for i in range(64):
                record = ended(route, f"{round_:016x}{i:016x}", keys=prompt, tokens=len(prompt) * 16 + i)
                records.append(record)
            kept.read(records)
            for record in records:
                record.lease = None
        del records, record
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    compared = min(count, 32)
    assert size / 256 < 1024 + 0.25 * 1024 * max(compared, min(count, recent.REPLICAS))


def test_nothing_of_a_session_or_a_prompt_is_told():
    route, prompt = router(policy="consistent_hash"), keys(keyer(), CHAT)
    kept = Recent(lambda: [route])
    found = told(route, kept, keys=prompt, tokens=500, session="5e551017", affinity=123456789)
    assert found["decision"] == "session"
    assert "is its owner" in found["why"]
    assert "5e551017" not in str(found)
    assert "123456789" not in str(found)
    assert not any(str(key) in str(found) for key in prompt)


def test_a_decision_without_a_choice_is_told_as_it_is():
    kept = Recent(list)
    kept.read([Record("x", "/v1/models", 0.0, outcome="rejected", reason="model_not_found")])
    assert kept.find("x")["why"] == "It was never sent to a replica: model_not_found."
