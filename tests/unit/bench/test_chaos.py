"""What the chaos bench makes of its records, and when it says that a target is missed."""

import pytest

from bench import chaos, chaos_aborts
from bench.record import Record

RATE = 20


def record(due: float, e2e: float = 0.2, *, status: int = 200, error: str | None = None) -> Record:
    return Record("random", due, 0.0, status=status, error=error, ttft=e2e / 2, e2e=e2e, replica="r1")


def steady(seconds: float, e2e: float = 0.2) -> list[Record]:
    return [record(number / RATE, e2e) for number in range(round(seconds * RATE))]


def test_steady_traffic_has_recovered_at_once():
    assert chaos.recovered(steady(40.0), killed=15.0) == 0.0


def test_recovery_counts_from_the_kill_to_where_all_is_answered_that_is_due():
    records = [one for one in steady(40.0) if one.due < 15.0 or one.due >= 21.0]
    records += [record(15.0 + n / RATE, error="cut") for n in range(6 * RATE)]
    assert chaos.recovered(records, killed=15.0) == pytest.approx(6.0, abs=0.5)


def test_what_waits_and_comes_late_is_not_throughput_meanwhile():
    records = [record(one.due, 22.0 - one.due if 15.0 <= one.due < 22.0 else 0.2) for one in steady(40.0)]
    assert 3.0 <= chaos.recovered(records, killed=15.0) <= 7.0


def test_one_that_never_recovers_says_so():
    records = [record(one.due, error="cut" if one.due >= 15.0 else None) for one in steady(40.0)]
    assert chaos.recovered(records, killed=15.0) is None


def test_lost_is_what_had_not_begun():
    records = [record(0.0), record(0.1, status=502, error="status 502"), record(0.2, error="cut")]
    records.append(Record("random", 0.3, 0.0, error="refused"))
    told = chaos.summary(records)
    assert (told["requests"], told["lost"], told["broken"]) == (4, 2, 1)


GOOD = {"lost": 0, "broken": 3, "generated_twice": 0, "in_flight_after": 0.0, "recovered_after": 2.0}
WHOLE = {
    "in_flight": {"warmroute_replica_inflight": 0.0},
    "resident_mib": [100.0] * chaos_aborts.SLICES,
    "outcomes": {"200": 5, "aborted": 5},
}


def test_nothing_is_missed_where_all_is_well():
    assert not chaos.missed(
        {"killed": GOOD, "rolling": GOOD, "rolling_drained": {**GOOD, "broken": 0}, "aborts": WHOLE}
    )


@pytest.mark.parametrize(
    ("part", "harm"),
    [
        ("killed", {**GOOD, "lost": 1}),
        ("killed", {**GOOD, "recovered_after": 11.0}),
        ("killed", {**GOOD, "recovered_after": None}),
        ("rolling", {**GOOD, "generated_twice": 1}),
        ("rolling", {**GOOD, "in_flight_after": 1.0}),
        ("rolling_drained", GOOD),
        ("aborts", {**WHOLE, "in_flight": {"warmroute_queue_length": 2.0}}),
        ("aborts", {**WHOLE, "resident_mib": [100.0]}),
        ("aborts", {**WHOLE, "resident_mib": [100.0, 100.0, 100.0, 100.0, 106.0]}),
        ("aborts", {**WHOLE, "outcomes": {"200": 5, "502": 1}}),
    ],
)
def test_each_target_can_be_missed(part: str, harm: dict):
    assert len(chaos.missed({part: harm})) == 1
