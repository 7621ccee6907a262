"""/admin/breaks, /admin/shadow, /admin/savings: over HTTP, in front of replicas."""

import json

import pytest

from tests.support import dialect
from tests.support.admin import TOKEN
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import total

CHAT = "/v1/chat/completions"
CREDENTIALS = [("Authorization", f"Bearer {TOKEN}")]
REST = "Answer what is asked, in few words, and say nothing of the weather. " * 12


async def told(proxy, name):
    response = await exchange(proxy.port, "GET", f"/admin/{name}", headers=CREDENTIALS)
    assert response.status == 200
    return response.json()


def prompt(start: str) -> bytes:
    messages = [{"role": "system", "content": f"{start} {REST}"}, {"role": "user", "content": "Where?"}]
    return json.dumps({"model": "m", "messages": messages}).encode()


async def test_a_break_is_found_while_the_proxy_runs(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, admin_token=TOKEN, breaks={"per_second": 100})

    async def found() -> bool:
        for at in range(3):
            body = prompt(f"It is 10:{at + 10}:{len(upstream.requests) % 60:02}. The user is Zebulon.")
            assert (await exchange(proxy.port, "POST", CHAT, body)).status == 200
        return bool((await told(proxy, "breaks"))["breaks"])

    await eventually(found, "a break is told of")
    page = await told(proxy, "breaks")
    (one,) = page["breaks"]
    assert (one["kind"], one["path"], one["offset"]) == ("timestamp", "messages[0].content", 6)
    assert one["requests_per_day"] > 0
    assert one["tokens_per_day"] > 50 * one["requests_per_day"]
    assert "Zebulon" not in json.dumps(page)
    assert 3 <= page["requests_looked_at"] <= page["requests_that_missed"]
    assert await total(proxy, "warmroute_breaks_tokens_per_day", kind="timestamp") > 0


async def test_breaks_can_be_off(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, admin_token=TOKEN, breaks={"per_second": 0})
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    assert (await exchange(proxy.port, "GET", "/admin/breaks", headers=CREDENTIALS)).status == 404


async def test_shadows_and_savings_are_told(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, admin_token=TOKEN, shadow=["random"], savings={"sample": 1.0})
    for _ in range(3):
        assert (await exchange(proxy.port, "POST", CHAT, prompt("Hello."))).status == 200

    async def both() -> bool:
        return [each["requests"] for each in (await told(proxy, "shadow"))["shadows"]] == [3, 3]

    await eventually(both, "both have seen three requests")
    shadows = (await told(proxy, "shadow"))["shadows"]
    assert [each["policy"] for each in shadows] == ["prefix_cost", "random"]
    assert all(each["hit_rate"] > 0.5 for each in shadows), "of the same prompt, on one replica"
    savings = await told(proxy, "savings")
    assert savings["saved_gpu_seconds"] is None
    assert savings["waiting_for"]
    assert await total(proxy, "warmroute_shadow_tokens_total", policy="random", stage="routed") > 0


@pytest.mark.parametrize("name", ["breaks", "shadow", "savings", "canary", "policy"])
async def test_all_of_it_needs_the_token(upstream, proxy_factory, name):
    proxy = await proxy_factory(upstream, admin_token=TOKEN)
    assert (await exchange(proxy.port, "GET", f"/admin/{name}")).status == 401
    assert (await exchange(proxy.port, "PUT", f"/admin/{name}", headers=CREDENTIALS)).status == 405
