"""The same options mean the same traffic; what a trace says is kept, what it lacks is named."""

import argparse
import gzip
import json

import pytest

from bench import traffic
from bench.traces import TraceError
from bench.workloads import WORKLOADS


def wanted(*argv, requests=40, duration=None):
    parser = argparse.ArgumentParser()
    traffic.add_options(parser)
    return traffic.from_arguments(parser.parse_args(argv), requests=requests, duration=duration)


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def mooncake(tmp_path):
    rows = [
        {"timestamp": 1000 * i, "input_length": 600 + i, "output_length": 200, "hash_ids": [1, 10 + i]}
        for i in range(5)
    ]
    return lines(tmp_path / "conversation.jsonl", rows)


@pytest.fixture
def azure(tmp_path):
    path = tmp_path / "azure.csv"
    stamps = [f"2023-11-16 18:15:4{i}.6805900,{100 + i},10" for i in range(5)]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *stamps]) + "\n")
    return path


@pytest.mark.parametrize("workload", WORKLOADS)
def test_warm_up_shares_nothing_with_what_is_measured(workload):
    plan = wanted("--workload", workload)
    ours = {key for a in plan.plan() for key in a.prompt.keys(16)}
    theirs = {key for a in plan.plan(3.0, seed="warm-up") for key in a.prompt.keys(16)}
    assert ours
    assert theirs
    assert not ours & theirs


def test_a_trace_warms_up_with_a_workload(mooncake):
    plan = wanted("--trace", f"mooncake:{mooncake}")
    ours = {key for a in plan.plan() for key in a.prompt.keys(512)}
    theirs = {key for a in plan.plan(3.0, seed="warm-up") for key in a.prompt.keys(512)}
    assert len(ours) == 1
    assert not ours & theirs


def test_lengths_are_fixed_or_drawn():
    assert {a.prompt_tokens for a in wanted("--prefix", "300", "--question", "50").plan()} == {350}
    drawn = {a.prompt_tokens for a in wanted("--prefix", "300-400", "--question", "50").plan()}
    assert len(drawn) > 5
    assert all(350 <= tokens <= 450 for tokens in drawn)


def test_a_traces_times_lengths_and_sharing_are_kept(mooncake):
    arrivals = wanted("--trace", f"mooncake:{mooncake}").plan()
    assert [a.due for a in arrivals] == [0, 1, 2, 3, 4]
    assert [a.prompt_tokens for a in arrivals] == [600, 601, 602, 603, 604]
    assert len({a.prompt.keys(512)[0] for a in arrivals}) == 1


def test_a_trace_is_made_shorter_faster_and_smaller_as_asked(mooncake):
    flags = ("--speed", "2", "--limit", "3", "--scale-tokens", "64", "--output-limit", "7")
    arrivals = wanted("--trace", f"mooncake:{mooncake}", *flags).plan()
    assert [a.due for a in arrivals] == [0, 0.5, 1]
    assert {a.output_tokens for a in arrivals} == {7}
    assert [a.prompt_tokens for a in arrivals] == [75, 75, 75]
    assert len({a.prompt.keys(64)[0] for a in arrivals}) == 1
    assert len(wanted("--trace", f"mooncake:{mooncake}").plan(2.0)) == 3


def test_a_workload_comes_when_the_trace_says(azure):
    arrivals = wanted("--workload", "shared", "--arrivals", f"azure:{azure}").plan()
    assert [round(a.due, 3) for a in arrivals] == [0, 1, 2, 3, 4]
    assert {a.group for a in arrivals} == {"shared"}


def test_azure_gives_lengths_and_times_and_shares_nothing(azure):
    arrivals = wanted("--trace", f"azure:{azure}").plan()
    assert [a.prompt_tokens for a in arrivals] == [100, 101, 102, 103, 104]
    keys = [key for a in arrivals for key in a.prompt.keys(16)]
    assert len(keys) == len(set(keys))


def test_an_agents_sessions_are_read(tmp_path):
    requests = [
        {"t": 0.5 * i, "in": 1200 + 600 * i, "out": 9, "hash_rle": [[1, 20 + 9 * i]]} for i in range(3)
    ]
    path = tmp_path / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"id": 7, "block_size": 64, "requests": requests}).encode()))
    arrivals = wanted("--trace", f"agentic:{path}", "--id-tokens", "512").plan()
    assert [a.prompt_tokens for a in arrivals] == [1200, 1800, 2400]
    assert list(arrivals[2].prompt.keys(512))[:2] == list(arrivals[0].prompt.keys(512))

    with pytest.raises(TraceError, match="line 1, field block_size: does not divide 100"):
        wanted("--trace", f"agentic:{path}", "--id-tokens", "100").plan()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timestamp": -1}, "line 2, field timestamp"),
        ({"timestamp": 5}, "line 3, field timestamp: earlier"),
        ({"input_length": None}, "line 2, field input_length: missing"),
        ({"hash_ids": [1, -2]}, "line 2, field hash_ids"),
        ({"hash_ids": [1]}, "line 2, field hash_ids: 1 ids of 512"),
        ({"output_length": "many"}, "line 2, field output_length"),
    ],
)
def test_what_is_wrong_with_a_trace_is_named_with_its_line(tmp_path, change, says):
    good = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    path = lines(tmp_path / "t.jsonl", [good, {**good, **change}, good])
    with pytest.raises(TraceError, match=says):
        wanted("--trace", f"mooncake:{path}").plan()


def test_a_result_says_what_was_sent_without_folders(mooncake):
    told = wanted("--trace", f"mooncake:{mooncake}", "--id-tokens", "512").described()
    assert told["name"] == "mooncake:conversation.jsonl"
    assert told["id_tokens"] == 512
    assert str(mooncake.parent) not in json.dumps(told)
    assert wanted("--prefix", "5").described() != wanted("--prefix", "6").described()


@pytest.mark.parametrize("argv", [("--speed", "0"), ("--id-tokens", "0"), ("--trace", "csv:x")])
def test_what_makes_no_sense_is_refused(argv):
    with pytest.raises(ValueError, match=r"positive|FORMAT:PATH"):
        wanted(*argv).plan()


@pytest.mark.parametrize("text", ["x", "0", "5-2", "1-x"])
def test_lengths_that_are_none_are_refused(text):
    with pytest.raises(SystemExit):
        wanted("--prefix", text)
