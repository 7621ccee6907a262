"""TLS: which files are taken, whom both sides trust, renewal, and that a reset stays a reset."""

import asyncio
import shutil
import socket
import ssl

import pytest
from aiohttp import web

from proxy.certificates import Contexts
from proxy.listener import Listener
from proxy.tls import Tls
from proxy.upstream import Pool
from tests.support import dialect
from tests.support.certificates import Authority
from tests.support.client import Client
from tests.support.http import chunked, head, request

CHAT = "/v1/chat/completions"
BODY = dialect.chat()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("another"))


@pytest.fixture
def pair(authority):
    return authority.sign()


def client_context(authority, pair=None):
    context = ssl.create_default_context(cafile=authority.ca)
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


@pytest.fixture
async def listening():
    """Starts the product's listener on TLS contexts; gives its port."""
    servers = []

    async def answer(request, _=None):
        text = request.body if hasattr(request, "body") else b"general"
        if text == b"reset":
            request.client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            request.client.reset()
        return web.Response(body=text)

    async def start(context: ssl.SSLContext) -> int:
        listener = Listener(
            answer, answer, header_bytes=9000, body_bytes=9000, keepalive_seconds=5, request_seconds=5
        )
        server = await asyncio.get_running_loop().create_server(listener, "127.0.0.1", 0, ssl=context)
        servers.append((server, listener))
        return server.sockets[0].getsockname()[1]

    yield start
    for server, listener in servers:
        server.close()
        await listener.end()


async def connect(port: int, context: ssl.SSLContext) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(
        Client, "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    return client


async def served_by(port: int, context: ssl.SSLContext) -> bytes:
    """The certificate that a new connection is shown."""
    async with await connect(port, context) as client:
        return client.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)


async def test_plain_and_general_requests_are_served_over_tls(authority, pair, listening):
    port = await listening(Contexts(Tls(cert=pair.cert, key=pair.key)).listening)
    odd = head(f"POST {CHAT} HTTP/1.1", [("Host", "h"), ("Transfer-Encoding", "chunked")]) + chunked(b"x")
    async with await connect(port, client_context(authority)) as client:
        assert (await client.exchange("POST", CHAT, BODY)).body == BODY
        assert (await client.exchange("POST", CHAT, BODY)).body == BODY
        await client.send(odd)
        assert (await client.response("POST")).body == b"general"
        assert (await client.exchange("GET", "/health")).body == b"general"


async def test_a_body_in_pieces_and_requests_ahead_come_through_tls(authority, pair, listening):
    port = await listening(Contexts(Tls(cert=pair.cert, key=pair.key)).listening)
    async with await connect(port, client_context(authority)) as client:
        raw = request("POST", CHAT, b"x" * 5000)
        for at in range(0, len(raw), 700):
            await client.send(raw[at : at + 700])
        await client.send(request("POST", CHAT, b"y") * 3)
        assert [bytes((await client.response("POST")).body) for _ in range(4)] == [b"x" * 5000, *[b"y"] * 3]


async def test_a_reset_over_tls_is_no_orderly_end(authority, pair, listening):
    """A client must not take half an answer for a whole one, and TCP must say so too."""
    port = await listening(Contexts(Tls(cert=pair.cert, key=pair.key)).listening)
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(10)

        def talk() -> BaseException | None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
            sent = False
            while True:
                try:
                    if not sent:
                        tls.do_handshake()
                        tls.write(request("POST", CHAT, b"reset"))
                        sent = True
                    elif not tls.read():
                        return None  # close_notify: an orderly end
                except ssl.SSLWantReadError:
                    try:
                        plain.sendall(outgoing.read())
                        got = plain.recv(65536)
                    except OSError as error:
                        return error
                    if not got:
                        return EOFError()
                    incoming.write(got)

        assert isinstance(await loop.run_in_executor(None, talk), ConnectionResetError)


async def test_clients_must_show_a_certificate_where_an_authority_is_named(
    authority, stranger, pair, listening
):
    tls = Tls(cert=pair.cert, key=pair.key, client_ca=authority.ca)
    port = await listening(Contexts(tls).listening)
    async with await connect(port, client_context(authority, authority.sign())) as client:
        assert (await client.exchange("POST", CHAT, BODY)).status == 200
    for shown in (None, stranger.sign()):
        context = client_context(authority, shown)
        try:
            client = await connect(port, context)
        except (ssl.SSLError, ConnectionError):
            continue
        async with client:  # in TLS 1.3 the client hears of it after its handshake
            await client.send(request("POST", CHAT, BODY))
            await client.until_gone()
            assert not client.received


