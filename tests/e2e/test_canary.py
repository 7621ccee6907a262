"""/admin/canary and /admin/policy: by hand, over HTTP, in front of replicas."""

import json

import pytest

from tests.support import dialect
from tests.support.admin import TOKEN
from tests.support.client import exchange
from tests.support.fixtures import counts, total

CHAT = "/v1/chat/completions"
CREDENTIALS = [("Authorization", f"Bearer {TOKEN}")]
NOW = {"baseline_seconds": 0}


async def call(proxy, method, path, body=None):
    raw = None if body is None else json.dumps(body).encode()
    return await exchange(proxy.port, method, f"/admin/{path}", raw, CREDENTIALS)


async def arm(proxy) -> tuple[str, str, str]:
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat())
    assert response.status == 200
    names = ("x-warmroute-arm", "x-warmroute-policy", "x-warmroute-replica")
    return tuple(response.one(name).decode() for name in names)


async def start(proxy_factory, *there, **settings):
    named = [{"url": each.url, "name": name} for name, each in zip("ab", there, strict=False)]
    return await proxy_factory(*there, replicas=named, admin_token=TOKEN, **settings)


async def test_a_canary_is_steered_by_hand(upstream, proxy_factory):
    proxy = await start(proxy_factory, upstream, canary={"policy": "round_robin", **NOW})
    told = (await call(proxy, "GET", "canary")).json()["canary"]
    assert (told["policy"], told["against"], told["percent"]) == ("round_robin", "prefix_cost", 5)
    assert told["phase"] == "running"
    assert (await call(proxy, "POST", "canary", {"percent": 100})).json()["canary"]["percent"] == 100
    assert (await arm(proxy))[:2] == ("canary", "round_robin")
    await counts(proxy, "warmroute_e2e_seconds_count", 1, arm="canary", policy="round_robin")
    told = (await call(proxy, "POST", "canary", {"action": "rollback"})).json()["canary"]
    assert (told["phase"], told["percent"], told["reason"]) == ("rolled_back", 0, "by_hand")
    assert (await arm(proxy))[:2] == ("main", "prefix_cost")
    assert await total(proxy, "warmroute_canary_rollbacks_total", reason="by_hand") == 1
    for action, phase in (("promote", "running"), ("pause", "paused"), ("resume", "running")):
        told = (await call(proxy, "POST", "canary", {"action": action})).json()["canary"]
        assert (told["phase"], told["percent"]) == (phase, 5)


async def test_a_canary_begins_and_ends_while_the_proxy_runs(upstreams, proxy_factory):
    a, b = await upstreams(2)
    proxy = await start(proxy_factory, a, b)
    assert (await call(proxy, "GET", "canary")).json() == {"canary": None}
    assert (await call(proxy, "POST", "canary", {"percent": 5})).status == 404
    begun = await call(proxy, "POST", "canary", {"replicas": ["b"], **NOW})
    assert begun.json()["canary"]["replicas"] == ["b"]
    await call(proxy, "POST", "canary", {"percent": 100})
    assert await arm(proxy) == ("canary", "prefix_cost", "b")
    await call(proxy, "POST", "canary", {"action": "rollback"})
    assert await arm(proxy) == ("main", "prefix_cost", "a")
    assert (await call(proxy, "DELETE", "canary")).status == 204
    assert (await call(proxy, "GET", "canary")).json() == {"canary": None}
    assert (await arm(proxy))[0] == "main"


async def test_the_dry_run_asks_the_same_side(upstream, proxy_factory):
    proxy = await start(proxy_factory, upstream, canary={"policy": "least_load", **NOW})
    await call(proxy, "POST", "canary", {"percent": 100})
    response = await exchange(proxy.port, "POST", "/admin/route", dialect.chat(), CREDENTIALS)
    assert b"least_load" in response.body


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "JSON object"),
        (b"[]", 400, "JSON object"),
        (b'{"action": "explode"}', 400, "promote"),
        (b'{"action": ["promote"]}', 400, "promote"),
        (b'{"action": "pause", "percent": 5}', 400, "action"),
        (b'{"percent": 101}', 400, "percent"),
        (b'{"percent": true}', 400, "percent"),
        (b'{"percent": "5"}', 400, "percent"),
        (b'{"policy": "prefix_cots"}', 400, "prefix_cost"),
        (b'{"polcy": "prefix_cost"}', 400, "polcy"),
        (b"{}", 400, "tries something"),
    ],
)
async def test_what_is_not_understood_is_said_and_changes_nothing(
    upstream, proxy_factory, body, status, word
):
    proxy = await start(proxy_factory, upstream, canary={"policy": "round_robin", **NOW})
    response = await exchange(proxy.port, "POST", "/admin/canary", body, CREDENTIALS)
    assert response.status == status
    assert word in response.error["message"]
    told = (await call(proxy, "GET", "canary")).json()["canary"]
    assert (told["policy"], told["percent"], told["phase"]) == ("round_robin", 5, "running")
    assert (await exchange(proxy.port, "GET", "/admin/canary")).status == 401


async def test_the_policy_is_changed_for_all_traffic(upstream, proxy_factory):
    proxy = await start(proxy_factory, upstream)
    assert (await call(proxy, "GET", "policy")).json()["policy"] == "prefix_cost"
    told = await call(proxy, "POST", "policy", {"policy": "prefix_affinity"})
    assert told.json()["policy"] == "prefix_affinity"
    assert (await arm(proxy))[:2] == ("main", "prefix_affinity")
    for body in ({"policy": "nope"}, {"policy": 5}, {"policy": "random", "params": {"no": 1}}, {}):
        assert (await call(proxy, "POST", "policy", body)).status == 400
    assert (await call(proxy, "GET", "policy")).json()["policy"] == "prefix_affinity"
