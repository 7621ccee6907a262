"""Who calls: by key, by address; a file of keys that changes; what replicas get of a credential."""

from hashlib import sha256
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from proxy import callers, keys_file
from proxy.callers import Callers, upstream_credentials
from proxy.errors import InvalidKey
from tests.support.eventually import eventually


@pytest.fixture
def keys(tmp_path):
    """A file with the keys of a and b: its path, and the keys."""
    made = {name: keys_file.make(name) for name in ("a", "b")}
    path = tmp_path / "keys.yaml"
    path.write_text("".join(line for _, line in made.values()))
    return SimpleNamespace(path=path, **{name: key.encode() for name, (key, _) in made.items()})


def bearer(key: bytes) -> dict[bytes, bytes]:
    return {b"authorization": b"Bearer " + key}


def replace(path, text: str) -> None:
    """Put another file in its place, as editors and Kubernetes do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_each_key_is_its_caller(keys):
    known = Callers(keys.path)
    assert known.identify(bearer(keys.a), "1.2.3.4").name == "a"
    assert known.identify(bearer(keys.b), None).name == "b"


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  ", b"Bearer \t"])
def test_the_scheme_is_read_as_http_says(keys, scheme):
    assert Callers(keys.path).identify({b"authorization": scheme + keys.a}, None).name == "a"


def test_anthropics_field_is_read_too(keys):
    known = Callers(keys.path)
    assert known.identify({b"x-api-key": keys.b}, None).name == "b"
    assert known.identify({b"authorization": b"Basic eDp5", b"x-api-key": keys.b}, None).name == "b"
    assert known.identify({**bearer(keys.a), b"x-api-key": keys.b}, None).name == "a"


def test_whoever_shows_no_key_of_the_file_is_refused(keys):
    known = Callers(keys.path)
    refused = [
        {},
        {b"authorization": b""},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer "},
        {b"authorization": keys.a},
        {b"authorization": b"Basic " + keys.a},
        {b"x-api-key": b""},
        bearer(keys.a[:-1]),
        bearer(keys.a + b"x"),
        bearer(keys.a.upper()),
        bearer(sha256(keys.a).hexdigest().encode()),
        bearer(sha256(keys.a).digest()),
        bearer(b"x" * 100_000),
        bearer(keys.a + b" " + keys.b),
    ]
    for noted in refused:
        with pytest.raises(InvalidKey) as caught:
            known.identify(noted, "127.0.0.1")
        assert caught.value.status == 401
        assert b"invalid_api_key" in caught.value.body()
        assert keys.a not in caught.value.body()


def test_a_digest_that_begins_alike_is_another_key(keys):
    """What finds an entry is the start of the digest; what lets in is all of it."""
    known = Callers(keys.path)
    (start, (digest, caller)), *_ = known._keys.items()
    known._keys[start] = (digest[:-1] + bytes([digest[-1] ^ 1]), caller)
    with pytest.raises(InvalidKey):
        known.identify(bearer(keys.a), None)


def test_without_keys_everybody_is_known_by_address():
    known = Callers(requests_per_minute=60.0)
    assert not known.keyed
    one = known.identify({b"authorization": b"Bearer whatever"}, "10.0.0.1")
    assert (one.name, one.most, one.models, one.sees_cache) == ("10.0.0.1", "interactive", None, True)
    assert (one.requests_per_minute, one.tokens_per_minute) == (60.0, None)
    assert known.identify({}, "10.0.0.1") is one
    assert known.identify({}, "10.0.0.2") != one
    assert known.identify({}, None).name == "unknown"


def test_addresses_are_bounded(monkeypatch):
    monkeypatch.setattr(callers, "ADDRESSES", 8)
    known = Callers()
    for number in range(100):
        assert known.identify({}, str(number)).name == str(number)
    assert len(known._addresses) <= 8


async def test_a_changed_file_counts_without_a_restart(keys):
    known = Callers(keys.path)
    fresh, line = keys_file.make("c")
    replace(keys.path, line)
    await known.look()
    assert known.identify(bearer(fresh.encode()), None).name == "c"
    with pytest.raises(InvalidKey):
        known.identify(bearer(keys.a), None)
    replace(keys.path, "[]")
    await known.look()
    with pytest.raises(InvalidKey):
        known.identify(bearer(fresh.encode()), None)


async def test_a_broken_file_leaves_the_keys_as_they_were_and_says_so(keys, caplog):
    known = Callers(keys.path)
    before = keys.path.read_text()
    for broken in ("", "- {name: a}", "[" * 4000):
        replace(keys.path, broken)
        await known.look()
        assert known.identify(bearer(keys.a), None).name == "a"
        assert known.fault
        assert "the old one stays in force" in caplog.text
    keys.path.unlink()
    await known.look()
    assert known.identify(bearer(keys.a), None).name == "a"
    assert "cannot be read" in known.fault
    said = len(caplog.records)
    await known.look()
    assert len(caplog.records) == said, "said once"
    replace(keys.path, before)
    await known.look()
    assert known.fault is None
    assert keys.a.decode() not in caplog.text


async def test_a_file_written_in_place_counts_too(keys):
    known = Callers(keys.path)
    fresh, line = keys_file.make("c")
    with keys.path.open("a") as file:
        file.write(line)

    async def there():
        await known.look()
        try:
            return known.identify(bearer(fresh.encode()), None).name == "c"
        except InvalidKey:
            return False

    await eventually(there)
    assert known.identify(bearer(keys.a), None).name == "a"


async def test_a_file_behind_links_is_followed_as_kubernetes_swaps_them(tmp_path):
    """A mounted secret is keys.yaml -> ..data/keys.yaml, and ..data is the link that is swapped."""
    made = [keys_file.make("a"), keys_file.make("b")]
    for at, (_, line) in enumerate(made):
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "keys.yaml").write_text(line)
    (tmp_path / "..data").symlink_to("0")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    known = Callers(tmp_path / "keys.yaml")
    assert known.identify(bearer(made[0][0].encode()), None).name == "a"
    (tmp_path / "..new").symlink_to("1")
    (tmp_path / "..new").replace(tmp_path / "..data")
    await known.look()
    assert known.identify(bearer(made[1][0].encode()), None).name == "b"


def settings(**given):
    return SimpleNamespace(
        **{"api_keys_file": None, "upstream_api_key": None, "replace_auth": False, **given}
    )


def test_H10_which_credential_replicas_get(tmp_path):
    own, path = SecretStr("own"), tmp_path
    both, ours = {b"authorization", b"x-api-key"}, [(b"Authorization", b"Bearer own")]
    assert upstream_credentials(settings()) == (set(), [])
    assert upstream_credentials(settings(upstream_api_key=own)) == (set(), [])
    assert upstream_credentials(settings(upstream_api_key=own, replace_auth=True)) == (both, ours)
    assert upstream_credentials(settings(api_keys_file=path)) == (both, [])
    assert upstream_credentials(settings(api_keys_file=path, upstream_api_key=own)) == (both, ours)
