"""What is booked is what is exposed, under the names and labels that the contract promises."""

import io
import json
import logging
from array import array

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.index.truth import TrueIndex
from proxy.logs import RequestLog, logger
from proxy.metrics import Metrics
from proxy.record import Record


def record(**changes: object) -> Record:
    made = Record("req-1", "/v1/chat/completions", 1.0, model="m", policy="prefix_cost", replica="a")
    made.decision, made.status = "hit", 200
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def metrics() -> Metrics:
    fleet, index = Fleet(lambda: 1.0), TrueIndex(MemoryIndex(), lambda: 0.0)
    fleet.add("a", "http://a")
    index.predict("a", array("Q", [1, 2, 3]))
    return Metrics(fleet, index)


def samples(metrics: Metrics) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(metrics.page().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_waterfall_is_booked_once_a_request(metrics: Metrics):
    metrics.book(record(prompt_tokens=100, available_tokens=80, routed_tokens=64))
    metrics.book(record(prompt_tokens=10, available_tokens=0, routed_tokens=0, group="shared"))
    stages = {
        (dict(labels)["group"], dict(labels)["stage"]): value
        for labels, value in samples(metrics)["warmroute_prefix_tokens_total"].items()
    }
    assert stages["random", "prompt"] == 100
    assert stages["random", "available"] == 80
    assert stages["random", "routed"] == 64
    assert stages["shared", "prompt"] == 10


def test_E14_an_unreported_hit_counts_in_neither_counter(metrics: Metrics):
    metrics.book(record(reported_prompt=100))
    assert "warmroute_cached_tokens_total" not in samples(metrics)
    metrics.book(record(reported_prompt=100, reported_cached=0))
    found = samples(metrics)
    assert list(found["warmroute_cached_tokens_total"].values()) == [0]
    assert list(found["warmroute_cached_prompt_tokens_total"].values()) == [100]


def test_histograms_count_sum_and_cumulate(metrics: Metrics):
    for seconds in (0.0005, 0.03, 0.03, 1e6):
        metrics.book(record(ttft=seconds, tpot=seconds, overhead=seconds, e2e=seconds))
    found = samples(metrics)
    labels = next(iter(found["warmroute_ttft_seconds_count"]))
    assert found["warmroute_ttft_seconds_count"][labels] == 4
    assert found["warmroute_ttft_seconds_sum"][labels] == pytest.approx(1e6 + 0.0605)
    buckets = {dict(key)["le"]: value for key, value in found["warmroute_ttft_seconds_bucket"].items()}
    assert (buckets["0.001"], buckets["0.02"], buckets["0.04"], buckets["+Inf"]) == (1, 1, 3, 4)


def test_every_promised_family_is_there(metrics: Metrics):
    metrics.book(
        record(prompt_tokens=1, reported_prompt=1, reported_cached=0, ttft=1.0, tpot=1.0, overhead=1.0)
    )
    names = set(samples(metrics))
    promised = {
        "requests_total", "prefix_tokens_total", "cached_tokens_total", "cached_prompt_tokens_total",
        "decisions_total", "ttft_seconds_count", "tpot_seconds_count", "e2e_seconds_count",
        "queue_seconds_count", "overhead_seconds_count", "replica_cached_tokens_total",
        "replica_cached_prompt_tokens_total", "replica_inflight",
        "replica_queued_tokens", "replica_up", "replica_cache_blocks", "replica_index_mode", "index_blocks",
    }  # fmt: skip
    assert {f"warmroute_{name}" for name in promised} <= names


def test_a_replica_that_is_gone_leaves_no_series(metrics: Metrics):
    metrics.book(record(reported_prompt=1, reported_cached=1))
    metrics.forget("a")
    assert "warmroute_decisions_total" not in samples(metrics)


def test_lines_that_others_write_between_are_never_torn():
    class Writes(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.parts: list[str] = []

        def write(self, text: str) -> int:
            self.parts.append(text)
            return super().write(text)

    logger.setLevel(logging.INFO)
    alone, among = Writes(), Writes()
    RequestLog(json=True, stream=alone).write([record()] * 50)
    RequestLog(json=True, stream=among, shared=True).write([record()] * 50)
    assert len(alone.parts) == 1
    assert "".join(among.parts) == alone.parts[0]
    assert all(len(part) <= 4000 and part.endswith("}\n") for part in among.parts)
    logger.setLevel(logging.WARNING)


def test_one_line_a_request_as_text_or_json():
    logger.setLevel(logging.INFO)
    for as_json in (False, True):
        stream = io.StringIO()
        log = RequestLog(json=as_json, stream=stream)
        log.write([record(ttft=0.5, reported_cached=None)])
        line = stream.getvalue()
        assert line.count("\n") == 1
        if as_json:
            fields = json.loads(line)
            assert (fields["request"], fields["ttft_ms"], fields["reported_cached_tokens"]) == (
                "req-1",
                500,
                None,
            )
        else:
            assert "request=req-1" in line
            assert "ttft_ms=500.000" in line
            assert "reported_cached_tokens=-" in line
    logger.setLevel(logging.WARNING)
    log.write([record()])
    assert stream.getvalue() == line
