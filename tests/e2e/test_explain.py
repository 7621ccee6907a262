"""/admin/requests and /admin/route: why requests went, or would go, where they do."""

import gzip
import json
from typing import Any

import pytest

from proxy.app import Proxy
from tests.support.admin import TOKEN
from tests.support.client import exchange
from tests.support.fixtures import metric
from tests.support.http import Response

CHAT = "/v1/chat/completions"
SECRET = "the launch code is swordfish"
LONG = f"{SECRET}. " * 200


async def ask(proxy: Proxy, method: str, path: str, body: Any = None, *headers: tuple[str, str]) -> Response:
    content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    credentials = [("Authorization", f"Bearer {TOKEN}"), *headers]
    return await exchange(proxy.port, method, path, content, credentials)


async def chat(proxy: Proxy, text: str = LONG, *headers: tuple[str, str]) -> Response:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    response = await exchange(proxy.port, "POST", CHAT, json.dumps(body).encode(), headers)
    assert response.status == 200
    return response


def told(response: Response) -> dict[str, Any]:
    assert response.status == 200, response.body
    assert b"swordfish" not in response.body
    return response.json()


@pytest.fixture
async def proxy(upstreams, proxy_factory) -> Proxy:
    return await proxy_factory(*await upstreams(3), admin_token=TOKEN)


async def dry(proxy: Proxy, text: str = LONG, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return told(await ask(proxy, "POST", "/admin/route", body))


async def test_a_request_that_has_ended_is_explained_by_its_id(proxy):
    await chat(proxy)
    warm = await chat(proxy)
    name, home = warm.one("x-request-id").decode(), warm.one("x-warmroute-replica").decode()
    found = told(await ask(proxy, "GET", f"/admin/requests/{name}"))
    assert (found["id"], found["replica"], found["decision"]) == (name, home, "hit")
    assert found["tokens"]["predicted_cached"] == int(warm.one("x-warmroute-predicted-cached-tokens"))
    assert found["warmest"] == {"replica": home, "matched_tokens": found["tokens"]["predicted_cached"]}
    assert found["why"].startswith(f"{home} held the most of the prompt")
    assert found["why_not_the_warmest"] is None
    assert found["unit"] == "milliseconds"
    best, *others = found["replicas"]
    assert best["replica"] == home
    assert best["matched_tokens"] + best["uncached_tokens"] == found["tokens"]["prompt"]
    assert len(others) == 2
    assert found["runner_up"]["replica"] == others[0]["replica"]
    assert found["runner_up"]["behind"] == pytest.approx(others[0]["score"] - best["score"], abs=0.01)
    for row in found["replicas"]:
        assert sum(row["terms"].values()) == pytest.approx(row["score"], abs=0.01)
        assert row["terms"].keys() >= {"queue", "prefill", "base", "recompute", "balance"}


async def test_a_client_may_have_named_its_request(proxy):
    await chat(proxy, "x", ("X-Request-Id", "my/own-1"))
    assert told(await ask(proxy, "GET", "/admin/requests/my%2Fown-1"))["id"] == "my/own-1"


async def test_requests_are_listed_newest_first(proxy):
    names = [(await chat(proxy, str(i))).one("x-request-id").decode() for i in range(5)]
    listed = told(await ask(proxy, "GET", "/admin/requests?limit=3"))["requests"]
    assert [each["id"] for each in listed] == names[:1:-1]
    assert told(await ask(proxy, "GET", "/admin/requests?decision=spill"))["requests"] == []
    assert {each["decision"] for each in told(await ask(proxy, "GET", "/admin/requests"))["requests"]} == {
        "cold"
    }


async def test_what_was_never_sent_says_so(proxy):
    refused = await exchange(proxy.port, "POST", CHAT, b'{"model": "nobody"}')
    found = told(await ask(proxy, "GET", f"/admin/requests/{refused.one('x-request-id').decode()}"))
    assert (found["status"], found["replica"]) == (404, "")
    assert "never sent" in found["why"]


@pytest.mark.parametrize("limit", ["0", "-1", "x", "501", "", "%D9%A3", "9" * 40])
async def test_a_limit_that_is_none_is_refused(proxy, limit):
    assert (await ask(proxy, "GET", f"/admin/requests?limit={limit}")).status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/requests/nobody", 404),
        ("GET", "/admin/requests/", 404),
        ("GET", "/admin/requests/%00", 404),
        ("POST", "/admin/requests", 405),
        ("DELETE", "/admin/requests/x", 405),
        ("GET", "/admin/route", 405),
        ("GET", "/admin/route/x", 404),
    ],
)
async def test_what_is_not_there(proxy, method, path, status):
    response = await ask(proxy, method, path, b"" if method == "POST" else None)
    assert response.status == status
    assert response.error


