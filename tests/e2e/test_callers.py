"""Who may call, and on what terms: keys, classes, models, rates, what is told, and caches of their own."""

import json
from collections.abc import Sequence

import pytest

from proxy import keys_file
from tests.support import dialect
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import ask, metric

CHAT = "/v1/chat/completions"
TOLD = {"x-warmroute-decision", "x-warmroute-predicted-cached-tokens", "x-warmroute-replica"}
ROUTES = [*dialect.routes().items(), ("/tokenize", b'{"model": "m", "prompt": "x"}')]


class Keys:
    """A file of keys that a test writes; `bearer("a")` is the header of a's key."""

    def __init__(self, path) -> None:
        self.path = path
        self._keys: dict[str, str] = {}

    def write(self, **entries: dict) -> "Keys":
        """Let in these callers, each with what is said of it, and nobody else."""
        lines = []
        for name, more in entries.items():
            key, line = keys_file.make(name)
            self._keys.setdefault(name, key)
            digest = keys_file.sha256(self._keys[name].encode()).hexdigest()
            lines.append({"name": name, "sha256": digest, **more})
            assert line
        self.path.write_text(json.dumps(lines))
        return self

    def __getitem__(self, name: str) -> str:
        return self._keys[name]

    def bearer(self, name: str) -> Sequence[tuple[str, str]]:
        return [("Authorization", f"Bearer {self[name]}")]


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path / "keys.json")


async def call(proxy, headers=(), path=CHAT, body=None):
    return await exchange(proxy.port, "POST", path, dialect.chat() if body is None else body, headers)


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
async def test_H10_a_client_shows_its_key_and_replicas_never_see_it(
    upstream, proxy_factory, keys, path, body
):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={}).path)
    for headers in (keys.bearer("a"), [("X-Api-Key", keys["a"])]):
        assert (await call(proxy, headers, path, body)).status == 200
    for headers in ([], [("Authorization", "Bearer wr-no")], [("X-Api-Key", "no")]):
        refused = await call(proxy, headers, path, body)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
    assert len(upstream.requests) == 2
    for sent in [*upstream.requests, *upstream.internal]:
        assert keys["a"].encode() not in sent.raw
        assert not sent.names() & {"authorization", "x-api-key"}


async def test_H10_replicas_get_the_proxys_own_key_instead(upstream, proxy_factory, keys):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={}).path, upstream_api_key="own")
    assert (await call(proxy, [*keys.bearer("a"), ("x-api-key", "other")])).status == 200
    assert upstream.last.all("authorization") == [b"Bearer own"]
    assert not upstream.last.all("x-api-key")


async def test_H10_without_keys_a_credential_is_forwarded_as_it_came(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    assert (await call(proxy, [("Authorization", "Bearer u1"), ("X-Api-Key", "u2")])).status == 200
    assert upstream.last.all("authorization") == [b"Bearer u1"]
    assert upstream.last.all("x-api-key") == [b"u2"]


async def test_what_is_open_and_what_is_not(upstream, proxy_factory, keys):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={}).path)
    for path in ("/health", "/ready", "/metrics"):
        assert (await ask(proxy, path)).status == 200
    assert (await ask(proxy, "/v1/models")).status == 401
    assert (await ask(proxy, "/v1/files")).status == 401
    assert (await exchange(proxy.port, "GET", "/v1/models", None, keys.bearer("a"))).status == 200


async def test_a_changed_file_counts_while_the_proxy_runs(upstream, proxy_factory, keys):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={}).path)
    assert (await call(proxy, keys.bearer("a"))).status == 200
    keys.write(b={})

    async def only_b():
        statuses = [(await call(proxy, keys.bearer(name))).status for name in ("a", "b")]
        return statuses == [401, 200]

    await eventually(only_b)
    keys.path.write_text("[")
    await proxy.gate.look()
    assert (await call(proxy, keys.bearer("b"))).status == 200


async def test_what_is_cached_is_told_only_to_keys_that_may_know(upstream, proxy_factory, keys):
    keys.write(open={"sees_cache": True}, closed={})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path)
    assert (await call(proxy, keys.bearer("open"))).names() >= TOLD
    reply = await call(proxy, keys.bearer("closed"))
    assert not TOLD & reply.names()
    assert {"x-request-id", "x-warmroute-policy", "x-warmroute-prompt-tokens"} <= reply.names()


