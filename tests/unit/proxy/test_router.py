"""The composer: what is matched, chosen, reserved and predicted, and given back whatever happens."""

from array import array
from random import Random

import pytest

from policies import registry
from proxy.description import Description
from proxy.errors import NoReplica
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.router import Router, RouteRequest


def make(engine: str = "vllm", names: tuple[str, ...] = ("a", "b")) -> Router:
    fleet = Fleet(lambda: 1.0)
    for name in names:
        fleet.add(name, f"http://{name}", Description(engine=engine, models={"m": None}))
        fleet.mark(name, up=True)
    return Router(fleet, MemoryIndex(), registry.create("prefix_cost", {}), Random(1))


def request(blocks: int, tokens: int | None = None, first: int = 1) -> RouteRequest:
    return RouteRequest(
        "m", array("Q", range(first, first + blocks)), 16 * blocks if tokens is None else tokens, stream=True
    )


def test_R10_a_hit_never_counts_the_last_token():
    router = make()
    router.index.predict("a", request(4).keys)
    assert router.matches(request(4, 64)) == {"a": 48}
    assert router.matches(request(4, 65)) == {"a": 64}


def test_R07_the_longest_match_wins_and_a_ghost_is_ignored_and_purged():
    router = make()
    router.index.predict("a", request(8).keys)
    router.index.predict("b", request(64).keys)
    router.index.predict("ghost", request(256).keys)
    lease = router.route(request(300))
    assert (lease.replica.name, lease.matched, lease.available) == ("b", 64 * 16, 64 * 16)
    assert router.index.blocks("ghost") == 0


def test_R07_no_replica_is_a_503_with_retry_after():
    router = make(names=())
    with pytest.raises(NoReplica) as caught:
        router.route(request(1))
    assert caught.value.status == 503
    assert caught.value.retry_after
    router = make()
    with pytest.raises(NoReplica):
        router.route(request(1), exclude={"a", "b"})


def test_T12_a_block_matches_only_if_the_whole_chain_before_it_does():
    router = make()
    router.index.predict("a", array("Q", [100, 101, 102]))
    router.index.predict("b", array("Q", [1, 2]))
    assert router.matches(RouteRequest("m", array("Q", [1, 2, 101, 102]), 64)) == {"b": 32}


def test_available_counts_only_those_that_could_have_been_chosen():
    router = make()
    router.index.predict("a", request(8).keys)
    lease = router.route(request(9), exclude={"a"})
    assert (lease.available, lease.matched, lease.decision) == (0, 0, "cold")


def test_a_prompt_whose_cache_is_not_read_matches_nothing_and_teaches_nothing():
    router = make()
    router.index.predict("a", request(8).keys)
    asked = request(9)
    asked.cache_read = False
    lease = router.route(asked)
    assert lease.matched == 0
    lease.close(answered=True, reported=0)
    assert router.index.match(asked.keys)[lease.replica.name] == 9


def test_a_prefix_is_predicted_at_dispatch_or_for_sglang_at_the_first_token():
    for engine, at_once in (("vllm", True), ("sglang", False)):
        router = make(engine)
        lease = router.route(request(5))
        assert bool(router.index.match(request(5).keys)) is at_once
        lease.first_token(2.0)
        assert router.index.match(request(5).keys) == {lease.replica.name: 5}


def test_a_request_that_failed_before_its_first_byte_leaves_no_prediction():
    router = make()
    lease = router.route(request(5))
    lease.close(answered=False)
    lease.close(answered=True)
    assert router.index.match(request(5).keys) == {}
    assert lease.replica.view.in_flight == 0


def test_the_answers_blocks_are_held_too():
    router = make()
    lease = router.route(request(5))
    lease.close(answered=True, reported=0, held=request(8).keys)
    assert router.index.match(request(9).keys) == {lease.replica.name: 8}


def test_an_estimate_that_is_off_by_some_blocks_is_no_evidence():
    router = make()
    router.route(request(100)).close(answered=True)
    asked = request(101)
    asked.exact = False
    lease = router.route(asked)
    assert lease.matched == 1600
    lease.close(answered=True, reported=1300)
    assert router.index.match(request(100).keys) == {lease.replica.name: 100}


def test_what_a_batch_reports_is_no_evidence_on_its_first_prompt():
    router = make()
    router.route(request(100)).close(answered=True)
    asked = request(101)
    asked.sequences = 3
    lease = router.route(asked)
    lease.close(answered=True, reported=0)
    assert router.index.match(request(100).keys) == {lease.replica.name: 100}


def test_decisions_are_named():
    router = make()
    lease = router.route(request(10))
    assert lease.decision == "cold"
    lease.close(answered=True)
    again = router.route(request(10))
    assert (again.decision, again.replica.name) == ("hit", lease.replica.name)
    again.close(answered=True)
    longer = router.route(request(60))
    assert longer.decision == "partial"
    longer.close(answered=True)
    assert router.route(RouteRequest("m")).decision == "fallback"
    lease.replica.view.queued_tokens = 10**7
    assert router.route(request(10)).decision == "spill"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("again", [True, False])
def test_D03_what_a_removed_replica_still_answers_is_nobodys(engine, again):
    router = make(engine, ("a",))
    fleet, index = router.fleet, router.index
    old = fleet.replicas["a"]
    streaming, whole = router.route(request(8)), router.route(request(8, first=50))
    fleet.remove("a")
    index.forget("a")
    if again:
        fleet.add("a", "http://a", Description(engine=engine, models={"m": None}))
        fleet.mark("a", up=True)
    streaming.first_token(1.0)
    for lease in (streaming, whole):
        lease.close(answered=True, reported=0, held=array("Q", range(1, 11)))
    assert index.blocks("a") == 0
    assert old.load.in_flight == 0
    if again:
        assert fleet.replicas["a"].load.in_flight == 0
        assert router.route(request(8)).matched == 0
