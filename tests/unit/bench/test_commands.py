"""The bench's front door: a command's module is imported only when it is used, and each has a `main`."""

import subprocess
import sys

import pytest

from bench import __main__ as front
from bench import micro


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_without_a_command_it_lists_them(argv, capsys):
    assert front.main(argv) == (0 if argv else 2)
    listed = capsys.readouterr().out

    assert all(name in listed for name in front.COMMANDS)


def test_an_unknown_command_is_refused(capsys):
    assert front.main(["nope"]) == 2
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize("name", front.COMMANDS)
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as ended:
        front.main([name, "--help"])

    assert ended.value.code == 0
    assert f"bench {name}" in capsys.readouterr().out


def test_listing_the_commands_imports_none_of_them():
    listed = "[name for name in sys.modules if name.startswith('bench.')]"
    code = f"import sys, bench.__main__ as front; front.main([]); print({listed})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "['bench.__main__']"


def test_an_engine_does_not_load_what_only_reports_need():
    code = "import sys, bench.engine; print(sorted({'matplotlib', 'rich', 'proxy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_micro_finds_every_part_and_marks_a_missed_target():
    rows = [
        {"part": "p", "name": "fast", "value": 1.0, "unit": "us", "target": 2.0},
        {"part": "p", "name": "slow", "value": 3.0, "unit": "us", "target": 2.0},
        {"part": "p", "name": "free", "value": 5000.0, "unit": "us", "target": None},
    ]

    assert {"index", "prompt"} <= set(micro.parts())
    assert [row.style for row in micro.table(rows).rows] == ["", "bold red", ""]


def test_micro_refuses_a_part_that_does_not_exist(capsys):
    with pytest.raises(SystemExit) as ended:
        micro.main(["nope"])

    assert ended.value.code == 2
    assert "there is no nope" in capsys.readouterr().err
