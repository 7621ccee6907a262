"""Buckets: a minute's worth and no more, what overdraws is paid off, and leases change hands unspent."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import rates
from proxy.errors import RateLimited
from proxy.keys_file import Caller
from proxy.rates import Lease, Rates

TEN = Caller("ten", requests_per_minute=10)
WORDS = Caller("words", tokens_per_minute=600)
FREE = Caller("free")


def let_in(counted: Rates, caller: Caller, times: int, now: float) -> int:
    """How many of so many requests at one moment are let in."""
    count = 0
    for _ in range(times):
        try:
            counted.request(caller, now)
        except RateLimited:
            break
        count += 1
    return count


def refused(counted: Rates, caller: Caller, now: float, tokens: float | None = None) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        counted.request(caller, now) if tokens is None else counted.prompt(caller, tokens, now)
    return caught.value


def test_who_has_no_limit_is_not_counted():
    counted = Rates()
    counted.request(FREE, 0.0)
    counted.prompt(FREE, 1e9, 0.0)
    counted.spent(FREE, 1e9, 0.0)
    assert not list(counted.offers(0.0))


def test_a_minutes_worth_at_once_and_then_as_it_refills():
    counted = Rates()
    assert let_in(counted, TEN, 100, 0.0) == 10
    assert let_in(counted, TEN, 100, 5.9) == 0
    assert let_in(counted, TEN, 100, 6.0) == 1
    assert let_in(counted, TEN, 100, 1000.0) == 10


def test_the_answer_says_of_what_how_much_and_until_when():
    counted = Rates()
    let_in(counted, TEN, 10, 0.0)
    error = refused(counted, TEN, 2.0)
    assert (error.status, error.type, error.code) == (429, "requests", "rate_limit_exceeded")
    assert error.retry_after == pytest.approx(4.0)
    assert "10 requests a minute" in error.message
    assert "ten" not in error.message
    counted.request(TEN, 2.0 + error.retry_after)


def test_a_prompt_may_overdraw_and_is_paid_off():
    counted = Rates()
    counted.prompt(WORDS, 3000, 0.0)
    error = refused(counted, WORDS, 0.0, 1)
    assert error.type == "tokens"
    assert error.retry_after == pytest.approx((3000 - 600 + 1) / 10)
    refused(counted, WORDS, error.retry_after - 0.1, 1)
    counted.prompt(WORDS, 1, error.retry_after + 0.1)


def test_an_answer_is_charged_when_it_is_known():
    counted = Rates()
    counted.prompt(WORDS, 100, 0.0)
    counted.spent(WORDS, 800, 0.0)
    assert refused(counted, WORDS, 0.0, 1).retry_after == pytest.approx((300 + 1) / 10)
    counted.spent(WORDS, -700, 0.0)
    counted.prompt(WORDS, 1, 0.0)
    counted.spent(WORDS, -1e9, 0.0)
    assert let_in_tokens(counted, 600) == 600, "giving back never makes more than a minute's worth"


def let_in_tokens(counted: Rates, most: int) -> int:
    for number in range(2 * most):
        try:
            counted.prompt(WORDS, 1, 0.0)
        except RateLimited:
            return number
    return 2 * most


def test_a_new_limit_counts_at_once():
    counted = Rates()
    assert let_in(counted, TEN, 4, 0.0) == 4
    less = Caller("ten", requests_per_minute=2)
    assert let_in(counted, less, 9, 0.0) == 2
    assert let_in(counted, Caller("ten", requests_per_minute=60), 100, 1.0) == 1


def test_quiet_callers_are_forgotten_once_their_bucket_is_full():
    counted = Rates()
    let_in(counted, TEN, 10, 0.0)
    counted.forget(59.0)
    assert list(counted.offers(59.0))
    counted.forget(61.0)
    assert not list(counted.offers(61.0))


def test_callers_are_bounded(monkeypatch):
    monkeypatch.setattr(rates, "MOST_CALLERS", 5)
    counted = Rates()
    for number in range(100):
        counted.request(Caller(str(number), requests_per_minute=1), 0.0)
    assert len(list(counted.offers(0.0))) == 5


@given(
    per_minute=st.floats(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 300)), max_size=30),
)
def test_never_more_than_a_minutes_worth_and_what_refills(per_minute, steps):
    counted, caller = Rates(), Caller("c", requests_per_minute=per_minute)
    now, count = 0.0, 0
    for pause, burst in steps:
        now += pause
        count += let_in(counted, caller, burst, now)
        assert count <= per_minute + now * per_minute / 60 + 1e-6


@given(costs=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5000)), min_size=1, max_size=30))
def test_over_time_tokens_are_those_allowed_and_one_prompt(costs):
    counted, now, used, waits = Rates(), 0.0, 0.0, []
    for pause, tokens in costs:
        now += pause
        allowed = 600 + now * 10
        try:
            counted.prompt(WORDS, tokens, now)
        except RateLimited as error:
            waits.append(error.retry_after)
        else:
            assert used < allowed, "let in although nothing was left"
            used += tokens
    assert all(0 < wait < math.inf for wait in waits)


# Leases


def test_before_redis_has_said_a_word_a_part_may_be_spent():
    counted = Rates()
    counted.leased = True
    many = Caller("many", requests_per_minute=500)
    assert let_in(counted, many, 200, 0.0) == 50
    (offer,) = counted.offers(0.0)
    assert offer == ("many", "requests", 500, -50, True), "and all of it is told"
    assert let_in(counted, TEN, 99, 0.0) == 10


def test_what_is_spent_during_a_round_is_spent_of_the_lease():
    counted = Rates()
    let_in(counted, TEN, 3, 0.0)
    (offer,) = counted.offers(0.0)
    assert offer.back == -3, "Redis has not been told yet"
    let_in(counted, TEN, 2, 0.0)
    counted.leased = True
    counted.settle(offer, Lease(4, 3, 2), 0.0)
    assert let_in(counted, TEN, 99, 0.0) == 2
    assert let_in(counted, TEN, 99, 1000.0) == 0, "a lease does not refill itself"
    assert next(counted.offers(0.0)).back == 0, "four held, four spent"


def test_a_lease_that_is_low_or_used_up_asks_for_a_round():
    counted, asked = Rates(), []
    counted.hungry = lambda: asked.append(1)
    counted.request(TEN, 0.0)
    assert len(asked) == 1, "somebody new"
    (offer,) = counted.offers(0.0)
    counted.leased = True
    counted.settle(offer, Lease(8, 0, 1), 0.0)
    assert let_in(counted, TEN, 6, 0.0) == 6
    assert len(asked) == 1
    counted.request(TEN, 0.0)
    assert len(asked) == 2
    let_in(counted, TEN, 99, 0.0)
    assert len(asked) == 4


def test_what_all_together_owe_is_waited_for():
    counted = Rates()
    counted.prompt(WORDS, 1, 0.0)
    (offer,) = counted.offers(0.0)
    counted.leased = True
    counted.settle(offer, Lease(0, -99, 1), 0.0)
    assert refused(counted, WORDS, 0.0, 1).retry_after == pytest.approx(10)


def test_who_is_quiet_gives_back_and_is_forgotten():
    counted = Rates()
    counted.leased = True
    counted.request(TEN, 0.0)
    (offer,) = counted.offers(20.0)
    assert not offer.stays
    counted.settle(offer, Lease(0, 5, 0), 20.0)
    assert not list(counted.offers(20.0))


def test_who_comes_back_while_giving_back_is_kept():
    counted = Rates()
    counted.leased = True
    counted.request(TEN, 0.0)
    (offer,) = counted.offers(20.0)
    counted.request(TEN, 20.0)
    counted.settle(offer, Lease(0, 5, 0), 20.0)
    (again,) = counted.offers(20.0)
    assert (again.back, again.stays) == (-1, True)


def test_without_redis_each_proxy_refills_its_part():
    counted = Rates()
    let_in(counted, TEN, 10, 0.0)
    (offer,) = counted.offers(0.0)
    counted.leased = True
    counted.settle(offer, Lease(0, 0, 2), 0.0)
    counted.alone(100.0)
    assert let_in(counted, TEN, 99, 100.0) == 0
    assert let_in(counted, TEN, 99, 112.0) == 1, "half of ten a minute"
    counted.alone(113.0)
    assert let_in(counted, TEN, 99, 124.0) == 1


def test_what_was_spent_alone_is_told_unless_it_was_refilled():
    counted = Rates()
    let_in(counted, TEN, 8, 0.0)
    assert [offer.back for offer in counted.offers(0.0)] == [-8]
    assert [offer.back for offer in counted.offers(18.0)] == [-5]
    assert [offer.back for offer in counted.offers(600.0)] == [0]