@pytest.mark.parametrize("path", ["/admin/requests", "/admin/requests/x", "/admin/route"])
@pytest.mark.parametrize("token", [None, "wrong", TOKEN + "x"])
async def test_without_the_token_nothing_is_told(proxy, path, token):
    headers = [] if token is None else [("Authorization", f"Bearer {token}")]
    method, body = ("POST", b"{}") if path == "/admin/route" else ("GET", None)
    assert (await exchange(proxy.port, method, path, body, headers)).status == 401


async def test_without_a_token_a_proxy_that_others_reach_tells_nothing(upstreams, proxy_factory):
    proxy = await proxy_factory(*await upstreams(1), host="0.0.0.0")
    assert (await exchange(proxy.port, "GET", "/admin/requests")).status == 401
    assert (await exchange(proxy.port, "POST", "/admin/route", b"{}")).status == 401


async def test_a_dry_run_foretells_the_decision_and_leaves_nothing_behind(proxy):
    home = (await chat(proxy)).one("x-warmroute-replica").decode()
    before = await state(proxy)
    first, second = await dry(proxy), await dry(proxy)
    assert await state(proxy) == before
    assert first["replica"] == second["replica"] == home
    real = await chat(proxy)
    assert real.one("x-warmroute-replica").decode() == home
    assert real.one("x-warmroute-decision").decode() == first["decision"] == "hit"
    assert int(real.one("x-warmroute-predicted-cached-tokens")) == first["predicted_cached_tokens"] > 0
    assert int(real.one("x-warmroute-prompt-tokens")) == first["prompt"]["tokens"]
    assert first["wait"]["would_wait"] is False
    assert {row["replica"] for row in first["fleet"]} == {row["replica"] for row in first["replicas"]}
    held = next(row for row in first["fleet"] if row["replica"] == home)
    assert held["matched_blocks"] == held["predicted_blocks"] == first["prompt"]["blocks"]
    for row in first["replicas"]:
        assert sum(row["terms"].values()) == pytest.approx(row["score"], abs=0.01)


async def state(proxy: Proxy) -> dict[str, Any]:
    """Everything that a request would have changed."""
    index = {name: proxy.index.blocks(name) for name in proxy.fleet.replicas}
    counters = [
        await metric(proxy, f"warmroute_{name}_total") for name in ("requests", "decisions", "prefix_tokens")
    ]
    views = [replica.view for replica in proxy.fleet.replicas.values()]
    return {
        "index": index,
        "counters": counters,
        "loads": [(view.in_flight, view.running, view.queued_tokens) for view in views],
    }


async def test_a_dry_run_sends_nothing(upstreams, proxy_factory):
    fleet = await upstreams(2)
    proxy = await proxy_factory(*fleet, admin_token=TOKEN)
    await dry(proxy)
    assert all(each.path in ("/health", "/metrics", "/v1/models") for one in fleet for each in one.requests)


async def test_a_dry_run_takes_no_turn(upstreams, proxy_factory):
    proxy = await proxy_factory(*await upstreams(3), admin_token=TOKEN, policy="round_robin")
    expected = (await dry(proxy))["replica"]
    answer = await dry(proxy)
    assert answer["replica"] == expected == (await chat(proxy)).one("x-warmroute-replica").decode()
    assert all("score" not in row for row in answer["replicas"])


