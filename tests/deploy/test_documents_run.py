"""Every command in the documents is run: as it stands where it is short, a bench with less of everything.

Each runs in a folder like a fresh checkout, in front of replicas, a proxy and a Valkey that run here; the
commands of one block follow each other in one folder. Two that differ only in how long they take are one.
`NOT_RUN` names what cannot run here and why: test_documents.py holds that to what it names.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.__main__ import COMMANDS as BENCHES
from tests.support.documents import Command, every_command
from tests.support.shortened import HERE, NAMED, shorter
from tests.support.stage import Done, Stage
from tests.support.tools import run

NOT_RUN = {
    r"make (install|check|test|lock)": "what CI runs before and around this, or remakes from the network",
    r"make test-engines": "real engines",
    r"pip install ": "a package index",
    r"\S*/pip install ": "a package index; tests/packaging and test_image.py install the same files",
    r"\S*python3? -m (venv|build)": "tests/packaging builds, and installs in a venv of its own",
    r"python -m bench peers install": "other routers, from a package index",
    r"systemctl ": "systemd as the first process",
    r"docker ": "a Docker daemon; test_image.py runs the Dockerfile's steps, test_compose.py reads the rest",
    r"kubectl (apply|.*port-forward)": "a cluster; test_chart.py holds the manifests to their schemas",
    r"helm upgrade": "a cluster; test_documents.py renders the same chart with the same values",
    r"promtool ": "test_documents.py and test_monitoring.py run it, where `make tools` has fetched it",
}
"""What needs something that is not here; by how a command begins."""
SERVES = re.compile(r"(\S*/)?warmroute --(replicas|config)")
DRAWS = re.compile(r"(\S*/)?warmroute top")
WORKERS = 4
"""Runs at a time: most of them wait for processes to start."""


def targets(command: Command) -> Command:
    """A make target that is a command of ours is that command."""
    if command.program != "make":
        return command
    told = run("make", "-n", "-o", ".venv/.installed", *command.words[1:])
    recipe = told.strip().splitlines()[-1].split()
    return command._replace(words=["python", *recipe[1:]]) if recipe[1:3] == ["-m", "bench"] else command


def is_bench(command: Command) -> bool:
    return command.words[:3] == ["python", "-m", "bench"]


def name(command: Command) -> str:
    """What two commands have in common that need not both run."""
    if is_bench(command):
        return shlex.join(shorter(command.words[3:]).words)
    return shlex.join([*(f"{key}={value}" for key, value in command.variables.items()), *command.words])


def reason(command: Command) -> str | None:
    words = shlex.join(command.words)
    return next((why for how, why in NOT_RUN.items() if re.match(how, words)), None)


def blocks() -> list[list[Command]]:
    """Each command that runs once, by block; those that are not of the bench share one."""
    found: dict[tuple[str, int, str], list[Command]] = {}
    seen = set()
    for command in map(targets, every_command()):
        if (
            not command.words
            or reason(command)
            or (is_bench(command) and shlex.join(command.words[3:]) in NAMED)
        ):
            continue
        if name(command) not in seen:
            seen.add(name(command))
            of_bench = is_bench(command) or command.program == "cp"
            where = (command.document, command.block, name(command) if here([command]) else "")
            where = where if of_bench else ("", 0, "")
            found.setdefault(where, []).append(command)
    return sorted(found.values(), key=here)


def here(block: list[Command]) -> bool:
    """Whether it runs in this process."""
    return all(is_bench(command) and command.words[3] in HERE for command in block)


BLOCKS = blocks()


def go(command: Command, stage: Stage) -> Done:
    if is_bench(command):
        short = shorter(command.words[3:])
        if short.serves:
            words = ["python", "-m", "bench", *short.words]
            return stage.serve(words, r"ready|Running until Ctrl-C")
        return stage.bench(short)
    line = shlex.join(command.words)
    if SERVES.match(line):
        given = [f"{key}={value}" for key, value in command.variables.items()]
        words = [*command.words, *(() if "--port" in command.words else ("--port", "0"))]
        words = [
            "0" if before == "--port" else word for before, word in zip(["", *words], words, strict=False)
        ]
        return stage.serve(["env", *given, *words], r"listening on http://\S+")
    if DRAWS.match(line):
        return stage.shell(f"{line} --once --url http://127.0.0.1:8080")
    if line.endswith("warmroute doctor"):
        return stage.shell(f"WARMROUTE_REPLICAS=http://10.0.0.1:8000,http://10.0.0.2:8000 {line}")
    if line.startswith("kubectl "):
        return stage.shell(f"{line} --dry-run=client")
    if line.startswith("make "):
        return stage.shell(f"{line} -o .venv/.installed")
    return stage.shell(command.line)


def play(block: list[Command], folder: Path, ends: dict[str, Future[Done]]) -> None:
    """A block from its beginning to its end."""
    with Stage(folder) as stage:
        for command in block:
            try:
                ends[name(command)].set_result(go(command, stage))
            except Exception as error:
                ends[name(command)].set_exception(error)


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Done]]]:
    """How each ends, by its name; only blocks of which a test was asked for are played."""
    asked = {
        name(item.callspec.params["command"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec")
    }
    ends: dict[str, Future[Done]] = {name(command): Future() for block in BLOCKS for command in block}
    with ThreadPoolExecutor(WORKERS) as workers:
        for number, block in enumerate(BLOCKS):
            if asked & {name(command) for command in block} and not here(block):
                workers.submit(play, block, tmp_path_factory.getbasetemp() / f"stage{number}", ends)
        yield ends


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command",
    [command for block in BLOCKS for command in block],
    ids=lambda command: f"{command.document}: {name(command)}"[:90],
)
def test_a_command_of_the_documents_runs(command: Command, runs: dict[str, Future[Done]], tmp_path: Path):
    needs = {"cc", "taskset"} if is_bench(command) and command.words[3] in {"hop", "watched"} else set()
    needs |= {command.program} & {"kubectl", "openssl", "curl"}
    if missing := {each for each in needs if shutil.which(each) is None}:
        pytest.skip(f"there is no {', '.join(missing)}")
    if here([command]) and not runs[name(command)].done():
        play([command], tmp_path / "stage", runs)
    done = runs[name(command)].result()
    allowed = shorter(command.words[3:]).statuses if is_bench(command) else {0}
    assert done.status in allowed, f"{done.status}\n{done.output}\n{done.errors}"
    assert not done.status or not done.errors, done.errors
    assert not done.missing, f"{done.missing}\n{done.output}"


def test_every_tool_of_the_bench_is_run():
    ran = {command.words[3] for block in BLOCKS for command in block if is_bench(command)}
    assert ran == set(BENCHES)


def test_nothing_that_is_ours_and_could_run_is_left_out():
    left = {shlex.join(command.words) for command in every_command() if command.words and reason(command)}
    assert {words for words in left if words.startswith(("warmroute", ".venv/bin/warmroute"))} == set()
    assert {words for words in left if "-m bench" in words} == {"python -m bench peers install"}
    assert {how for how in NOT_RUN if not any(re.match(how, words) for words in left)} == set()
