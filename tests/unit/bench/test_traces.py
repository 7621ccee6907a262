"""Trace readers: what they give, and that every fault is named by line and field."""

import gzip
import json
from pathlib import Path

import pytest

from bench import traces
from bench.traces import TraceError

DATA = Path(traces.__file__).parent / "data" / "traces"
MOONCAKE = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
SESSION = {
    "id": "s",
    "block_size": 64,
    "requests": [{"t": 0.0, "in": 640, "out": 7, "hash_rle": [[1, 10]]}],
}


def lines(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_mooncake_gives_arrivals_that_share_by_their_ids(tmp_path):
    second = MOONCAKE | {"timestamp": 1500, "input_length": 1300, "hash_ids": [1, 2, 3]}
    third = MOONCAKE | {"timestamp": 1500, "input_length": 900, "hash_ids": [1, 7]}
    first, again, other = traces.mooncake(lines(tmp_path / "t.jsonl", MOONCAKE, second, third))
    assert [a.due for a in (first, again, other)] == [0, 1.5, 1.5]
    assert [a.group for a in (first, again, other)] == ["random", "shared", "random"]
    assert (first.prompt_tokens, first.output_tokens) == (700, 5)
    assert again.prompt.keys(512)[:1] == first.prompt.keys(512)
    assert other.prompt.keys(512) == first.prompt.keys(512)
    assert again.prompt.keys(512)[1] not in other.prompt.keys(512)


def test_a_gzipped_trace_reads_like_a_plain_one(tmp_path):
    plain = lines(tmp_path / "t.jsonl", MOONCAKE, MOONCAKE)
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [a.prompt_tokens for a in traces.mooncake(packed)] == [700, 700]
    assert len(traces.mooncake(packed, limit=1)) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [MOONCAKE, {k: v for k, v in MOONCAKE.items() if k != "hash_ids"}],
            "line 2, field hash_ids: missing",
        ),
        (
            [MOONCAKE | {"input_length": -1}],
            "line 1, field input_length: -1 is not a whole number of at least 1",
        ),
        ([MOONCAKE | {"input_length": True}], "line 1, field input_length: True is not"),
        ([MOONCAKE | {"output_length": 1.5}], "line 1, field output_length: 1.5 is not"),
        ([MOONCAKE | {"timestamp": "x"}], "line 1, field timestamp: 'x' is not a number"),
        ([MOONCAKE | {"timestamp": 9}, MOONCAKE], "line 2, field timestamp: earlier than the line before"),
        ([MOONCAKE | {"hash_ids": [1, "2"]}], "line 1, field hash_ids: not a list of whole numbers"),
        ([MOONCAKE | {"hash_ids": [1, 2, 3]}], "line 1, field hash_ids: 3 ids of 512 tokens for 700 tokens"),
        ([MOONCAKE | {"hash_ids": []}], "line 1, field hash_ids: 0 ids"),
        ([MOONCAKE, "{"], "line 2: not JSON"),
        (["[1]"], "line 1: the line is not an object"),
    ],
)
def test_a_fault_in_mooncake_is_named(tmp_path, rows, message):
    with pytest.raises(TraceError, match=message):
        traces.mooncake(lines(tmp_path / "t.jsonl", *rows))


def test_a_wrong_block_size_does_not_pass_silently(tmp_path):
    with pytest.raises(TraceError, match="2 ids of 16 tokens for 700 tokens"):
        traces.mooncake(lines(tmp_path / "t.jsonl", MOONCAKE), id_tokens=16)


def test_a_file_that_is_not_there_or_not_gzip_is_an_error(tmp_path):
    with pytest.raises(TraceError, match=r"nothing\.jsonl"):
        traces.mooncake(tmp_path / "nothing.jsonl")
    broken = tmp_path / "t.jsonl.gz"
    broken.write_text("no gzip")
    with pytest.raises(TraceError, match=r"t\.jsonl\.gz"):
        traces.mooncake(broken)


