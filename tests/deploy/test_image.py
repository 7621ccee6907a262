"""The image: its Dockerfile's steps, run in a clean directory, and what they leave.

No Docker is needed. The steps of the build stage run in order under `sh`, with `/opt`, `/src` and `/dist`
moved below a directory of the test. The two that ask a package registry are left out, and the suite's own
packages stand in for what they would install, unless WARMROUTE_TEST_REGISTRY is set: then they run.
"""

import asyncio
import fnmatch
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.dockerfile import DOCKERFILE, STAGES, Step
from tests.support.processes import proxy_process
from tests.support.tools import ROOT

REGISTRY = bool(os.environ.get("WARMROUTE_TEST_REGISTRY"))


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build's context: the last line that matches decides."""
    out = False
    for line in (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        keep, pattern = line.startswith("!"), line.removeprefix("!")
        parts = path.split("/")
        prefixes = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        inside = pattern.startswith("**/") and pattern[3:] in parts
        if inside or any(fnmatch.fnmatchcase(each, pattern) for each in prefixes):
            out = not keep
    return out


def context(directory: Path) -> Path:
    """What `docker build` would be given."""
    for path in (
        each for top in ("proxy", "policies", "bench", "deploy") for each in (ROOT / top).rglob("*")
    ):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and not ignored(name):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, directory / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        assert not ignored(name)
        shutil.copyfile(ROOT / name, directory / name)
    return directory


def copy(step: Step, source: Path, target: Path) -> None:
    """What COPY does with what is here used of it: files into a directory, or a directory as one."""
    *names, where = step.text.split()
    for name in names:
        assert (source / name).exists(), f"COPY {name}: the context does not have it"
        into = target / where
        if (source / name).is_dir():
            shutil.copytree(source / name, into, dirs_exist_ok=True)
        else:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, into / Path(name).name)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The build stage, run; the directory that stands for its root."""
    root = tmp_path_factory.mktemp("image")
    source = context(tmp_path_factory.mktemp("context"))
    for name in ("opt", "src", "dist"):
        (root / name).mkdir()
    environ = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(root)}
    environ |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    for step in STAGES["build"]:
        if step.name == "COPY":
            copy(step, source, root / "src")
        elif step.name == "RUN" and (REGISTRY or "--require-hashes" not in step.text):
            command = re.sub(r"(?<![\w.])/(opt|dist)\b", rf"{root}/\1", step.text)
            if REGISTRY and "build.lock" in command:
                continue  # it would go into the suite's own environment, which has it
            done = subprocess.run(
                ["sh", "-e", "-c", command], cwd=root / "src", env=environ, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if step.text.startswith("python -m venv") and not REGISTRY:
            (packages,) = (root / "opt" / "warmroute").glob("lib/python*/site-packages")
            (packages / "suite.pth").write_text("\n".join(site.getsitepackages()))
    return root


def of(stage: str, name: str) -> list[str]:
    return [step.text for step in STAGES[stage] if step.name == name]


def test_the_wheel_is_built_and_holds_what_it_should(built):
    (wheel,) = (built / "dist").glob("*.whl")
    assert wheel.name.startswith("warmroute-")


def test_what_is_installed_runs_from_there_alone(built, tmp_path):
    command = built / "opt" / "warmroute" / "bin" / "warmroute"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    told = subprocess.run([command, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout == f"warmroute {version}\n", told.stderr
    where = [built / "opt" / "warmroute" / "bin" / "python", "-c", "import proxy; print(proxy.__file__)"]
    told = subprocess.run(where, cwd=tmp_path, capture_output=True, text=True)
    assert told.stdout.startswith(str(built / "opt")), told.stderr
    checked = [command, "serve", "--replicas", "http://a:1", "--check-config"]
    assert subprocess.run(checked, cwd=tmp_path, capture_output=True).returncode == 0


def test_no_pip_and_no_build_tool_gets_into_the_image(built):
    (packages,) = (built / "opt" / "warmroute").glob("lib/python*/site-packages")
    there = {path.name.partition("-")[0].lower() for path in packages.iterdir()}
    assert not there & {"pip", "setuptools", "wheel", "build"}
    assert "warmroute" in there
    assert not of("simulated", "RUN")
    assert of("warmroute", "RUN") == [
        "python -m pip uninstall --yes --quiet --root-user-action=ignore pip",
    ]
    assert of("warmroute", "COPY") == ["--from=build /opt/warmroute /opt/warmroute"]


def test_what_is_in_it_can_be_told(built):
    assert (built / "opt" / "warmroute" / "image.lock").read_bytes() == (
        ROOT / "deploy/image.lock"
    ).read_bytes()
    assert (built / "opt" / "warmroute" / "LICENSE").exists()
    assert any("org.opencontainers.image.licenses" in text for text in of("warmroute", "LABEL"))


def test_it_runs_as_nobody_and_ends_on_sigterm():
    for name in ("warmroute", "simulated"):
        (user,) = of(name, "USER")
        assert all(int(part) > 0 for part in user.split(":"))
        steps = [step.name for step in STAGES[name]]
        assert "RUN" not in steps[steps.index("USER") :]
    assert not of("warmroute", "STOPSIGNAL")  # SIGTERM, which the proxy drains on
    assert json.loads(of("warmroute", "ENTRYPOINT")[0]) == ["warmroute"]
    assert list(STAGES)[-1] == "warmroute"  # what is built when no target is named


def test_the_context_holds_nothing_else():
    for name in (".git/config", ".venv/bin/python", "bench/out/x.json", "secret.txt", "tests/conftest.py"):
        assert ignored(name), name
    for name in ("proxy/app.py", "bench/engine.py", "deploy/image.lock", "README.md"):
        assert not ignored(name), name
    assert ignored("proxy/__pycache__/app.cpython-311.pyc")


async def test_the_healthcheck_asks_a_proxy_that_runs(tmp_path):
    (text,) = of("warmroute", "HEALTHCHECK")
    python, *rest = json.loads(text[text.index("CMD") + 3 :])
    assert python == "python"

    async def status(port: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *rest, env={"WARMROUTE_PORT": str(port)}, stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait()

    async with proxy_process(["http://127.0.0.1:9"]) as process:
        await process.listening()
        assert await status(process.port) == 0
        await process.kill()
        assert await status(process.port) != 0


def test_what_the_simulated_replica_needs_is_in_its_stage(built, tmp_path):
    """It runs from bench/ beside the same environment."""
    copy(Step("COPY", "bench bench"), context(tmp_path / "context"), tmp_path / "srv")
    (entry,) = of("simulated", "ENTRYPOINT")
    program, *rest = json.loads(entry)
    program = f"{built}{program}"
    told = subprocess.run([program, *rest, "--help"], cwd=tmp_path / "srv", capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "--kv-events" in told.stdout


def test_the_locks_hold_what_the_image_needs():
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", path.read_text(), re.MULTILINE))

    image, run, both = (
        pins(ROOT / name) for name in ("deploy/image.lock", "requirements-run.lock", "requirements.lock")
    )
    assert run.items() <= image.items()
    assert {name: both[name] for name in image.keys() & both} == {
        name: image[name] for name in image.keys() & both
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (base,) = re.findall(r"^ARG BASE=\S+/python:(\d+\.\d+)-slim", DOCKERFILE.read_text(), re.MULTILINE)
    assert project["requires-python"] == f">={base}"  # what the locks are made with
    for extra in project["optional-dependencies"].values():
        for requirement in extra:
            assert re.split(r"[^\w.-]", requirement)[0] in image, f"run `make lock`: {requirement}"
    assert pins(ROOT / "deploy/build.lock").items() <= both.items()
