"""Several workers' metrics as one page."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from proxy.workers.pages import Page, Pages, merged, page_of


def page(**values: float) -> Page:
    """One worker's: `requests` and `ended` are counters, `up` and `inflight` gauges of replica r."""
    families: list[Metric] = []
    for name, value in values.items():
        if name in ("inflight", "up"):
            gauge = GaugeMetricFamily(f"warmroute_replica_{name}", "", labels=["replica"])
            gauge.add_metric(["r"], value)
            families.append(gauge)
        else:
            families.append(CounterMetricFamily(f"warmroute_{name}", "", value))
    return page_of(families)


def told(pages: Pages, *living: Page) -> dict[str, float]:
    text = pages.text(living).decode()
    return {
        sample.name.removeprefix("warmroute_"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_is_counted_is_added_up_and_so_is_what_each_has_in_flight():
    both = told(Pages(), page(requests=3, inflight=2), page(requests=4, inflight=1))
    assert both == {"requests_total": 7, "replica_inflight": 3}


def test_what_one_sees_down_is_down_and_of_other_gauges_the_greatest_counts():
    lag = GaugeMetricFamily("warmroute_redis_lag_seconds", "", 0.5)
    assert told(Pages(), page(up=1), page(up=0))["replica_up"] == 0
    assert told(Pages(), page_of([lag]), page())["redis_lag_seconds"] == 0.5


def test_M02_who_has_ended_is_counted_and_has_nothing_in_flight():
    pages = Pages()
    pages.end(page(requests=3, inflight=7, up=1))
    assert told(pages, page(requests=1, inflight=2)) == {"requests_total": 4, "replica_inflight": 2}
    pages.end(page(requests=1))
    assert told(pages) == {"requests_total": 4}


def test_histograms_are_added_bucket_by_bucket():
    def one(low: int, high: int) -> Page:
        family = HistogramMetricFamily("warmroute_ttft_seconds", "", labels=["group"])
        family.add_metric(["g"], [("1.0", low), ("+Inf", low + high)], low + 2.0 * high)
        return page_of([family])

    pages = Pages()
    pages.end(one(1, 1))
    text = pages.text([one(2, 3)]).decode()
    assert 'warmroute_ttft_seconds_bucket{group="g",le="1.0"} 3.0' in text
    assert 'warmroute_ttft_seconds_bucket{group="g",le="+Inf"} 7.0' in text
    assert 'warmroute_ttft_seconds_count{group="g"} 7.0' in text
    assert 'warmroute_ttft_seconds_sum{group="g"} 11.0' in text


def test_of_replicas_that_are_gone_nothing_is_kept():
    family = CounterMetricFamily("warmroute_decisions", "", labels=["replica"])
    family.add_metric(["here"], 1)
    family.add_metric(["gone"], 2)
    pages = Pages()
    pages.end(page_of([family]))
    pages.end(page(requests=5))
    pages.know(["here"])
    text = pages.text([]).decode()
    assert 'warmroute_decisions_total{replica="here"} 1.0' in text
    assert "gone" not in text
    assert "warmroute_requests_total 5.0" in text


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=20))
def test_M02_however_workers_come_and_go_no_counter_goes_back(steps: list[tuple[int, bool]]):
    """One worker at a time counts on, or ends and another begins; what is told is what was ever counted."""
    pages, count, ever = Pages(), 0, 0
    for more, ends in steps:
        count += more
        ever += more
        if ends:
            pages.end(page(requests=count))
            count = 0
        assert told(pages, page(requests=count)) == {"requests_total": ever}


def test_what_came_over_the_channel_is_the_same():
    lists = [[*family[:3], [[*sample] for sample in family[3]]] for family in page(requests=1, inflight=2)]
    assert merged([lists]) == merged([page(requests=1, inflight=2)])  # type: ignore[list-item]
