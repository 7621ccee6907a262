"""Tools that are not Python's: promtool, helm, kubernetes-validate. `make tools` fetches them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tool(name: str) -> str:
    """Where it is; skips the test where it is not."""
    path = shutil.which(name) or shutil.which(name, path=str(ROOT / ".tools" / "bin"))
    if path is None:
        pytest.skip(f"{name} is missing: `make tools` fetches it")
    return path


def environment() -> dict[str, str]:
    """What a command sees: all but what the make that runs the tests tells a make below it."""
    told = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    return {name: value for name, value in os.environ.items() if name not in told}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What it prints on standard output; AssertionError with all of it where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
