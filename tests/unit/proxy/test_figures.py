"""Numbers for people: quantiles as Prometheus has them, differences of frames, how they read."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import figures

BOUNDS = (0.1, 0.2, 0.5, 1.0)


@pytest.mark.parametrize(
    ("counts", "q", "value"),
    [
        ([0, 0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0, 0], 0.5, 0.05),
        ([0, 4, 0, 0, 0], 0.5, 0.15),
        ([0, 4, 0, 0, 0], 1.0, 0.2),
        ([1, 1, 1, 1, 0], 0.5, 0.2),
        ([0, 0, 0, 10, 0], 0.95, 0.975),
        ([1, 0, 0, 0, 9], 0.5, inf),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(counts, q, value):
    assert figures.quantile(BOUNDS, counts, q) == (value if value is None else pytest.approx(value))


@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value_that_it_stands_for(values, q):
    bounds = [at / 20 for at in range(1, 21)]
    counts = [0] * 21
    for value in values:
        counts[next(at for at, bound in enumerate(bounds) if value <= bound)] += 1
    exact = sorted(values)[max(0, -int(-q * len(values) // 1) - 1)]
    found = figures.quantile(bounds, counts, q)
    assert found is not None
    assert abs(found - exact) <= 1 / 20 + 1e-9


def frame(prompt: int, *counts: int, replica: str = "a") -> figures.Frame:
    labels = {"group": "shared", "priority": "standard"}
    stages = dict.fromkeys(("available", "routed", "reported", "reported_prompt"), prompt)
    return {
        "tokens": [{"arm": "main", "group": "shared", "prompt": prompt, **stages}],
        "requests": [{**labels, "code": "200", "count": sum(counts)}],
        "decisions": [{"decision": "hit", "replica": replica, "count": sum(counts)}],
        "ttft": {"bounds": BOUNDS, "series": [{**labels, "counts": list(counts)}]},
    }


def test_between_two_frames_is_what_was_counted_meanwhile():
    found = figures.between(frame(10, 1, 0, 0, 0, 0), frame(35, 1, 2, 0, 0, 1))
    assert found["tokens"][0]["prompt"] == found["tokens"][0]["routed"] == 25
    assert found["requests"][0]["count"] == found["decisions"][0]["count"] == 3
    assert found["ttft"]["series"][0]["counts"] == [0, 2, 0, 0, 1]


def test_what_is_new_counts_from_nothing():
    now = frame(5, 1, 0, 0, 0, 0, replica="b")
    assert figures.between({**frame(0), "ttft": {"series": []}}, now)["decisions"] == now["decisions"]


def test_counters_that_began_anew_are_another_process():
    now = frame(5, 1, 0, 0, 0, 0)
    assert figures.between(frame(100, 9, 0, 0, 0, 0), now) is now


def test_rows_are_added_up_by_a_label():
    rows = [{"group": "x", "n": 1}, {"group": "y", "n": 2}, {"group": "x", "n": 4}]
    assert figures.grouped(rows, "group", ["n"]) == [{"group": "x", "n": 5}, {"group": "y", "n": 2}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (figures.seconds(None), "–"),  # noqa: RUF001
        (figures.seconds(0), "0.0 ms"),
        (figures.seconds(57.3e-6), "57 µs"),
        (figures.seconds(0.0012), "1.2 ms"),
        (figures.seconds(0.0731), "73 ms"),
        (figures.seconds(12.345), "12.35 s"),
        (figures.seconds(250), "250 s"),
        (figures.short(None), "–"),  # noqa: RUF001
        (figures.short(9_999), "9999"),
        (figures.short(12_345), "12.3k"),
        (figures.short(1_234_567), "1.23M"),
        (figures.percent(1, 0), "–"),  # noqa: RUF001
        (figures.percent(1, 3), "33.3 %"),
        (figures.count(1234567.0), "1,234,567"),
    ],
)
def test_how_numbers_read(value, text):
    assert value == text


def test_what_several_workers_count_is_added_up():
    queue = {"waiting": {"standard": 2, "batch": 0}, "shed": {"batch": {"late": 1}}}
    one = {**frame(10, 1, 0, 0, 0, 0), "queue": queue, "replicas": ["the same"]}
    other = {**frame(5, 0, 3, 0, 0, 0, replica="b"), "queue": {**queue, "shed": {}}, "replicas": ["not mine"]}
    both = figures.merged(one, [one, other])
    assert both["tokens"][0]["prompt"] == both["tokens"][0]["reported"] == 15
    assert both["requests"] == [{**one["requests"][0], "count": 4}]
    assert {row["replica"]: row["count"] for row in both["decisions"]} == {"a": 1, "b": 3}
    assert both["ttft"]["series"][0]["counts"] == [1, 3, 0, 0, 0]
    assert both["queue"] == {"waiting": {"standard": 4, "batch": 0}, "shed": {"batch": {"late": 1}}}
    assert both["replicas"] == ["the same"]
    assert one["ttft"]["series"][0]["counts"] == [1, 0, 0, 0, 0]