async def test_without_keys_everybody_is_told(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    assert (await call(proxy)).names() >= TOLD


@pytest.mark.parametrize("asked", ["interactive", "INTERACTIVE", "standard", "batch", None])
@pytest.mark.parametrize("most", ["interactive", "standard", "batch"])
async def test_Q03_no_class_is_higher_than_the_key_allows(upstream, proxy_factory, keys, most, asked):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={"most": most}).path)
    headers = [*keys.bearer("a")] + ([("X-Warmroute-Priority", asked)] if asked else [])
    assert (await call(proxy, headers)).status == 200
    order = ["interactive", "standard", "batch"]
    expected = order[max(order.index((asked or "standard").lower()), order.index(most))]

    async def booked():
        return {dict(each)["priority"] for each in await metric(proxy, "warmroute_requests_total")}

    assert await eventually(booked) == {expected}


ODD = ["999999", "-5", "1.5", "abc", "", "NaN", "interactive, batch", "\xff", "interactive\x0b"]


@pytest.mark.parametrize("value", ODD)
async def test_Q03_a_class_that_is_none_is_the_usual_one_and_never_an_error(
    upstream, proxy_factory, keys, value
):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={"most": "interactive"}).path)
    headers = [*keys.bearer("a"), ("Priority", "u=3, i"), ("X-Warmroute-Priority", value)]
    assert (await call(proxy, headers)).status in {200, 400}
    body = dialect.chat(priority="-999999")
    assert (await call(proxy, keys.bearer("a"), body=body)).status == 200


async def test_a_key_asks_for_its_own_models_only(upstream, proxy_factory, keys):
    keys.write(some={"models": ["fast"]}, other={"models": ["x"]}, all={})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path, aliases={"fast": "m"})
    plain = {"messages": dialect.MESSAGES}

    async def status(name: str, body: object, path: str = CHAT, kind: str = "application/json") -> int:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = await call(proxy, [*keys.bearer(name), ("Content-Type", kind)], path, raw)
        if reply.status == 404:
            assert reply.error["code"] == "model_not_found"
            assert "fast" not in reply.error["message"], "what there is for others is not told"
        return reply.status

    assert await status("some", {"model": "fast", **plain}) == 200
    assert await status("some", {"model": "m", **plain}) == 404
    assert await status("some", plain) == 404
    assert await status("some", {"model": "nothing", **plain}) == 404
    assert await status("all", {"model": "m", **plain}) == 200
    assert await status("all", plain) == 200
    speech = "/v1/audio/speech"
    assert await status("some", {"model": "fast", "input": "x"}, speech) == 200
    assert await status("some", {"model": "m", "input": "x"}, speech) == 404
    assert await status("some", {"input": "x"}, speech) == 404
    assert await status("some", {"model": "m"}, speech, "text/plain") == 404
    assert await status("some", '{"model": "m"}'.encode("utf-16"), speech) == 404
    assert await status("some", {"model": "fast", "lora_path": "secret", **plain}) == 404
    zipped = await call(proxy, [*keys.bearer("some"), ("Content-Encoding", "zstd")], body=b"?")
    assert zipped.status == 400
    models = {
        name: [
            card["id"]
            for card in (await exchange(proxy.port, "GET", "/v1/models", None, keys.bearer(name))).json()[
                "data"
            ]
        ]
        for name in ("some", "other", "all")
    }
    assert models == {"some": ["fast"], "other": [], "all": ["m", "fast"]}


async def test_requests_a_minute_are_counted_by_key(upstream, proxy_factory, keys):
    keys.write(slow={"requests_per_minute": 2}, free={})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path)
    replies = [await call(proxy, keys.bearer("slow")) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    error = replies[-1].error
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert 1 <= int(replies[-1].one("retry-after")) <= 30
    assert (await call(proxy, keys.bearer("free"))).status == 200
    assert len(upstream.requests) == 3


async def test_tokens_a_minute_are_those_of_prompts_and_answers(upstream, proxy_factory, keys):
    """The replica reports 32 and 2, whatever the proxy counted."""
    keys.write(a={"tokens_per_minute": 60})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path)
    assert [(await call(proxy, keys.bearer("a"))).status for _ in range(3)] == [200, 200, 429]
    assert (await call(proxy, keys.bearer("a"))).error["type"] == "tokens"


