"""Router.decide: what it rehearses is what `route` does next, and leaves everything as it was."""

import copy
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import registry
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.router import Router, RouteRequest
from tests.support.keying import keyer, keys

PROMPT = keys(keyer(), {"model": "m", "messages": [{"role": "user", "content": "Once upon a time. " * 60}]})
REPEATABLE = ("prefix_cost", "prefix_affinity", "consistent_hash", "round_robin")
"""Those that draw nothing by chance in a fleet that is not large."""


@pytest.mark.parametrize("name", REPEATABLE)
@settings(max_examples=40)
@given(
    loads=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 50_000), st.integers(0, len(PROMPT)), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    limit=st.integers(1, 30),
    again=st.integers(1, 3),
    session=st.none() | st.text(max_size=5),
)
def test_what_is_rehearsed_is_what_comes(name, loads, limit, again, session):
    fleet = Fleet(lambda: 0.0)
    fleet.limit(limit)
    router = Router(fleet, MemoryIndex(), registry.create(name), Random(1), name=name)
    for i, (in_flight, queued, held, suspect) in enumerate(loads):
        replica = fleet.add(f"r{i}", "http://x")
        fleet.mark(f"r{i}", up=True)
        replica.view.in_flight, replica.view.queued_tokens = in_flight, queued
        if suspect:
            fleet.missed(f"r{i}")
        router.index.predict(f"r{i}", PROMPT[:held])
    request = RouteRequest(keys=PROMPT, tokens=len(PROMPT) * 16 + 3, affinity=7, session=session)
    for _ in range(again):
        before = copy.deepcopy([replica.view for replica in fleet.replicas.values()])
        told = [router.decide(request, rehearses=True) for _ in range(2)]
        assert [replica.view for replica in fleet.replicas.values()] == before
        lease = router.route(request)
        for asked, matched, _, decision in told:
            assert decision.replica.name == lease.replica.name
            assert list(decision.scores) == list(lease.choice.scores)
            assert (asked, matched.get(lease.replica.name, 0)) == (lease.asked, lease.matched)
