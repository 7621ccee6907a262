"""The recorder: what a trace says, that it tells nothing else, and that it stays within its bounds."""

import errno
import json
import stat
import threading
from array import array
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import traces
from policies import registry
from proxy import recorder, trace_file
from proxy.config import Settings
from proxy.fleet import Fleet
from proxy.index.memory import MemoryIndex
from proxy.record import Record
from proxy.recorder import Numbers, Recorder
from proxy.router import Router, RouteRequest
from proxy.trace_file import TraceFile, part, sidecar
from proxy.workers import child

RNG = Random(7)


def fresh(count: int) -> array:
    return array("Q", [RNG.getrandbits(64) for _ in range(count)])


class Traffic:
    """Requests that have ended, as the ledger tells of them."""

    def __init__(self, path: Path, most: int = 1 << 20) -> None:
        fleet = Fleet(lambda: 0.0)
        fleet.add("a", "http://x")
        fleet.mark("a", up=True)
        self.router = Router(fleet, MemoryIndex(), registry.create("random"), Random(1))
        self.path = path
        self.recorder = Recorder(path, most)
        self.began = self.recorder._began

    def ended(self, at: float, keys: array, tokens: int, output: int | None = 5, **more) -> Record:
        request = {k: more.pop(k) for k in ("block_tokens", "exact", "sequences") if k in more}
        lease = self.router.route(RouteRequest(keys=keys, tokens=tokens, **request))
        lease.close(answered=True)
        fields = {"model": "m", "status": 200, "output_tokens": output, **more}
        record = Record("x", "/v1/chat/completions", self.began + at, **fields)
        record.lease = lease
        return record

    def read(self, *records: Record) -> None:
        self.recorder.read(records)

    def close(self) -> list[dict]:
        self.recorder.close()
        return rows(self.path)

    def count(self, result: str) -> float:
        return self.recorder.requests.values[result,]


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def traffic(tmp_path) -> Traffic:
    return Traffic(tmp_path / "trace.jsonl")


def test_a_request_is_its_time_its_lengths_and_its_blocks(traffic):
    shared = fresh(3)
    traffic.read(traffic.ended(1.25, shared, 50), traffic.ended(2.5, shared[:2] + fresh(1), 48, output=7))
    first, second = traffic.close()
    assert first == {"timestamp": 1250, "input_length": 50, "output_length": 5, "hash_ids": [0, 1, 2, 3]}
    assert second == {"timestamp": 2500, "input_length": 48, "output_length": 7, "hash_ids": [0, 1, 4]}
    meta = json.loads(sidecar(traffic.path).read_text())
    assert (meta["format"], meta["block_size"], meta["part"]) == ("mooncake", 16, 0)
    assert traffic.count("written") == 2


def test_the_bench_replays_it(traffic):
    shared = fresh(20)
    for i in range(10):
        traffic.read(traffic.ended(i * 0.1, shared + fresh(i), 16 * (20 + i) + 3))
    traffic.close()
    arrivals = traces.mooncake(traffic.path)
    assert [round(arrival.due, 3) for arrival in arrivals] == [round(i * 0.1, 3) for i in range(10)]
    assert [arrival.prompt_tokens for arrival in arrivals] == [16 * (20 + i) + 3 for i in range(10)]
    assert [arrival.group for arrival in arrivals] == ["random"] + ["shared"] * 9
    keys = [arrival.prompt.keys(16) for arrival in arrivals]
    assert all(a[:20] == keys[0][:20] for a in keys)
    assert len({a[20] for a in keys[1:]}) == 9


def test_lines_are_in_the_order_in_which_requests_came(traffic):
    ends = [(5.0, fresh(1)), (1.0, fresh(1)), (3.0, fresh(1))]
    for at, keys in ends:
        traffic.read(traffic.ended(at, keys, 16))
    assert [row["timestamp"] for row in traffic.close()] == [1000, 3000, 5000]


def test_one_that_lasted_too_long_is_written_late(traffic):
    traffic.read(traffic.ended(-recorder.HOLD - 1, fresh(1), 16))
    traffic.read(traffic.ended(-recorder.HOLD - 30, fresh(1), 32))
    traffic.read(traffic.ended(1.0, fresh(1), 48))
    assert [row["timestamp"] for row in traffic.close()] == sorted(
        row["timestamp"] for row in rows(traffic.path)
    )
    assert len(traces.mooncake(traffic.path)) == 3


def test_what_waits_is_bounded(traffic, monkeypatch):
    monkeypatch.setattr(recorder, "HELD", 1000)
    for i in range(50):
        traffic.read(traffic.ended(i, fresh(10), 160))
    traffic.recorder._thread.submit(lambda: None).result()
    assert traffic.recorder._held <= 1000
    assert len(traffic.close()) == 50


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({"status": 502}, None),
        ({"outcome": "broken"}, None),
        ({"output": None}, "unmeasured"),
        ({"tokens": 0, "keys": array("Q")}, "unkeyed"),
    ],
)
def test_what_cannot_be_replayed_is_left_out_and_counted(traffic, changes, result):
    traffic.read(traffic.ended(**{"at": 0.0, "keys": fresh(1), "tokens": 16} | changes))
    assert traffic.close() == []
    if result:
        assert traffic.count(result) == 1


