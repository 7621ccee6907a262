"""Where a command's first key is: what decides its node in a cluster."""

import pytest

from proxy.shared.topology import key_of


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "k"), b"k"),
        ((b"set", b"k", 1), b"k"),
        (("SSCAN", memoryview(b"k"), 0), b"k"),
        (("EVALSHA", "digest", 1, "k", "a"), b"k"),
        (("EVAL", "text", 0, "a"), b"a"),
        (("XREAD", "COUNT", 5, "BLOCK", 10, "STREAMS", "k", "0"), b"k"),
        (("XREADGROUP", "GROUP", "g", "c", "streams", b"k", ">"), b"k"),
        (("XINFO", "STREAM", "k"), b"k"),
        (("PING",), None),
        (("EVALSHA", "digest", 0), None),
    ],
)
def test_the_first_key(command, key):
    assert key_of(command) == key
