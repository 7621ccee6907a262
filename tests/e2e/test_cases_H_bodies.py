"""H, bodies: they pass byte for byte (H11), and a content coding is looked through within limits (H13)."""

import asyncio
import gzip
import json
import zlib

import pytest

from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import turns
from tests.support.fixtures import idle
from tests.support.http import head, request

CHAT = "/v1/chat/completions"

ODD = (
    b'{ "cache_salt":"s\\u00e9" ,"priority": 9223372036854775807,"x":1e2,\n\t"big":1234567890123456789012,'
    b'"chat_template_kwargs":{"b":1,"a":-0.0},"messages":[{"role":"user",'
    b'"content":"\\ud83d\\ude42 \\/ \xc3\xa9"}],'
    b'"logit_bias":{"5":1.50},"vllm_xargs":{"k":null}, "model" : "m"  } \r\n'
)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_H11_a_body_passes_byte_for_byte(upstream, proxy_factory, framing):
    proxy = await proxy_factory(upstream)
    if framing == "length":
        raw = request("POST", CHAT, ODD)
    else:
        cuts = b"".join(
            b"%x;a=b\r\n%b\r\n" % (len(ODD[at : at + 9]), ODD[at : at + 9]) for at in range(0, len(ODD), 9)
        )
        raw = head(f"POST {CHAT} HTTP/1.1", [("Host", "h"), ("Transfer-Encoding", "chunked")])
        raw += cuts + b"0\r\nX-Trailer: 1\r\n\r\n"
    async with await Client.connect(proxy.port) as client:
        await client.send(raw)
        assert (await client.response()).status == 200
    assert upstream.last.body == ODD


async def test_H11_an_alias_changes_the_model_and_nothing_else(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, aliases={"nick": "m"})
    for sent in (ODD.replace(b'"model" : "m"', b'"model" : "nick"'), ODD.replace(b'"m"', b'"n\\u0069ck"')):
        assert (await exchange(proxy.port, "POST", CHAT, sent)).status == 200
        assert upstream.last.body == ODD


@pytest.mark.parametrize(
    "target", ["/v1/audio/speech?a=%2F..%2f&b=+&c", "/v1/x/../y%20z", "/v1//x", "/v1/caf%C3%A9?"]
)
async def test_H11_a_target_passes_as_it_came(upstream, proxy_factory, target):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", target, dialect.body(input="x"))
    assert response.status in {200, 404}
    assert [each.target for each in upstream.requests] == (
        [target.encode()] if response.status == 200 else []
    )


async def test_H13_a_valid_gzip_body_and_its_label_agree(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    plain = dialect.chat()
    packed = gzip.compress(plain)
    response = await exchange(proxy.port, "POST", CHAT, packed, [("Content-Encoding", "gzip")])
    assert response.status == 200
    encoding = upstream.last.one("content-encoding")
    assert (encoding, bytes(upstream.last.body)) in [(b"gzip", packed), (None, plain)]


BAD = {
    "corrupt": gzip.compress(dialect.chat())[:-9] + b"123456789",
    "cut": gzip.compress(dialect.chat())[:-12],
    "none": dialect.chat(),
    "trailing": gzip.compress(dialect.chat()) + b"trailing",
    "zlib": zlib.compress(dialect.chat()),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
async def test_H13_a_corrupt_gzip_body_is_refused(upstream, proxy_factory, body):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", CHAT, body, [("Content-Encoding", "gzip")])
    assert response.status == 400
    assert response.error
    assert not upstream.requests
    await idle(proxy)


@pytest.mark.parametrize("layers", [1, 2])
async def test_H13_the_limit_is_on_what_a_bomb_inflates_to(upstream, proxy_factory, layers):
    proxy = await proxy_factory(upstream, limits={"body_bytes": 8 << 20})
    bomb = gzip.compress(json.dumps({"model": "m", "prompt": "a" * (32 << 20)}).encode())
    if layers == 2:
        bomb = gzip.compress(bomb)
    label = ", ".join(["gzip"] * layers)
    response = await exchange(proxy.port, "POST", "/v1/completions", bomb, [("Content-Encoding", label)])
    assert response.status == 413 if layers == 1 else response.status in {413, 415, 400, 200}
    if response.status == 200:  # passed on unread, as it came
        assert upstream.last.body == bomb
        assert upstream.last.one("content-encoding") == label.encode()
    else:
        assert response.error
        assert not upstream.requests


@pytest.mark.parametrize("encoding", ["zstd", "br", "compress", "x-unknown", "identity, zstd"])
async def test_H13_an_unsupported_encoding_is_refused_or_passed_unread(upstream, proxy_factory, encoding):
    proxy = await proxy_factory(upstream)
    body = b"\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00"
    response = await exchange(proxy.port, "POST", CHAT, body, [("Content-Encoding", encoding)])
    if response.status == 200:
        assert upstream.last.body == body
        assert upstream.last.one("content-encoding") == encoding.encode()
    else:
        assert response.status == 415
        assert response.error
        assert not upstream.requests


async def test_H13_identity_is_no_encoding(upstream, proxy_factory):
    proxy = await proxy_factory(upstream)
    response = await exchange(proxy.port, "POST", CHAT, dialect.chat(), [("Content-Encoding", "identity")])
    assert response.status == 200
    assert upstream.last.body == dialect.chat()
    await asyncio.gather(idle(proxy), turns())