async def test_an_answer_that_failed_costs_no_tokens(upstream, proxy_factory, keys):
    keys.write(a={"tokens_per_minute": 60})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path)

    async def fail(exchange):
        await exchange.json({"error": "no"}, "500 Internal Server Error")

    good, upstream.behaviour = upstream.behaviour, fail
    assert [(await call(proxy, keys.bearer("a"))).status for _ in range(9)] == [500] * 9
    upstream.behaviour = good
    assert (await call(proxy, keys.bearer("a"))).status == 200


async def test_rates_without_keys_are_by_address_and_trusted_proxies_say_whose(upstream, proxy_factory):
    limits = {"requests_per_minute": 2}
    trusting = await proxy_factory(upstream, limits=limits, trusted_proxies="127.0.0.0/8, 10.0.0.0/8")
    wary = await proxy_factory(upstream, limits=limits, trusted_proxies="10.0.0.0/8")

    async def statuses(proxy, *claims):
        return [(await call(proxy, [("X-Forwarded-For", claim)])).status for claim in claims]

    assert await statuses(trusting, "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2") == [
        200,
        200,
        429,
        200,
    ]
    assert await statuses(trusting, "192.0.2.9, 192.0.2.1", "192.0.2.1, 10.1.1.1") == [429, 429]
    assert await statuses(wary, "192.0.2.1", "192.0.2.2", "192.0.2.3") == [200, 200, 429]
    claimed = [bool(each.all("x-forwarded-for")) for each in upstream.requests]
    assert claimed == [True] * 3 + [False] * 2, "only a trusted proxy's word is passed on"


async def test_a_rate_with_an_embedded_redis_is_the_same(upstream, proxy_factory, keys):
    keys.write(a={"requests_per_minute": 5})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path, redis_url="embedded")
    await eventually(lambda: proxy.gate.rates.leased, "the first round")
    statuses = [(await call(proxy, keys.bearer("a"))).status for _ in range(8)]
    assert statuses.count(200) in {5, 6}
    assert statuses[-1] == 429


async def test_each_key_has_a_cache_of_its_own_in_router_and_engine(upstream, proxy_factory, keys):
    keys.write(a={"sees_cache": True}, b={"sees_cache": True})
    proxy = await proxy_factory(upstream, api_keys_file=keys.path, salt_per_key=True)
    body = dialect.body(messages=[{"role": "user", "content": "word " * 400}])

    async def predicted(name, given):
        reply = await call(proxy, keys.bearer(name), body=given)
        assert reply.status == 200
        return int(reply.one("x-warmroute-predicted-cached-tokens"))

    assert await predicted("a", body) == 0
    assert await predicted("a", body) > 0
    assert await predicted("b", body) == 0, "the same prompt, and another's cache"
    forged = (
        body[:-1]
        + b', "cache_salt": '
        + json.dumps(upstream.requests[0].json()["cache_salt"]).encode()
        + b"}"
    )
    assert await predicted("b", forged) == 0
    first, second, third, fourth = (each.json().pop("cache_salt") for each in upstream.requests)
    assert first == second
    assert len({first, third, fourth}) == 3
    sent = bytes(upstream.requests[0].body)
    assert sent.startswith(body[:-1]), "everything else stays as it came"


async def test_a_salted_stream_still_learns_its_usage(upstream, proxy_factory, keys):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={}).path, salt_per_key=True)
    upstream.behaviour = dialect.stream_of(
        dialect.delta("ok"), dialect.delta("", finish_reason="stop"), dialect.usage_event(), dialect.DONE
    )
    reply = await call(proxy, keys.bearer("a"), body=dialect.chat(stream=True))
    assert reply.status == 200
    assert b"usage" not in reply.body
    sent = upstream.last.json()
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["cache_salt"]


async def test_what_an_engine_cannot_keep_apart_is_refused(upstream, proxy_factory, keys):
    proxy = await proxy_factory(upstream, api_keys_file=keys.write(a={}).path, salt_per_key=True)
    body = dialect.routes()["/v1/messages"]
    refused = await call(proxy, keys.bearer("a"), "/v1/messages", body)
    assert (refused.status, refused.error["code"]) == (501, "cache_isolation_unsupported")
    for odd in ('{"model": "m"}'.encode("utf-16"), b'{"model": "m"} '):
        assert (await call(proxy, keys.bearer("a"), body=odd)).status in {200, 400}
    zstd = await call(proxy, [*keys.bearer("a"), ("Content-Encoding", "zstd")], body=b"?")
    assert zstd.status == 400
    assert all("cache_salt" in each.json() for each in upstream.requests)
