"""Nothing secret in logs, metrics, Redis, upstream, answers or --print-config: canaries everywhere."""

import base64
import json
import logging
from uuid import uuid4

import pytest

from proxy import cli, keys_file
from tests.support import dialect
from tests.support.client import exchange
from tests.support.fixtures import ask
from tests.support.sharing import valkey

__all__ = ["valkey"]

CHAT = "/v1/chat/completions"
OWN, ADMIN, SECRET = "canary-upstream-key", "canary-admin-token", "canary-secret"
SPOKEN = "canary-prompt"
SESSION, SALT, USER = "canary-session", "canary-salt", "canary-user"


def forms(secret: str) -> list[bytes]:
    """A secret as it is, and as it might be written."""
    raw = secret.encode()
    return [raw, base64.b64encode(raw).rstrip(b"="), raw.hex().encode(), json.dumps(secret).encode()]


def leaked(text: bytes, *secrets: str) -> list[str]:
    """Which of the secrets can be read in a text."""
    return [secret for secret in secrets if any(form in text for form in forms(secret))]


def everything(client, namespace: str) -> bytes:
    """All that Redis holds of a namespace: names, types and values."""
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"stream": client.xrange,
        b"list": lambda name: client.lrange(name, 0, -1),
        b"zset": lambda name: client.zrange(name, 0, -1),
    }
    return b"".join(
        b"%b %r\n" % (name, read[client.type(name)](name)) for name in client.scan_iter(f"*{namespace}*")
    )


async def test_nothing_secret_leaves_the_proxy(upstream, proxy_factory, valkey, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    key, line = keys_file.make("team")
    wrong, _ = keys_file.make("other")
    (tmp_path / "keys.yaml").write_text(line.replace("}", ", tokens_per_minute: 100000}"))
    namespace = f"test-{uuid4().hex[:12]}"
    proxy = await proxy_factory(
        upstream,
        api_keys_file=tmp_path / "keys.yaml",
        upstream_api_key=OWN,
        admin_token=ADMIN,
        secret=SECRET,
        redis_url=valkey.url,
        namespace=namespace,
        limits={"requests_per_minute": 1000},
        log_level="debug",
        log_format="json",
    )
    body = dialect.body(
        messages=[{"role": "user", "content": f"{SPOKEN} " * 100}], cache_salt=SALT, user=USER
    )
    shown = []

    async def call(headers, path=CHAT, given=body, method="POST"):
        reply = await exchange(proxy.port, method, path, given, headers)
        shown.append(b"".join(b"%b: %b\n" % field for field in reply.headers) + bytes(reply.body))
        return reply.status

    bearer = [("Authorization", f"Bearer {key}"), ("X-Session-Id", SESSION)]
    assert await call(bearer) == 200
    assert await call([("x-api-key", key), *bearer[1:]]) == 200
    assert await call([("Authorization", f"Bearer {wrong}")]) == 401
    assert await call([("Authorization", f"Basic {key}")]) == 401
    assert await call(bearer, given=b'{"model": "canary-model"}') == 404
    assert await call(bearer, given=b"[") == 400
    assert await call(bearer, "/tokenize", b'{"model": "m", "prompt": "x"}') == 200
    assert await call(bearer, "/v1/models", None, "GET") == 200
    assert await call(bearer, "/admin/replicas", None, "GET") == 401
    admin = [("Authorization", f"Bearer {ADMIN}")]
    assert await call(admin, "/admin/replicas", None, "GET") == 200
    name = next(iter(proxy.fleet.replicas))
    assert await call(admin, f"/admin/replicas/{name}/reset_prefix_cache", b"") == 200
    assert await call(admin, "/admin/policy", None, "GET") == 200
    shown += [bytes((await ask(proxy, path)).body) for path in ("/metrics", "/ready", "/health")]
    await proxy._leases.round()
    proxy.ledger.flush()

    ours = (OWN, ADMIN, SECRET, key, wrong)
    digest = keys_file.sha256(key.encode()).hexdigest()
    theirs = (SPOKEN, SESSION, SALT, USER)
    assert not leaked(b"\n".join(shown), *ours, digest, *theirs)
    log = (caplog.text + "".join(capfd.readouterr())).encode()
    assert b"/v1/chat/completions" in log, "the log is what is read here"
    assert not leaked(log, *ours, digest, *theirs, "canary-model")
    with valkey.client() as client:
        held = everything(client, namespace)
    assert b"rate:" in held
    assert b"log" in held
    assert not leaked(held, *ours, digest, *theirs, "team")
    for sent in [*upstream.requests, *upstream.internal]:
        assert not leaked(sent.raw, ADMIN, SECRET, key, wrong, digest)
        assert sent.all("authorization") == [b"Bearer " + OWN.encode()]


async def test_without_keys_the_proxys_own_key_goes_with_its_own_calls_only(upstream, proxy_factory):
    proxy = await proxy_factory(upstream, upstream_api_key=OWN, admin_token=ADMIN, secret=SECRET)
    for headers in ([], [("Authorization", "Bearer u1")]):
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat(), headers)).status == 200
    for sent in upstream.requests:
        assert not leaked(sent.raw, OWN, ADMIN, SECRET)
    assert upstream.internal
    for sent in upstream.internal:
        assert sent.all("authorization") == [b"Bearer " + OWN.encode()]
        assert not leaked(sent.raw, ADMIN, SECRET)


@pytest.mark.parametrize("switch", ["--print-config", "--check-config"])
def test_what_is_printed_of_the_settings_holds_no_secret(switch, tmp_path, capsys, monkeypatch):
    key, line = keys_file.make("team")
    (tmp_path / "keys.yaml").write_text(line)
    (tmp_path / "token").write_text(ADMIN)
    given = {
        "replicas": "http://one:8000",
        "redis_url": "redis://user:canary-password@localhost:6379",
        "secret": SECRET,
        "upstream_api_key": OWN,
        "admin_token_file": str(tmp_path / "token"),
        "api_keys_file": str(tmp_path / "keys.yaml"),
    }
    for name, value in given.items():
        monkeypatch.setenv(f"WARMROUTE_{name.upper()}", value)
    assert cli.main(["serve", switch]) == 0
    monkeypatch.setenv("WARMROUTE_PORT", "canary")
    assert cli.main(["serve", switch]) == 2
    said = "".join(capsys.readouterr()).encode()
    digest = keys_file.sha256(key.encode()).hexdigest()
    assert not leaked(said, SECRET, OWN, ADMIN, "canary-password", key, digest)
