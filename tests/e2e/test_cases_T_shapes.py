"""T, end to end: prompts of every shape reach the engine (T05), lone surrogates harm nothing (T08)."""

import pytest

from proxy.app import Proxy
from tests.support import dialect
from tests.support.client import exchange
from tests.support.fixtures import ask, idle
from tests.support.upstream import Exchange, Upstream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

MESSAGES = {
    "two-texts": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ],
    "one-text": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "null-with-tool-calls": [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "y"},
    ],
    "empty": [],
    "empty-content": [{"role": "user", "content": ""}],
    "no-content": [{"role": "user"}],
    "odd-role": [{"role": "wizard", "content": "x"}],
    "number": [{"role": "user", "content": 7}],
    "not-a-message": ["x", 7, None],
    "null": None,
    "string": "hi",
    "object": {"role": "user"},
    "unknown-part": [{"role": "user", "content": [{"type": "hologram", "hologram": {}}]}],
    "null-part": [{"role": "user", "content": [None, 7, "x", {}]}],
}
PROMPTS = [
    "",
    [],
    [""],
    [[]],
    [1, 2, 3],
    [[1], [2, 3]],
    ["a", "b"],
    [1, "a"],
    None,
    7,
    {},
    [-1],
    [2**70],
    [1.5],
    [True],
]


@pytest.mark.parametrize("shape", MESSAGES)
async def test_T05_messages_of_every_shape_reach_the_engine(upstream, proxy_factory, shape):
    proxy = await proxy_factory(upstream)
    await judged_by_the_engine(upstream, proxy, CHAT, dialect.body(messages=MESSAGES[shape]))


@pytest.mark.parametrize("prompt", PROMPTS, ids=repr)
async def test_T05_prompts_of_every_shape_reach_the_engine(upstream, proxy_factory, prompt):
    proxy = await proxy_factory(upstream)
    await judged_by_the_engine(upstream, proxy, COMPLETIONS, dialect.body(prompt=prompt))


async def test_T05_a_body_without_a_prompt_reaches_the_engine(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    for path in (*dialect.routes(), "/v1/embeddings", "/v1/rerank"):
        await judged_by_the_engine(upstream, proxy, path, b'{"model":"m"}')


async def judged_by_the_engine(upstream: Upstream, proxy: Proxy, path: str, sent: bytes) -> None:
    """The body gets there as it is, and the engine's 400 comes back as it is."""

    async def refuse(exchange: Exchange) -> None:
        await exchange.answer(b'{"object":"error","code":400}', "400 Bad Request")

    upstream.behaviour = refuse
    before = len(upstream.requests)
    response = await exchange(proxy.port, "POST", path, sent)
    assert (response.status, response.body) == (400, b'{"object":"error","code":400}')
    assert len(upstream.requests) == before + 1
    assert upstream.last.body == sent
    await idle(proxy)


LONE = b"\\ud800 hi"
SURROGATES = {
    "content": b'{"model":"m","messages":[{"role":"user","content":"%b"}]}',
    "part": b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"%b"}]}]}',
    "role": b'{"model":"m","messages":[{"role":"%b","content":"x"}]}',
    "user": b'{"model":"m","user":"%b","messages":[{"role":"user","content":"x"}]}',
    "salt": b'{"model":"m","cache_salt":"%b","messages":[{"role":"user","content":"x"}]}',
    "tool-arguments": b'{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1",'
    b'"type":"function","function":{"name":"f","arguments":"%b"}}]}]}',
    "tool": b'{"model":"m","tools":[{"type":"function","function":{"name":"%b"}}],"messages":[{"role":"user",'
    b'"content":"x"}]}',
    "key": b'{"model":"m","%b":1,"messages":[{"role":"user","content":"x"}]}',
    "model": b'{"model":"%b","messages":[{"role":"user","content":"x"}]}',
}


@pytest.mark.parametrize(
    "lone", [LONE, b"\\udfff", b"x\\ud83dx", b"\xed\xa0\x80"], ids=["high", "low", "mid", "raw"]
)
@pytest.mark.parametrize("where", SURROGATES)
async def test_T08_lone_surrogate_is_routed_by_load(upstream, proxy_factory, where, lone):
    proxy = await proxy_factory(upstream)
    sent = SURROGATES[where] % lone
    response = await exchange(proxy.port, "POST", CHAT, sent, [("X-Session-Id", "s\xe9\xff")])
    if response.status == 200:
        assert upstream.last.body == sent
    else:
        assert response.status in ({400, 404} if where == "model" else {400})
        assert response.error
        assert not upstream.requests
    bytes((await ask(proxy, "/metrics")).body).decode()
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    await idle(proxy)


@pytest.mark.parametrize("prompt", [LONE, b"\\udc00"], ids=["high", "low"])
async def test_T08_a_lone_surrogate_in_a_prompt(upstream, proxy_factory, prompt):
    proxy = await proxy_factory(upstream)
    for path, sent in [
        (COMPLETIONS, b'{"model":"m","prompt":"%b"}' % prompt),
        (COMPLETIONS, b'{"model":"m","prompt":["a","%b"]}' % prompt),
        ("/v1/responses", b'{"model":"m","input":"%b"}' % prompt),
        ("/v1/embeddings", b'{"model":"m","input":["%b"]}' % prompt),
        ("/v1/rerank", b'{"model":"m","query":"%b","documents":["a"]}' % prompt),
        ("/v1/messages", b'{"model":"m","max_tokens":1,"system":"%b","messages":[]}' % prompt),
        ("/generate", b'{"text":"%b"}' % prompt),
    ]:
        response = await exchange(proxy.port, "POST", path, sent)
        assert response.status in {200, 400}, path
        if response.status == 200:
            assert upstream.last.body == sent
        else:
            assert response.error