@pytest.mark.parametrize(
    ("body", "endpoint"),
    [
        ({"prompt": "once upon a time"}, "/v1/completions"),
        ({"input": "once upon a time"}, "/v1/responses"),
        ({"text": "once upon a time"}, "/generate"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, CHAT),
    ],
)
async def test_the_endpoint_is_told_by_the_body_or_named(proxy, body, endpoint):
    assert told(await ask(proxy, "POST", "/admin/route", {"model": "m", **body}))["endpoint"] == endpoint
    named = await ask(proxy, "POST", "/admin/route?endpoint=/v1/messages", {"model": "m", **body})
    assert told(named)["endpoint"] == "/v1/messages"


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"", "", 400),
        (b"[]", "", 400),
        (b"{", "", 400),
        (b'{"model": 3}', "", 400),
        (b'{"model": "nobody", "messages": []}', "", 404),
        (b'{"messages": []}', "?endpoint=/v1/nonsense", 404),
    ],
)
async def test_a_dry_run_of_what_is_no_request_says_what_is_wrong(proxy, body, path, status):
    response = await ask(proxy, "POST", f"/admin/route{path}", body)
    assert response.status == status
    assert response.error


async def test_a_prompt_that_is_not_understood_goes_by_load(proxy):
    answer = told(await ask(proxy, "POST", "/admin/route", {"model": "m", "messages": "nonsense"}))
    assert answer["decision"] == "fallback"
    assert answer["prompt"]["keyed"] == "none"
    assert "load decided" in answer["why"]


async def test_a_dry_run_counts_the_class_and_the_session(upstreams, proxy_factory):
    proxy = await proxy_factory(*await upstreams(3), admin_token=TOKEN, policy="consistent_hash")
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    headers = (("X-Warmroute-Priority", "batch"), ("X-Session-Id", "s1"))
    answer = told(await ask(proxy, "POST", "/admin/route", body, *headers))
    assert (answer["priority"], answer["decision"]) == ("batch", "session")
    assert answer["replica"] == (await chat(proxy, "x", headers[1])).one("x-warmroute-replica").decode()


async def test_who_is_no_candidate_is_listed_with_the_reason(proxy):
    home = (await chat(proxy)).one("x-warmroute-replica").decode()
    assert (await ask(proxy, "POST", f"/admin/replicas/{home}/drain")).status == 200
    answer = await dry(proxy)
    assert answer["replica"] != home
    drained = next(row for row in answer["fleet"] if row["replica"] == home)
    assert drained["candidate"] is False
    assert "drain" in drained["why_not"]
    assert drained["matched_blocks"] > 0


async def test_a_body_in_a_coding_is_looked_through(proxy):
    body = gzip.compress(json.dumps({"model": "m", "prompt": "x" * 400}).encode())
    answer = told(await ask(proxy, "POST", "/admin/route", body, ("Content-Encoding", "gzip")))
    assert answer["prompt"]["blocks"] > 0
    assert (await ask(proxy, "POST", "/admin/route", b"x", ("Content-Encoding", "br"))).status == 400


async def test_both_sides_of_a_canary_are_explained(upstreams, proxy_factory):
    canary = {"policy": "prefix_affinity", "baseline_seconds": 0}
    proxy = await proxy_factory(*await upstreams(2), admin_token=TOKEN, canary=canary)
    assert (await ask(proxy, "POST", "/admin/canary", {"percent": 100})).status == 200
    told(await ask(proxy, "GET", "/admin/requests"))  # after which decisions are noted in full
    name = (await chat(proxy)).one("x-request-id").decode()
    found = told(await ask(proxy, "GET", f"/admin/requests/{name}"))
    assert (found["arm"], found["policy"], found["unit"]) == ("canary", "prefix_affinity", "points")
    assert found["replicas"][0]["terms"].keys() == {"prefix", "queue", "space"}
    answer = await dry(proxy)
    assert (answer["arm"], answer["policy"], answer["unit"]) == ("canary", "prefix_affinity", "points")
