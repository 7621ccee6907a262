"""Whose word counts for where a request came from."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.forwarded import TrustedProxies, network
from proxy.request_head import forwardable

TRUSTED = TrustedProxies([network("10.0.0.0/8"), network("fd00::/8"), network("192.0.2.7")])


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "caller"),
    [
        ("203.0.113.9", None, "203.0.113.9"),
        ("203.0.113.9", b"198.51.100.1", "203.0.113.9"),  # a client's claim
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("10.0.0.1", b"198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", b"1.1.1.1, 198.51.100.1", "198.51.100.1"),  # what the client wrote itself is left of it
        ("10.0.0.1", b"1.1.1.1, 198.51.100.1,192.0.2.7 , 10.2.3.4", "198.51.100.1"),
        ("10.0.0.1", b"10.9.9.9, 10.2.3.4", "10.9.9.9"),  # all are trusted: the first
        ("10.0.0.1", b"198.51.100.1, unknown, 10.2.3.4", "10.2.3.4"),
        ("10.0.0.1", b"nonsense", "10.0.0.1"),
        ("10.0.0.1", b"198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", b"[2001:db8:1:2::3]:4711", "2001:db8:1:2::/64"),
        ("10.0.0.1", b"2001:db8:1:2::3", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", b"::ffff:198.51.100.1", "198.51.100.1"),
        ("::ffff:203.0.113.9", b"198.51.100.1", "203.0.113.9"),
        ("fd00::1", b"198.51.100.1", "198.51.100.1"),
        ("fe80::1%eth0", None, "fe80::/64"),
        ("10.0.0.1", b"\xff\xfe, 1.2.3.4\x00", "10.0.0.1"),
        (None, b"198.51.100.1", None),
        ("", b"198.51.100.1", ""),
    ],
)
def test_the_caller_is_who_a_trusted_proxy_vouches_for(peer, forwarded_for, caller):
    assert TRUSTED.caller(peer, forwarded_for) == caller


def test_without_trusted_proxies_nobodys_word_counts():
    nobody = TrustedProxies()
    assert nobody.caller("10.0.0.1", b"198.51.100.1") == "10.0.0.1"
    assert not nobody.trusts("10.0.0.1")
    assert not TRUSTED.trusts(None)


@given(st.binary(max_size=80), st.sampled_from(["203.0.113.9", "2001:db8::1"]))
def test_nothing_that_a_client_writes_gives_it_another_address(claim, peer):
    """Neither when it is connected itself, nor when a trusted proxy adds its address."""
    assert TRUSTED.caller(peer, claim) == TRUSTED.caller(peer, None)
    through = TRUSTED.caller("10.0.0.1", claim.replace(b"\n", b"") + b", " + peer.encode())
    assert through == TRUSTED.caller(peer, None)


@given(st.binary(max_size=200))
def test_any_value_is_an_address_that_was_there(claim):
    caller = TRUSTED.caller("10.0.0.1", claim)
    assert caller.endswith("/64") or ip_address(caller)


def test_a_long_list_is_not_read_to_its_end():
    hops = b", ".join(b"10.0.%d.%d" % divmod(number, 256) for number in range(10_000))
    assert TRUSTED.caller("10.0.0.1", b"198.51.100.1, " + hops).startswith("10.0.")


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/8", " 10.1.2.3/8 ", "::1", "fd00::/8"])
def test_a_network_is_written_as_usual(text):
    assert network(text)


@pytest.mark.parametrize("text", ["", "x", "10.0.0.0/33", "10.0.0", "*"])
def test_what_is_no_network_is_said(text):
    with pytest.raises(ValueError, match="no address or network"):
        network(text)


CLAIMS = [
    (b"X-Forwarded-For", b"1.2.3.4"),
    (b"x-forwarded-proto", b"https"),
    (b"X-FORWARDED-ANYTHING", b"x"),
    (b"Forwarded", b"for=1.2.3.4"),
    (b"X-Real-IP", b"1.2.3.4"),
]
OTHERS = [(b"Accept", b"*/*"), (b"X-Forward", b"1"), (b"X-Real", b"1")]


def test_claims_reach_a_replica_only_from_a_trusted_proxy():
    assert forwardable(CLAIMS + OTHERS, trusted=False)[0] == OTHERS
    assert forwardable(CLAIMS + OTHERS, trusted=True)[0] == CLAIMS + OTHERS


def test_the_lines_of_one_list_are_one_list():
    fields = [(b"X-Forwarded-For", b"1.2.3.4"), (b"Accept", b"*/*"), (b"x-forwarded-for", b"5.6.7.8")]
    _, noted = forwardable(fields, trusted=True)
    assert noted[b"x-forwarded-for"] == b"1.2.3.4, 5.6.7.8"


def test_credentials_are_noted_and_kept_or_dropped():
    fields = [(b"Authorization", b"Bearer k"), (b"X-Api-Key", b"k"), (b"Accept", b"*/*")]
    kept, noted = forwardable(fields)
    assert kept == fields
    assert noted == {b"authorization": b"Bearer k", b"x-api-key": b"k"}
    kept, noted = forwardable(fields, frozenset((b"authorization", b"x-api-key")))
    assert kept == [(b"Accept", b"*/*")]
    assert noted[b"authorization"] == b"Bearer k"