def test_agentic_sessions_keep_each_nth_id_of_their_runs(tmp_path):
    request = {"t": 3.0, "in": 64 * 21, "out": 1, "hash_rle": [[1, 5], [50, 3], [90, 13]]}
    session = SESSION | {"requests": [request]}
    (arrival,) = traces.agentic(lines(tmp_path / "t", session), rate=1.0, seed=1, block_tokens=256)
    ids = [*range(1, 6), *range(50, 53), *range(90, 103)]
    assert list(arrival.prompt.ids) == ids[3::4]
    assert arrival.due > 3.0
    every = traces.agentic(lines(tmp_path / "t", session), rate=1.0, seed=1, block_tokens=64)
    assert list(every[0].prompt.ids) == ids


def test_agentic_sessions_share_nothing_with_each_other(tmp_path):
    path = lines(tmp_path / "t", SESSION, SESSION | {"id": "u"})
    first, second = traces.agentic(path, rate=1.0, seed=1, block_tokens=64)
    assert not set(first.prompt.keys(64)) & set(second.prompt.keys(64))
    assert first.session != second.session


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 48}, "field block_size: does not divide 512"),
        ({"requests": 3}, "field requests: not a list"),
        (
            {"requests": [{"t": 0, "in": 5120, "out": 0, "hash_rle": [[1, 10]]}]},
            r"requests\[0\]\.hash_rle: 1 blocks",
        ),
        (
            {"requests": [{"t": 0, "in": 64, "out": 0, "hash_rle": [[1]]}]},
            r"requests\[0\]\.hash_rle: \[1\] is not",
        ),
        ({"requests": [{"in": 64, "out": 0, "hash_rle": []}]}, r"requests\[0\]\.t: missing"),
        ({"requests": [SESSION["requests"][0] | {"t": t} for t in (5, 4)]}, r"requests\[1\]\.t: earlier"),
        ({"requests": [7]}, r"requests\[0\]\. is not an object"),
    ],
)
def test_a_fault_in_a_session_is_named(tmp_path, change, message):
    with pytest.raises(TraceError, match="line 1.*" + message):
        traces.agentic(lines(tmp_path / "t", SESSION | change), rate=1.0, seed=1)


def test_azure_gives_arrivals_and_lengths(tmp_path):
    head = "TIMESTAMP,ContextTokens,GeneratedTokens"
    row = "2023-11-16 18:17:03.9799600,4808,10"
    path = lines(tmp_path / "t.csv", head, row, "2023-11-16 18:17:05.0799600,34,0")
    first, second = traces.azure(path, seed=1)
    assert (first.due, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.due == pytest.approx(1.1)
    assert not set(first.prompt.keys(16)) & set(second.prompt.keys(16))
    for wrong, message in [
        ("2023-11-16 18:17:04.9,-3,1", "line 3, field ContextTokens: '-3'"),
        ("yesterday,3,1", "line 3, field TIMESTAMP: 'yesterday' is not a time"),
        ("2023-11-16 18:17:02.0,3,1", "line 3, field TIMESTAMP: earlier"),
        ("2023-11-16 18:17:06.0,3", "line 3, field GeneratedTokens: missing"),
    ]:
        with pytest.raises(TraceError, match=message):
            traces.azure(lines(tmp_path / "w.csv", head, row, wrong), seed=1)


def test_mt_bench_asks_the_questions_in_order():
    arrivals = traces.mt_bench(DATA / "mt_bench_question.jsonl.gz", rate=2.0, seed=1, system=50)
    assert len(arrivals) == 160
    sessions: dict[str, list] = {}
    for arrival in arrivals:
        sessions.setdefault(arrival.session, []).append(arrival)
    for first, second in sessions.values():
        assert second.due > first.due
        assert [m["role"] for m in second.prompt.messages()] == ["system", "user", "assistant", "user"]
        assert second.prompt.messages()[:2] == first.prompt.messages()
    assert "travel blog post" in sessions["mt_bench/81"][0].prompt.messages()[1]["content"]


def test_a_fault_in_mt_bench_is_named(tmp_path):
    path = lines(tmp_path / "t", {"question_id": 1, "turns": ["a", ""]})
    with pytest.raises(TraceError, match="line 1, field turns: not a list of texts"):
        traces.mt_bench(path, rate=1.0, seed=1)


def test_the_published_conversation_trace_reads_whole():
    arrivals = traces.mooncake(DATA / "mooncake_conversation_trace.jsonl.gz")
    assert len(arrivals) == 12_031
    assert sum(a.prompt_tokens for a in arrivals) == 144_793_823