def test_an_answer_without_usage_is_measured_by_its_time(traffic):
    traffic.read(traffic.ended(0.0, fresh(1), 16, output=None, ttft=1.0, e2e=3.0, tpot=0.02))
    assert traffic.close()[0]["output_length"] == 101


def test_what_the_engine_counted_goes_before_an_unfinished_count(traffic):
    traffic.read(traffic.ended(0.0, fresh(2), 35, reported_prompt=100))
    (row,) = traffic.close()
    assert row["input_length"] == 100
    assert len(row["hash_ids"]) == len(set(row["hash_ids"])) == 7


def test_blocks_of_text_are_told_as_the_nearest_power_of_two_of_tokens(traffic):
    keys = fresh(4)
    traffic.read(traffic.ended(0.0, keys, 55, block_tokens=12.8, exact=False))
    traffic.read(traffic.ended(1.0, keys, 60, block_tokens=14.0, exact=False))
    first, second = traffic.close()
    assert first["input_length"] == 69
    assert second["hash_ids"][:4] == first["hash_ids"][:4]
    assert json.loads(sidecar(traffic.path).read_text())["block_size"] == 16


def test_blocks_of_another_size_are_in_a_file_of_their_own(traffic):
    traffic.read(traffic.ended(0.0, fresh(2), 40))
    traffic.read(traffic.ended(1.0, fresh(2), 70, block_tokens=32.0))
    assert len(traffic.close()) == 1
    other = traffic.path.with_name("trace.b32.jsonl")
    assert len(rows(other)) == 1
    assert traces.mooncake(other)[0].prompt_tokens == 70


def test_a_batched_prompt_counts_one_answer(traffic):
    traffic.read(traffic.ended(0.0, fresh(1), 16, output=40, sequences=4))
    assert traffic.close()[0]["output_length"] == 10


def test_neither_keys_nor_names_get_into_the_files(traffic):
    keys = fresh(50)
    record = traffic.ended(0.0, keys, 800)
    record.id = "a-clients-own-name"
    traffic.read(record)
    traffic.close()
    for file in traffic.path.parent.iterdir():
        text = file.read_text()
        assert "a-clients-own-name" not in text
        assert not any(str(key) in text or f"{key:x}" in text for key in keys)
    assert stat.S_IMODE(traffic.path.stat().st_mode) == 0o600


def test_parts_are_renamed_and_the_oldest_goes(tmp_path):
    path = tmp_path / "t.jsonl"
    file = TraceFile(path, 4 * 100, {"block_size": 16})
    for i in range(100):
        file.write(b"%039d\n" % i)
    file.close()
    parts = [path, *(part(path, number) for number in range(1, trace_file.PARTS))]
    assert sorted(tmp_path.iterdir()) == sorted([*parts, *map(sidecar, parts)])
    lines = [int(line) for each in reversed(parts) for line in each.read_text().split()]
    assert lines == list(range(lines[0], 100))
    assert len(lines) >= 3 * 2
    assert [json.loads(sidecar(each).read_text())["part"] for each in parts] == [49, 48, 47, 46]
    assert all(each.stat().st_size <= 100 for each in parts)


def test_what_an_earlier_process_wrote_is_kept_apart(tmp_path):
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        traffic = Traffic(path)
        traffic.read(traffic.ended(0.0, fresh(1), 16))
        traffic.close()
    assert len(rows(path)) == len(rows(part(path, 1))) == 1
    processes = {json.loads(sidecar(each).read_text())["process"] for each in (path, part(path, 1))}
    assert len(processes) == 2


def test_a_disk_that_is_full_is_said_once_and_harms_nothing(traffic, monkeypatch, caplog):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TraceFile, "write", full)
    for i in range(3):
        traffic.read(traffic.ended(-recorder.HOLD - 9 + i, fresh(1), 16))
    traffic.close()
    assert caplog.text.count("No space left") == 1
    assert traffic.count("failed") >= 1


def test_a_thread_that_does_not_keep_up_is_not_waited_for(traffic):
    gate = threading.Event()
    traffic.recorder._thread.submit(gate.wait)
    for _ in range(recorder.BEHIND + 5):
        traffic.read(traffic.ended(0.0, fresh(1), 16))
    gate.set()
    assert traffic.count("behind") == 5
    assert len(traffic.close()) == recorder.BEHIND


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=30), st.integers(1, 20))
def test_numbers_are_dense_and_remembered_as_far_as_said(prompts, remembered):
    numbers, seen, owner = Numbers(remembered), {}, {}
    step = 0
    for prompt in prompts:
        for key, number in zip(prompt, numbers.of(prompt), strict=True):
            assert owner.setdefault(number, key) == key
            if key in seen and step - seen[key][0] < remembered:
                assert number == seen[key][1]
            seen[key] = step, number
            step += 1
        assert len(numbers._young) + len(numbers._old) <= 2 * (remembered + 12)
    assert sorted(owner) == list(range(len(owner)))


def test_each_of_several_workers_has_a_trace_and_its_share_of_the_room(tmp_path):
    asked = Settings(record=tmp_path / "t.jsonl", record_mb=100, workers=4)
    mine = child._of(asked, 2)
    assert (mine.record, mine.record_mb) == (tmp_path / "t.w2.jsonl", 25)
    plain = Settings(workers=4)
    assert child._of(plain, 2) is plain
