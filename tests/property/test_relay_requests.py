"""Whatever body a client sends, in whatever framing and cuts, the replica gets exactly that."""

from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.client import Client
from tests.support.hop import Hop, cuts_of, hopping
from tests.support.http import head

pytestmark = pytest.mark.asyncio(loop_scope="module")
few = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ROUTED = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/rerank",
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hop() -> AsyncIterator[Hop]:
    async with hopping() as hop:
        yield hop


@st.composite
def framed(draw, bodies) -> tuple[bytes, str, list[bytes]]:
    """(body, path, the request's bytes in cuts)."""
    body = draw(bodies)
    path = draw(st.sampled_from([*ROUTED, "/v1/audio/transcriptions", "/tokenize"]))
    version = draw(st.sampled_from(["1.1", "1.0"]))
    kind = draw(st.sampled_from(["application/json", "application/octet-stream", "text/plain"]))
    fields = [("Host", "h"), ("Content-Type", kind)]
    if version == "1.1" and draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 400), min_size=1, max_size=6))
        wire, at = b"", 0
        while at < len(body):
            piece = body[at : at + sizes[at % len(sizes)]]
            at += len(piece)
            wire += b"%x\r\n%b\r\n" % (len(piece), piece)
        wire += b"0\r\n\r\n"
        fields.append(("Transfer-Encoding", "chunked"))
    else:
        wire = body
        fields.append(("Content-Length", str(len(body))))
    raw = head(f"POST {path} HTTP/{version}", fields) + wire
    return body, path, cuts_of(raw, draw(st.lists(st.integers(0, 1 << 16), max_size=6)))


numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PROMPT = ["messages", "prompt", "input", "system", "tools", "documents", "query", "text", "content", "role"]
OPTIONS = [
    "n",
    "stream",
    "stream_options",
    "cache_salt",
    "echo",
    "logprobs",
    "chat_template_kwargs",
    "priority",
]
prompt_keys = st.sampled_from([*PROMPT, *OPTIONS])
objects = st.dictionaries(prompt_keys | st.text(max_size=8), json_values, max_size=6)
messages = st.lists(
    st.fixed_dictionaries({"role": json_values}, optional={"content": json_values, "tool_calls": json_values})
)
bodies = st.builds(
    lambda value, talk: msgspec.json.encode({**value, "messages": talk, "model": "m"}), objects, messages
) | objects.map(lambda value: msgspec.json.encode({**value, "model": "m"}))


@few
@given(framed(bodies))
async def test_relay_of_json_bodies_changes_nothing(hop, sent):
    body, path, cuts = sent
    response = await hop.send(cuts)
    if response.status == 200:
        [got] = hop.upstream.requests
        assert got.path == path
        if got.body != body:  # usage asked for on the client's behalf: spliced in, nothing else touched
            added = len(got.body) - len(body)
            assert path in {"/v1/chat/completions", "/v1/completions"}
            assert b"stream_options" not in body
            assert any(got.body[:at] + got.body[at + added :] == body for at in range(len(body) + 1))
            assert msgspec.json.decode(got.body)["stream_options"] == {"include_usage": True}
    else:
        assert response.status == 400
        assert response.error["type"] == "invalid_request_error"
        assert not hop.upstream.requests


@few
@given(framed(st.binary(max_size=1500)))
async def test_relay_of_any_bytes_changes_nothing(hop, sent):
    body, path, cuts = sent
    response = await hop.send(cuts)
    if response.status == 200:
        assert [bytes(each.body) for each in hop.upstream.requests] == [body]
    else:
        assert response.status in {400, 404}
        assert response.error["type"] == "invalid_request_error"
        assert not hop.upstream.requests
    if path == "/v1/audio/transcriptions" and b"model" not in body:
        assert response.status == 200


@few
@given(st.binary(min_size=1, max_size=200))
async def test_relay_answers_any_opening_bytes_with_an_error_or_silence(hop, raw):
    async with await Client.connect(hop.proxy.port) as client:
        hop.upstream.requests.clear()
        await client.send(raw + b"\r\n\r\n")
        client.half_close()
        await client.until_gone()
        assert not client.received or client.received.startswith(b"HTTP/1.")
    assert not hop.upstream.requests
