"""traceparent: what is kept, and what is made."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import traceparent

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
GIVEN = b"00-" + TRACE + b"-" + SPAN + b"-01"


def test_a_field_is_read():
    assert traceparent.is_valid(GIVEN)
    assert traceparent.ids(GIVEN) == (int(TRACE, 16), int(SPAN, 16))
    assert traceparent.is_sampled(GIVEN)
    assert not traceparent.is_sampled(GIVEN[:-2] + b"fe")


@pytest.mark.parametrize(
    ("field", "valid"),
    [
        (b"00-%b-%b-00" % (TRACE, SPAN), True),
        (b"cc-%b-%b-01" % (TRACE, SPAN), True),
        (b"cc-%b-%b-01-what-comes-later" % (TRACE, SPAN), True),
        (b"00-%b-%b-01-what-comes-later" % (TRACE, SPAN), False),
        (b"ff-%b-%b-01" % (TRACE, SPAN), False),
        (b"cc-%b-%b-01.x" % (TRACE, SPAN), False),
        (b"00-%b-%b-01" % (TRACE.upper(), SPAN), False),
        (b"00-%b-%b-01" % (b"0" * 32, SPAN), False),
        (b"00-%b-%b-01" % (TRACE, b"0" * 16), False),
        (b"00-%b-%b-1" % (TRACE, SPAN), False),
        (b"00-%b-%b" % (TRACE, SPAN), False),
        (b"", False),
        (GIVEN + b"\n", False),
        (b" " + GIVEN, False),
    ],
)
def test_what_is_kept_is_what_the_recommendation_allows(field, valid):
    assert traceparent.is_valid(field) is valid


@given(st.integers(1, 2**64 - 1), st.integers(1, 2**64 - 1), st.integers(0, 2**64))
def test_what_is_made_is_valid_and_sampled_by_its_trace(upper, lower, share):
    made = traceparent.make(f"{upper:016x}{lower:016x}", share)
    assert traceparent.is_valid(made)
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", made)
    assert traceparent.ids(made) == (upper << 64 | lower, upper)
    assert traceparent.is_sampled(made) is (lower < share)