async def test_plain_http_to_a_tls_port_gets_nothing(pair, listening):
    port = await listening(Contexts(Tls(cert=pair.cert, key=pair.key)).listening)
    async with await Client.connect(port) as client:
        await client.send(request("POST", CHAT, BODY))
        await client.until_gone()
        assert b"HTTP" not in client.received


async def test_a_renewed_certificate_counts_for_new_connections(authority, tmp_path, listening):
    first, second = authority.sign(), authority.sign()
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first.cert, cert)
    shutil.copy(first.key, key)
    contexts = Contexts(Tls(cert=cert, key=key))
    port = await listening(contexts.listening)
    trusting = client_context(authority)
    async with await connect(port, trusting) as client:
        before = client.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        shutil.copy(second.cert, cert)  # half of the renewal: the key is still the old one
        await contexts.look()
        assert "not this certificate's" in contexts.fault
        assert await served_by(port, trusting) == before
        shutil.copy(second.key, key)
        await contexts.look()
        assert contexts.fault is None
        assert await served_by(port, trusting) == ssl.PEM_cert_to_DER_cert(second.cert.read_text())
        assert (await client.exchange("POST", CHAT, BODY)).status == 200, "open ones stay"


@pytest.fixture
async def replica(pair):
    """A TLS server that accepts and says nothing; gives `start(context) -> url`."""
    servers = []

    async def start(context: ssl.SSLContext) -> str:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
        servers.append(server)
        return f"https://localhost:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


async def reach(url: str, contexts: Contexts) -> None:
    """Open a connection as the hop does, or raise what the hop would see."""
    pool = Pool(url, connect_seconds=5, keepalive_seconds=1, size=1, tls=contexts.upstream)
    connection = await pool.connect()
    connection.abort()


def server_context(pair, authority=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    if authority is not None:
        context.load_verify_locations(authority.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # so that a refusal is part of the handshake
    return context


async def test_a_replica_is_verified_unless_that_is_switched_off(authority, stranger, pair, replica, caplog):
    url = await replica(server_context(pair))
    await reach(url, Contexts(Tls(upstream_ca=authority.ca)))
    for tls in (Tls(), Tls(upstream_ca=stranger.ca)):
        with pytest.raises(ssl.SSLCertVerificationError):
            await reach(url, Contexts(tls))
    assert not caplog.records
    await reach(url, Contexts(Tls(upstream_verify=False)))
    assert "not looked at" in caplog.text


async def test_a_replica_under_another_name_is_refused(authority, replica):
    url = await replica(server_context(authority.sign("DNS:elsewhere.test")))
    with pytest.raises(ssl.SSLCertVerificationError):
        await reach(url, Contexts(Tls(upstream_ca=authority.ca)))


async def test_a_replica_is_shown_the_proxys_certificate(authority, pair, replica):
    url = await replica(server_context(pair, authority))
    own = authority.sign()
    await reach(url, Contexts(Tls(upstream_ca=authority.ca, upstream_cert=own.cert, upstream_key=own.key)))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await reach(url, Contexts(Tls(upstream_ca=authority.ca)))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"key": "key"}, "no certificate to listen with"),
        ({"client_ca": "ca"}, "no certificate to listen with"),
        ({"upstream_key": "key"}, "no certificate"),
        ({"upstream_ca": "ca", "upstream_verify": False}, "keep one"),
        ({"cert": "nothing", "key": "key"}, "No such file"),
        ({"cert": "cert"}, "lacks the certificate or the key"),
        ({"cert": "cert", "key": "other_key"}, "not this certificate's"),
        ({"cert": "cert", "key": "encrypted"}, "has a passphrase"),
        ({"cert": "cert", "key": "key", "client_ca": "key"}, "client_ca that cannot be used"),
        ({"upstream_ca": "key"}, "upstream_ca that cannot be used"),
        ({"upstream_ca": "nothing"}, "upstream_ca that cannot be used"),
        ({"upstream_cert": "key", "upstream_key": "key"}, "upstream_cert that cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_said(authority, pair, tmp_path, given, why):
    files = {
        "ca": authority.ca,
        "cert": pair.cert,
        "key": pair.key,
        "other_key": authority.sign().key,
        "encrypted": authority.encrypted(pair, "canary"),
        "nothing": tmp_path / "nothing.pem",
    }
    with pytest.raises(ValueError, match=why) as caught:
        Tls(**{name: files.get(value, value) for name, value in given.items()})
    assert "PRIVATE" not in str(caught.value)


def test_a_certificate_and_its_key_may_be_one_file(pair, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text(pair.cert.read_text() + pair.key.read_text())
    assert Contexts(Tls(cert=both)).listening is not None


def test_without_a_certificate_clients_speak_plain_http():
    assert Contexts(Tls()).listening is None
