"""What every file of the repository keeps to."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", "requirements-run.lock"]
# Written so that this file does not name what it looks for.
REGISTRIES = [
    r"pypi\.(org|python)",
    r"python" + r"hosted\.org",
    r"registry\.npm" + r"js",
    r"deb\.deb" + r"ian\.org",
]
MODULES = sorted(
    path for package in ("proxy", "policies", "bench") for path in (ROOT / package).rglob("*.py")
)


def tracked() -> list[Path]:
    """Files that git knows or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in run.stdout.split("\0") if name]


def test_no_file_names_a_package_registry():
    pattern = re.compile("|".join(REGISTRIES).encode())
    named = [str(path) for path in tracked() if path.is_file() and pattern.search(path.read_bytes())]
    assert not named


def test_no_file_names_a_path_of_one_machine():
    pattern = re.compile((r"/wo" + r"rk/|/tmp/" + r"wr/|/opt/" + r"pypi").encode())
    named = [str(path) for path in tracked() if path.is_file() and pattern.search(path.read_bytes())]
    assert not named


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_versions_and_hashes_and_no_host(lock):
    entries = (ROOT / lock).read_text().replace("\\\n", " ").splitlines()
    entries = [line for line in entries if line and not line.startswith("#")]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.+!]+( +--hash=sha256:[0-9a-f]{64})+ *", entry), entry[
            :80
        ]


def test_the_locks_agree_and_hold_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = [
        dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE)) for lock in LOCKS
    ]
    both, run = pinned
    assert run.items() <= both.items()

    def names(requirements: list[str]) -> set[str]:
        found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
        return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}

    assert names(project["project"]["dependencies"]) <= run.keys()
    assert names(project["dependency-groups"]["dev"]) <= both.keys()
    assert "async-timeout" in run  # below Python 3.11.3, redis needs it


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_opens_with_what_it_is(module):
    assert ast.get_docstring(ast.parse(module.read_bytes()))
