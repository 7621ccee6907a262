"""TLS through a whole proxy: clients, replicas, the proxy's own calls; certificates that are not right."""

import asyncio
import shutil
import ssl

import pytest

from tests.support import dialect
from tests.support.certificates import Authority
from tests.support.client import Client
from tests.support.eventually import eventually
from tests.support.fixtures import idle
from tests.support.http import request
from tests.support.upstream import Exchange

CHAT = "/v1/chat/completions"
BODY = dialect.chat()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("one"))


@pytest.fixture
def own(authority):
    """The proxy's certificate."""
    return authority.sign()


def replica_context(pair, client_ca=None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def connect(port: int, authority) -> Client:
    context = ssl.create_default_context(cafile=authority.ca)
    _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port, ssl=context)
    return client


async def test_a_request_goes_through_tls_on_both_sides(upstreams, proxy_factory, authority, own):
    """The replica wants to see a certificate, of the hop as of the proxy's own calls."""
    (replica,) = await upstreams(1, tls=replica_context(authority.sign(), authority.ca))
    tls = {
        "cert": own.cert,
        "key": own.key,
        "upstream_ca": authority.ca,
        "upstream_cert": own.cert,
        "upstream_key": own.key,
    }
    proxy = await proxy_factory(replica, tls=tls, ready=False)
    assert proxy.url.startswith("https://")
    async with await connect(proxy.port, authority) as client:

        async def ready() -> bool:
            return (await client.exchange("GET", "/ready")).status == 200

        await eventually(ready)
        for _ in range(2):
            reply = await client.exchange("POST", CHAT, BODY)
            assert reply.status == 200
            assert reply.json()["choices"]
        stream = dialect.stream_of(dialect.delta("a"), dialect.delta("b"), dialect.DONE)
        replica.behaviour = stream
        reply = await client.exchange("POST", CHAT, dialect.chat(stream=True))
        assert reply.body.endswith(dialect.DONE)
    assert {request.path for request in replica.internal} >= {"/health", "/v1/models"}
    assert [bytes(each.body) for each in replica.requests[:2]] == [BODY] * 2


async def test_a_large_answer_waits_for_a_slow_client_over_tls(upstreams, proxy_factory, authority, own):
    (replica,) = await upstreams(1)
    proxy = await proxy_factory(replica, tls={"cert": own.cert, "key": own.key}, ready=False)
    text = b"x" * (8 << 20)

    async def large(exchange: Exchange) -> None:
        await exchange.answer(text)

    replica.behaviour = large
    async with await connect(proxy.port, authority) as client:
        client.stop_reading()
        await client.send(request("POST", CHAT, BODY))
        await replica.arrived()
        client.resume_reading()
        assert (await client.response("POST")).body == text


async def test_a_stream_that_breaks_is_cut_over_tls_too(upstreams, proxy_factory, authority, own):
    (replica,) = await upstreams(1)
    proxy = await proxy_factory(replica, tls={"cert": own.cert, "key": own.key}, ready=False)

    async def breaks(exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(dialect.delta("half"))
        exchange.reset()

    replica.behaviour = breaks
    async with await connect(proxy.port, authority) as client:
        await client.send(request("POST", CHAT, dialect.chat(stream=True)))
        await client.until_gone()
        reply = await client.response("POST")
        assert b"half" in reply.body
        assert not reply.complete
        assert not client.eof or client.error, "no orderly end"


async def test_a_client_that_leaves_over_tls_ends_its_request(upstreams, proxy_factory, authority, own):
    (replica,) = await upstreams(1)
    proxy = await proxy_factory(replica, tls={"cert": own.cert, "key": own.key}, ready=False)
    left = asyncio.Event()

    async def hang(exchange: Exchange) -> None:
        await exchange.gone.wait()
        left.set()

    replica.behaviour = hang
    async with await connect(proxy.port, authority) as client:
        await client.send(request("POST", CHAT, BODY))
        await replica.arrived()
    await asyncio.wait_for(left.wait(), 10)


@pytest.mark.parametrize("wrong", ["stranger", "name"])
async def test_a_replica_whose_certificate_is_not_right_gets_nothing(
    upstreams, proxy_factory, authority, tmp_path, caplog, wrong
):
    pair = Authority(tmp_path).sign() if wrong == "stranger" else authority.sign("DNS:elsewhere.test")
    (replica,) = await upstreams(1, tls=replica_context(pair))
    proxy = await proxy_factory(replica, tls={"upstream_ca": authority.ca}, ready=False)
    async with await Client.connect(proxy.port) as client:
        assert (await client.exchange("GET", "/ready")).status == 503
        reply = await client.exchange("POST", CHAT, BODY, [("Authorization", "Bearer canary")])
        assert reply.status == 503
    assert not replica.requests
    assert not replica.internal
    assert "certificate" in caplog.text.lower()
    await idle(proxy)


async def test_a_renewed_certificate_counts_without_a_restart(
    upstreams, proxy_factory, authority, own, tmp_path
):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(own.cert, cert)
    shutil.copy(own.key, key)
    (replica,) = await upstreams(1)
    proxy = await proxy_factory(replica, tls={"cert": cert, "key": key}, ready=False)
    fresh = authority.sign()
    shutil.copy(fresh.key, key)
    shutil.copy(fresh.cert, cert)

    async def shown() -> bool:
        async with await connect(proxy.port, authority) as client:
            served = client.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return served == ssl.PEM_cert_to_DER_cert(fresh.cert.read_text())

    await eventually(shown)


async def test_a_client_that_never_shakes_hands_is_let_go(
    upstreams, proxy_factory, authority, own, monkeypatch
):
    monkeypatch.setattr("proxy.listener.HANDSHAKE_SECONDS", 0.2)
    (replica,) = await upstreams(1)
    proxy = await proxy_factory(replica, tls={"cert": own.cert, "key": own.key}, ready=False)
    async with await Client.connect(proxy.port) as client:
        await client.until_gone()
        assert not client.received
