"""Every command in the documents is read by the parser that would read it, and held to what it names.

Flags, settings, targets, files, images; promtool and helm run, and the README's first proxy serves a request.
A command that no check here knows fails, so that nobody adds one that nobody looks at. That they do what they
say is test_documents_run.py's.
"""

import argparse
import asyncio
import re
import shlex
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from bench.__main__ import COMMANDS as BENCHES
from bench.engine import serve
from proxy import cli
from proxy.sources import FIELDS, GROUPS
from tests.support.client import exchange
from tests.support.documents import DOCUMENTS, PAGES, Command, commands, every_command
from tests.support.processes import Process
from tests.support.replicas import FAST
from tests.support.tools import ROOT, run, tool

ALL = every_command()
PLACEHOLDERS = {"…", "..."}


class Read(Exception):
    """The arguments were understood."""


def _warmroute(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are read as when it starts; `policies` and `key` run."""
    words = [word for word in command.words[1:] if word not in {">>", "keys.yaml"}]
    words = ["http://127.0.0.1:1" if word in PLACEHOLDERS else word for word in words]
    first = words[0] if words and not words[0].startswith("-") else "serve"
    with tempfile.TemporaryDirectory() as directory:
        bodies = Path(directory) / "FILE"
        bodies.write_text('{"model": "m", "messages": [{"role": "user", "content": "Where?"}]}\n')
        words = [str(bodies) if word == "FILE" else word for word in words]
        for name, value in command.variables.items():
            file = Path(directory) / name
            if name.endswith("_FILE"):
                file.write_text("a secret")
            monkeypatch.setenv(name, str(file) if file.exists() else value)
        if first == "serve":
            words += (
                []
                if {"--help", "--version", "--print-config", "--check-config"} & set(words)
                else ["--check-config"]
            )
            assert cli.main(words) == 0
        elif first in {"doctor", "top"}:
            monkeypatch.setattr(cli, "load", lambda *_: (_ for _ in ()).throw(Read))
            with pytest.raises(Read):
                cli.main([word for word in words if word != "--once"])
        else:
            assert cli.main(["NAME" if word.startswith("NAME") else word for word in words]) == 0


def _bench(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments are read by its own parser, and nothing is run."""
    name, *arguments = command.words[3:]
    assert name in BENCHES or name in PLACEHOLDERS, command
    if not arguments:  # it is only named
        return
    read = argparse.ArgumentParser.parse_args

    def parse(parser: argparse.ArgumentParser, *given: object, **known: object) -> None:
        read(parser, *given, **known)  # type: ignore[call-overload]
        raise Read

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(Read):
        import_module(f"bench.{name}").main([word for word in arguments if word not in PLACEHOLDERS])


def _make(command: Command, _: pytest.MonkeyPatch) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in command.words[1:]:
        assert word in targets or re.match(r"[A-Z_]+=", word), command


def _curl(command: Command, _: pytest.MonkeyPatch) -> None:
    (url,) = (word for word in command.words if re.match(r"(http://)?localhost:\d+", word))
    path = "/" + url.partition("localhost:")[2].partition("/")[2]
    assert path in {"/ready", "/health", "/metrics", "/v1/models"} or path.startswith(("/v1/", "/admin/")), (
        command
    )


def _helm(command: Command, _: pytest.MonkeyPatch) -> None:
    assert command.words[1:3] == ["upgrade", "--install"], command
    run(tool("helm"), "template", *command.words[3:])


def _promtool(command: Command, _: pytest.MonkeyPatch) -> None:
    if command.words[1] != "test":  # test_monitoring.py runs those, and they take seconds
        run(tool("promtool"), *command.words[1:])


def _docker(command: Command, _: pytest.MonkeyPatch) -> None:
    images = {
        service["image"]
        for service in yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"].values()
    }
    what = command.words[1]
    assert what in {"build", "run", "compose"}, command
    assert what == "compose" or images & set(command.words), command


def _names_files(_command: Command, _monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the checkout are checked for every command."""


CHECKS = {
    "warmroute": _warmroute,
    "make": _make,
    "curl": _curl,
    "helm": _helm,
    "promtool": _promtool,
    "docker": _docker,
    **dict.fromkeys(
        ("kubectl", "systemctl", "install", "openssl", "echo", "umask", "pip", "cp"),
        _names_files,
    ),
}


def check(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in command.variables:
        if name.startswith("WARMROUTE_"):
            assert setting(name), command
    for word in command.words:
        for path in re.findall(r"(?<![\w/.])(?:deploy|bench|proxy|policies|tests)/[\w./-]+", word):
            made = command.program == "cp" or path.startswith("bench/out/")
            assert made or (ROOT / path).exists(), f"{command.document}: {path} is not there"
    if not command.words:
        return
    if command.program.startswith("python"):
        if command.words[1:3] == ["-m", "bench"]:
            _bench(command, monkeypatch)
        else:
            assert command.words[1:3] in (["-m", "venv"], ["-m", "build"], ["-m", "pytest"]), command
        return
    assert command.program in CHECKS, f"{command.document}: nobody checks {shlex.join(command.words)}"
    CHECKS[command.program](command, monkeypatch)


def setting(variable: str) -> bool:
    """Whether a variable, or a group of them, is one of the product's or of its tests'."""
    path = variable.removeprefix("WARMROUTE_").lower().rstrip("_").replace("__", ".")
    known = path in FIELDS or path in GROUPS or path.startswith("policy_params.")
    return known or path == "config" or variable.startswith("WARMROUTE_TEST_")


@pytest.mark.parametrize(
    "command", ALL, ids=lambda command: f"{command.document}: {shlex.join(command.words)}"[:70]
)
def test_a_command_of_the_documents_is_one(command: Command, monkeypatch, capsys):
    check(command, monkeypatch)


def test_there_are_commands_in_every_document():
    assert {command.document for command in ALL} == {*DOCUMENTS, *PAGES}


@pytest.mark.parametrize(
    "line",
    [
        "warmroute --replicas http://a:1 --timeouts.patience 3",
        "python -m bench simulate --workloads shared",
        "python -m bench simulated",
        "make demos",
        "WARMROUTE_POLCY=random",
        "helmsman upgrade",
        "promtool check rules deploy/prometheus/alerts.yaml",
        "curl -s localhost:8080/readyz",
    ],
)
def test_a_command_that_is_wrong_would_be_noticed(line, monkeypatch, capsys):
    (command,) = commands(f"```\n{line}\n```\n")
    with pytest.raises((AssertionError, SystemExit)):
        check(command, monkeypatch)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_variable_that_a_document_names_is_a_setting(name):
    named = set(re.findall(r"WARMROUTE_[A-Z0-9_]+", (ROOT / name).read_text()))
    assert not {variable for variable in named if not setting(variable)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_a_document_links_to_is_there(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert ((ROOT / name).parent / link).exists(), link


async def test_the_readmes_first_proxy_serves():
    """The block that puts it in front of a fleet, with this test's replicas and ports in their place."""
    text = (ROOT / "README.md").read_text()
    block = next(
        b
        for b in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if "curl -s localhost:8080/ready" in b
    )
    started = next(c for c in commands(f"```\n{block}```\n") if c.program == "warmroute")
    async with serve(FAST, ports=(0, 0), model="m") as replicas:
        words = list(started.words[1:])
        for flag, value in {
            "--replicas": ",".join(each.url for each in replicas),
            "--host": "127.0.0.1",
            "--port": "0",
        }.items():
            words[words.index(flag) + 1] = value
        process = Process(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy", *words), cwd=ROOT, stderr=asyncio.subprocess.PIPE
            )
        )
        try:
            await process.ready()
            ready = (await exchange(process.port, "GET", "/ready")).json()
            assert ready["models"]["m"]["replicas"] == 2
            body = b'{"model": "m", "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 2}'
            json = [("Content-Type", "application/json")]
            answer = await exchange(process.port, "POST", "/v1/chat/completions", body, json)
            assert answer.status == 200
            assert answer.one("x-warmroute-replica")
        finally:
            await process.kill()
