"""Readers of published traces: each gives the arrivals of a file, plain or gzipped, ordered by due time.

Must never guess: a field that is missing, negative or out of order is an error that names line and field.
A trace says which blocks prompts share, not what they say; text is made up so that it is shared alike.
"""

import csv
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, TextIO

from bench.prompts import Blocks, Conversation, Segment
from bench.workloads import Arrival

FIRST_IDS = 2
"""A request is `shared` if an earlier one began with the same ids, this many or all it has; where an id
stands for few tokens, so many that they stand for `FIRST_TOKENS`."""
FIRST_TOKENS = 128
MOONCAKE_TOKENS = 512
CHARACTERS_PER_TOKEN = 4.5
"""Of English text, for prompts whose text is given; an estimate until a tokenizer counts."""


class TraceError(ValueError):
    """A trace that cannot be read, with file, line and field."""


def mooncake(path: Path, *, id_tokens: int | None = None, limit: int | None = None) -> list[Arrival]:
    """Mooncake's JSON lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

    `id_tokens`: tokens of a hash id, which the file does not say. If not given: what its sidecar,
    `FILE.meta.json`, says, as those do that the proxy records; else 512, as in the published traces.
    """
    id_tokens = id_tokens or _block_size(path)
    first = max(FIRST_IDS, FIRST_TOKENS // id_tokens)
    arrivals: list[Arrival] = []
    seen: set[tuple[int, ...]] = set()
    for row in _json_lines(path, limit):
        due = row.number("timestamp") / 1000
        tokens, ids = row.count("input_length", least=1), row.counts("hash_ids")
        if arrivals and due < arrivals[-1].due:
            raise row.error("timestamp", "earlier than the line before")
        if not (len(ids) - 1) * id_tokens < tokens <= len(ids) * id_tokens:
            raise row.error("hash_ids", f"{len(ids)} ids of {id_tokens} tokens for {tokens} tokens")
        prompt = Blocks(path.name, ids, id_tokens, tokens)
        group = _group(tuple(ids[:first]), seen)
        arrivals.append(Arrival(due, group, prompt, row.count("output_length")))
    return arrivals


def agentic(
    path: Path, *, rate: float, seed: str | int, block_tokens: int = 512, limit: int | None = None
) -> list[Arrival]:
    """Sessions of a coding agent: `block_size`, `requests` of `t`, `in`, `out`, `hash_rle`.

    Ids are a session's own. Sessions start at random, `rate` a second: the file does not say when they did.
    Only each `block_tokens`-th id is kept (it stands for all before it), which makes long prompts cheap to
    handle. `limit`: sessions.
    """
    rng = Random(f"{seed}/sessions")
    arrivals, start = [], 0.0
    for row in _json_lines(path, limit):
        start += rng.expovariate(rate)
        step, rest = divmod(block_tokens, row.count("block_size", least=1))
        if rest or not step:
            raise row.error("block_size", f"does not divide {block_tokens}")
        session, requests, last = str(row.value("id")), row.value("requests"), 0.0
        if not isinstance(requests, list):
            raise row.error("requests", "not a list")
        for i, entry in enumerate(requests):
            request = Row(path, row.line, entry, f"requests[{i}].")
            at = request.number("t")
            if at < last:
                raise request.error("t", "earlier than the request before")
            last = at
            tokens = request.count("in", least=1)
            ids = _every(request.value("hash_rle"), step, request)
            if len(ids) < tokens // block_tokens:
                raise request.error("hash_rle", f"{len(ids)} blocks of {block_tokens} for {tokens} tokens")
            prompt = Blocks(f"{path.name}/{session}", ids, block_tokens, tokens)
            group = "shared" if i else "random"
            arrivals.append(Arrival(start + at, group, prompt, request.count("out"), session))
    arrivals.sort(key=lambda arrival: arrival.due)
    return arrivals


def azure(path: Path, *, seed: str | int, limit: int | None = None) -> list[Arrival]:
    """Azure's CSV, `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`: arrivals and lengths, nothing shared."""
    arrivals: list[Arrival] = []
    begin = 0.0
    with _open(path) as file:
        for line, fields in enumerate(csv.DictReader(file), 2):
            if limit is not None and len(arrivals) >= limit:
                break
            row = Row(path, line, fields, "")
            stamp = str(row.value("TIMESTAMP"))
            try:  # seven digits of a second, where Python reads six
                at = datetime.fromisoformat(stamp[:26]).replace(tzinfo=UTC).timestamp()
            except ValueError:
                raise row.error("TIMESTAMP", f"{stamp!r} is not a time") from None
            begin = at if not arrivals else begin
            if arrivals and at - begin < arrivals[-1].due:
                raise row.error("TIMESTAMP", "earlier than the line before")
            tokens = row.count("ContextTokens", least=1)
            prompt = Conversation((Segment("user", f"{seed}/azure/{line}", tokens),))
            arrivals.append(Arrival(at - begin, "random", prompt, row.count("GeneratedTokens")))
    return arrivals


def mt_bench(
    path: Path,
    *,
    rate: float,
    seed: str | int,
    output_tokens: int = 128,
    turn_gap: float = 8.0,
    system: int = 0,
) -> list[Arrival]:
    """MT-bench's questions, `question_id` and `turns`: sessions whose later turns repeat the earlier ones.

    Questions start at random, `rate` a second; turns follow at random, `turn_gap` seconds apart on average,
    with made-up answers of `output_tokens` in between. `system`: tokens of a system prompt for all of them.
    """
    rng = Random(f"{seed}/questions")
    arrivals: list[Arrival] = []
    start = 0.0
    for row in _json_lines(path, None):
        start += rng.expovariate(rate)
        due, session = start, f"mt_bench/{row.count('question_id')}"
        turns = row.value("turns")
        if not isinstance(turns, list) or not all(isinstance(turn, str) and turn for turn in turns):
            raise row.error("turns", "not a list of texts")
        segments: tuple[Segment, ...] = (Segment("system", f"{seed}/system", system),) if system else ()
        for i, text in enumerate(turns):
            tokens = max(1, round(len(text) / CHARACTERS_PER_TOKEN))
            segments += (Segment("user", f"{session}/{i}", tokens, text),)
            group = "shared" if i or (system and arrivals) else "random"
            arrivals.append(Arrival(due, group, Conversation(segments), output_tokens, session))
            segments += (Segment("assistant", f"{seed}/{session}/{i}/reply", output_tokens),)
            due += rng.expovariate(1 / turn_gap)
    arrivals.sort(key=lambda arrival: arrival.due)
    return arrivals


class Row:
    """One object of a file, read field by field."""

    def __init__(self, path: Path, line: int, fields: Any, prefix: str) -> None:
        self.path, self.line, self.fields, self.prefix = path, line, fields, prefix
        if not isinstance(fields, dict):
            raise TraceError(f"{path}, line {line}: {prefix or 'the line'} is not an object")

    def error(self, field: str, what: str) -> TraceError:
        """An error that says where."""
        return TraceError(f"{self.path}, line {self.line}, field {self.prefix}{field}: {what}")

    def value(self, field: str) -> Any:
        """Whatever the field holds; it must be there."""
        if self.fields.get(field) is None:
            raise self.error(field, "missing")
        return self.fields[field]

    def number(self, field: str) -> float:
        """A finite number of at least 0."""
        value = self.value(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.error(field, f"{value!r} is not a number of at least 0")
        return float(value)

    def count(self, field: str, least: int = 0) -> int:
        """A whole number, also as text (CSV has nothing else)."""
        value = self.value(field)
        if isinstance(value, str) and value.isascii() and value.isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(field, f"{value!r} is not a whole number of at least {least}")
        return value

    def counts(self, field: str) -> list[int]:
        """A list of whole numbers."""
        values = self.value(field)
        if not isinstance(values, list) or not all(type(x) is int and x >= 0 for x in values):
            raise self.error(field, "not a list of whole numbers of at least 0")
        return values


@contextmanager
def _open(path: Path) -> Iterator[TextIO]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="") as file:
            yield file
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


def _json_lines(path: Path, limit: int | None) -> Iterator[Row]:
    with _open(path) as file:
        for line, text in enumerate(file, 1):
            if limit is not None and line > limit:
                return
            try:
                yield Row(path, line, json.loads(text), "")
            except json.JSONDecodeError as error:
                raise TraceError(f"{path}, line {line}: not JSON ({error.msg})") from None


def _block_size(path: Path) -> int:
    """Tokens of a hash id, as the sidecar says."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    sidecar = plain.with_name(f"{plain.name}.meta.json")
    if not sidecar.exists():
        return MOONCAKE_TOKENS
    try:
        fields = json.loads(sidecar.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TraceError(f"{sidecar}: {error}") from error
    return Row(sidecar, 1, fields, "").count("block_size", least=1)


def _group(first: tuple[int, ...], seen: set[tuple[int, ...]]) -> str:
    group = "shared" if first in seen else "random"
    seen.add(first)
    return group


def _every(runs: Any, step: int, row: Row) -> list[int]:
    """Each `step`-th of the ids that `[[first, count], ...]` stands for."""
    ids: list[int] = []
    skip = step - 1  # ids to pass over before the next one is taken
    for run in runs if isinstance(runs, list) else [None]:
        if not isinstance(run, list) or len(run) != 2 or not all(type(x) is int and x >= 0 for x in run):
            raise row.error("hash_rle", f"{run!r} is not [first id, count]")
        first, count = run
        ids.extend(range(first + skip, first + count, step))
        taken = max(0, -((skip - count) // step))
        skip += taken * step - count
    return ids
