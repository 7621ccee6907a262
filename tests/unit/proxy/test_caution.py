"""Why a replica is given less than it could take, and that each reason passes."""

from math import inf

import pytest

from proxy.caution import FIRST, PRESSED_SECONDS, RAMP_SECONDS, Caution


def test_nobody_is_held_back_without_a_reason():
    caution = Caution()
    assert caution.limit(0.0) == inf
    assert not caution.active


def test_D01_a_suspect_has_half_and_half_again():
    caution = Caution()
    limits = []
    for in_flight in (40, 39, 38):
        caution.missed(in_flight)
        limits.append(caution.limit(0.0))
    assert limits == [20, 10, 5]
    assert caution.suspect
    caution.answered()
    assert caution.limit(0.0) == inf
    assert not caution.suspect


def test_D01_an_idle_suspect_gets_one_at_a_time():
    caution = Caution()
    caution.missed(0)
    caution.missed(0)
    assert caution.limit(0.0) == 1


def test_a_new_one_may_have_more_each_second():
    caution = Caution()
    caution.came(100.0)
    assert [caution.limit(100.0 + age) for age in range(4)] == pytest.approx([FIRST, 4, 8, 16])
    assert caution.active
    assert caution.limit(100.0 + RAMP_SECONDS) == inf
    assert not caution.active


def test_one_that_says_it_is_full_has_no_more_for_a_while():
    caution = Caution()
    caution.pressed(12, 5.0)
    assert caution.limit(5.0) == 12
    assert caution.active
    assert caution.limit(5.0 + PRESSED_SECONDS) == inf
    assert not caution.active


def test_the_strictest_reason_holds():
    caution = Caution()
    caution.came(0.0)
    caution.missed(100)
    caution.pressed(3, 1.5)
    assert caution.limit(1.0) == 3
    assert caution.limit(3.0) == 16
    assert caution.limit(7.0) == 50
