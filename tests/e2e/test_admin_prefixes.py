"""/admin/prefixes and its metrics: a prefix that many prompts share, and the replicas that hold it."""

import json
from typing import Any

import pytest

from proxy.app import Proxy
from tests.support.admin import TOKEN
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, total
from tests.support.upstream import Upstream

CHAT = "/v1/chat/completions"
SECRET_WORDS = "The launch code of the coffee machine is 0000. "
SYSTEM = SECRET_WORDS + "Many share this system prompt, which is long enough to be worth holding on to. " * 60


async def prefixes(proxy: Proxy) -> list[dict[str, Any]]:
    response = await exchange(
        proxy.port, "GET", "/admin/prefixes", None, [("Authorization", f"Bearer {TOKEN}")]
    )
    assert response.status == 200
    return list(response.json()["prefixes"])


async def chat(proxy: Proxy, question: int) -> None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"question {question}"}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert (await exchange(proxy.port, "POST", CHAT, body)).status == 200


@pytest.fixture
async def three(upstreams) -> list[Upstream]:
    return await upstreams(3)


async def test_a_shared_prefix_shows_with_its_holders_and_without_what_it_says(three, proxy_factory):
    proxy = await proxy_factory(*three, admin_token=TOKEN)
    for question in range(6):
        await chat(proxy, question)

    async def shown() -> bool:
        found = await prefixes(proxy)
        return bool(found) and bool(found[0]["holders"])

    await eventually(shown, "the prefix is shown")
    (prefix,) = await prefixes(proxy)
    assert prefix["model"] == "m"
    assert prefix["tokens"] > 500
    assert prefix["requests_per_minute"] > 0
    assert prefix["tokens_saved"] > 0
    assert prefix["replicas_wanted"] == 1
    assert prefix["state"] == "steady"
    assert len(prefix["holders"]) == 1
    (held,) = prefix["holders"]
    assert held["replica"] in {each.url.removeprefix("http://") for each in three}
    assert held["tokens"] == prefix["tokens"]
    page = bytes((await ask(proxy, "/metrics")).body).decode() + json.dumps(prefix)
    assert "launch code" not in page
    assert str(next(iter(proxy._hot._tracked))) not in page  # the key itself would let one ask for it
    assert await total(proxy, "warmroute_hot_prefixes") == 0


async def test_only_an_operator_sees_prefixes(three, proxy_factory):
    proxy = await proxy_factory(*three, admin_token=TOKEN)
    assert (await exchange(proxy.port, "GET", "/admin/prefixes")).status == 401
    wrong = [("Authorization", f"Bearer {TOKEN}")]
    assert (await exchange(proxy.port, "POST", "/admin/prefixes", b"{}", wrong)).status == 405
