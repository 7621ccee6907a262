"""/ready tells the truth: what can be used, and which part fares badly and why."""

from tests.support.client import exchange
from tests.support.dialect import chat
from tests.support.eventually import eventually
from tests.support.fixtures import ask
from tests.support.redis import free_port

CHAT = "/v1/chat/completions"


async def test_without_redis_it_serves_and_says_why_it_is_alone(upstream, proxy_factory):
    url = f"redis://user:hunter2@127.0.0.1:{free_port()}/0"
    proxy = await proxy_factory(upstream, redis_url=url, secret="a secret of the test")
    ready = await ask(proxy, "/ready")
    assert ready.status == 200
    told = ready.json()["redis"]
    assert told["up"] is False
    assert told["why"]
    assert b"hunter2" not in ready.body
    assert (await exchange(proxy.port, "POST", CHAT, chat())).status == 200


async def test_what_is_not_there_by_choice_is_no_part(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    assert not {"redis", "discovery"} & (await ask(proxy, "/ready")).json().keys()


async def test_it_follows_the_last_replica(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, probes={"interval": 0.05})
    await upstream.die()

    async def unready() -> bool:
        return (await ask(proxy, "/ready")).status == 503

    await eventually(unready)
    ready = await ask(proxy, "/ready")
    assert ready.json()["status"] == "unavailable"
    assert ready.json()["models"]["m"]["replicas"] == 0
    assert [each["up"] for each in ready.json()["replicas"].values()] == [False]
    assert ready.one("retry-after")
    assert (await ask(proxy, "/health")).status == 200
    await upstream.listen()

    async def again() -> bool:
        return not await unready()

    await eventually(again)
