"""Redis URLs: every form that is promised, what is wrong in one phrase, and passwords shown to nobody."""

from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.redis_url import Credentials, RedisURL, Tls, masked, parse

TEXT = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("none", RedisURL("none")),
        ("embedded", RedisURL("embedded")),
        ("redis://one", RedisURL("single", (("one", 6379),))),
        ("redis://One:1/2", RedisURL("single", (("one", 1),), db=2)),
        ("redis://one?db=3", RedisURL("single", (("one", 6379),), db=3)),
        ("redis://[::1]:7", RedisURL("single", (("::1", 7),))),
        ("redis://:p%40@one", RedisURL("single", (("one", 6379),), Credentials(None, "p@"))),
        ("redis://u:a@b@one", RedisURL("single", (("one", 6379),), Credentials("u", "a@b"))),
        ("unix:///run/r.sock?db=1", RedisURL("single", (("/run/r.sock", 0),), db=1)),
        ("rediss://one", RedisURL("single", (("one", 6379),), tls=Tls())),
        (
            "rediss://one?ssl_cert_reqs=none",
            RedisURL("single", (("one", 6379),), tls=Tls(check_hostname=False, verify=False)),
        ),
        (
            "rediss+cluster://one,two:2?ssl_check_hostname=false",
            RedisURL("cluster", (("one", 6379), ("two", 2)), tls=Tls(check_hostname=False)),
        ),
        (
            "redis+sentinel://u:p@one,two:2/primary/4?sentinel_password=s",
            RedisURL(
                "sentinel",
                (("one", 26379), ("two", 2)),
                Credentials("u", "p"),
                Credentials(None, "s"),
                "primary",
                4,
            ),
        ),
    ],
)
def test_every_form_is_understood(url, expected):
    assert parse(url) == expected
    assert parse(url).shared == (url not in ("none", "embedded"))


def test_certificates_are_named_as_in_redis_py(tmp_path):
    file = tmp_path / "a.pem"
    file.write_text("")
    url = f"rediss://one?ssl_ca_certs={file}&ssl_certfile={file}&ssl_keyfile={file}&ssl_password=p"
    assert parse(url).tls == Tls(str(file), str(file), str(file), "p")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "embedded, none, or begin with"),
        ("http://one", "rediss+cluster://"),
        ("redis://", "host:port"),
        ("redis://one:70000", "port"),
        ("redis://one:0", "port"),
        ("redis://one two", "host:port"),
        ("redis://one,two", "several servers"),
        ("redis://[::1", "not a URL"),
        ("redis://user@one", "no password"),
        ("redis://one/x", "database"),
        ("redis://one/1/2", "database"),
        ("redis://one?db=-1", "database"),
        ("redis://one?socket_timeout=1", "'socket_timeout', which is not known"),
        ("redis://one?db=1&db=2", "twice"),
        ("redis://one?ssl_ca_certs=x", "rediss"),
        ("rediss://one?ssl_ca_cert=x", "did you mean ssl_ca_certs?"),
        ("rediss://one?ssl_ca_certs=/no/such", "no such file"),
        ("rediss://one?ssl_password=x", "no certificate"),
        ("rediss://one?ssl_cert_reqs=optional", "required or none"),
        ("redis+sentinel://one", "name of the service"),
        ("redis+cluster://one/1", "only database 0"),
        ("redis+cluster://one?sentinel_password=x", "not known"),
        ("unix://", "path"),
        ("unix://host/path", "path"),
    ],
)
def test_what_is_wrong_is_one_phrase(url, words):
    with pytest.raises(ValueError) as caught:
        parse(url)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


@given(password=TEXT, where=st.sampled_from(["user", "sentinel"]))
def test_no_password_is_shown(password, where):
    secret = f"Zq{password}"  # nothing else in the URL contains it
    coded = quote(secret, safe="")
    userinfo, query = (f"u:{coded}@", "") if where == "user" else ("", f"?sentinel_password={coded}")
    url = f"redis+sentinel://{userinfo}a:1,b:2/primary{query}"
    understood = parse(url)
    held = understood.credentials if where == "user" else understood.sentinel
    assert held.password == secret
    for shown in (repr(understood), str(understood), masked(url, "***")):
        assert secret not in shown
        assert coded not in shown


@given(st.text())
def test_any_text_is_understood_or_refused(text):
    for url in (text, f"redis+sentinel://{text}", f"rediss://one?{text}"):
        with suppress(ValueError):
            assert parse(url).kind
