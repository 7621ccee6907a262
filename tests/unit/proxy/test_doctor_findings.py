"""The doctor's table, and its place on the command line."""

import io

import pytest
from rich.console import Console

from proxy import cli
from proxy.doctor.asking import Answer
from proxy.doctor.findings import Findings, Level, show, summary
from proxy.doctor.flags import EVENTS
from proxy.logs import logger


@pytest.fixture(autouse=True)
def _level():
    before = logger.level
    yield
    logger.setLevel(before)


def made() -> Findings:
    found = Findings("a")
    found.fine("health", "it answers")
    found.note("clock", "it does not tell the time")
    found.warn("metrics", "they are missing", "--enable-metrics")
    found.loss("events", "none [bold]came[/bold] of them", EVENTS["vllm"])
    return found


def test_the_table_shows_each_finding_with_its_fix_as_it_is():
    out = io.StringIO()
    show(made().all, Console(file=out, width=200))
    text = out.getvalue()
    assert "none [bold]came[/bold] of them" in text  # nothing that an engine says is markup
    assert EVENTS["vllm"] in text
    assert text.count(" a ") == 1
    for word in ("fine", "note", "warning", "loses hits"):
        assert word in text


def test_the_last_line_counts():
    found = made().all
    assert summary(found) == "1 thing that loses hits or requests, 1 warning, 1 fine."
    assert summary([*found, found[3]]).startswith("2 things that lose hits")
    assert summary(found[:2]) == "1 check, nothing wrong."
    assert [each.level for each in found] == sorted(Level)


def test_the_command_fails_where_anything_loses_hits(capsys):
    assert cli.main(["doctor", "--redis-url", "none"]) == 1
    shown = capsys.readouterr().out
    assert "there are none" in shown
    assert "WARMROUTE_REPLICAS" in shown


@pytest.mark.parametrize("arguments", [["--check-config"], ["--no-such"], ["http://x"]])
def test_what_it_does_not_take_is_said(arguments, capsys):
    assert cli.main(["doctor", *arguments]) == 2
    assert capsys.readouterr().err.startswith("warmroute: ")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(0, why="no route"), "no route"),
        (Answer(400, b'{"error": {"message": "bad"}}'), "it answered 400: bad"),
        (Answer(400, b'{"message": "bad"}'), "it answered 400: bad"),
        (Answer(500, b"<html>"), "it answered 500"),
        (Answer(500, b'["x"]'), "it answered 500"),
        (Answer(500, b'{"error": "x"}'), "it answered 500"),
    ],
)
def test_a_complaint_is_in_the_engines_words(answer, words):
    assert answer.complaint == words
