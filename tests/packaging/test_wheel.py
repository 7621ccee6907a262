"""What is shipped: the two packages, the script, the licence, and nothing else."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_BEHIND = (
    ".git",
    ".tools",
    ".venv",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "*.egg-info",
    "build",
    "dist",
    "out",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and from it the wheel, as a release would."""
    source = tmp_path_factory.mktemp("source") / "checkout"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built[1]) as archive:
        yield archive


def test_the_wheel_holds_two_packages_and_its_own_description(wheel):
    top = {name.partition("/")[0] for name in wheel.namelist()}
    (description,) = (name for name in top if name.endswith(".dist-info"))
    assert top == {"proxy", "policies", description}
    assert description.startswith("warmroute-")


def test_every_module_of_the_checkout_is_in_the_wheel(wheel):
    checkout = {
        str(path.relative_to(ROOT))
        for package in ("proxy", "policies")
        for path in (ROOT / package).rglob("*.py")
    }
    page = {str(path.relative_to(ROOT)) for path in (ROOT / "proxy" / "ui").iterdir()}
    assert len(page) > 3
    assert checkout | page <= set(wheel.namelist())


def shipped() -> set[str]:
    """Every file of the two packages that a checkout keeps; what only explains them stays there."""
    found = set()
    for package in ("proxy", "policies"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and path.suffix not in {".pyc", ".md"}:
                found.add(path.relative_to(ROOT).as_posix())
    return found


def test_the_wheel_holds_each_of_their_files_and_no_other(wheel):
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == shipped()


def test_the_sdist_holds_what_building_takes_and_no_other(built):
    with tarfile.open(built[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    top = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert {name for name in names if not name.startswith("warmroute.egg-info/")} == shipped() | top


def test_both_carry_the_version_and_so_does_the_command(built, wheel):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert [path.name for path in built] == [
        f"warmroute-{version}.tar.gz",
        f"warmroute-{version}-py3-none-any.whl",
    ]
    told = subprocess.run(
        [sys.executable, "-m", "proxy", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert told.stdout == f"warmroute {version}\n"
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    assert f"\nVersion: {version}\n" in wheel.read(metadata).decode()


def test_the_wheel_is_typed_licensed_and_has_one_script(wheel):
    names = wheel.namelist()
    assert {"proxy/py.typed", "policies/py.typed"} <= set(names)
    assert [name for name in names if name.endswith("/LICENSE")]
    (scripts,) = (name for name in names if name.endswith("entry_points.txt"))
    assert wheel.read(scripts).decode().split() == ["[console_scripts]", "warmroute", "=", "proxy.cli:main"]


def test_the_wheel_runs_without_the_checkout(built, tmp_path):
    """Unpacked alone in a directory, with no path to the checkout."""
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import proxy.cli; "
        "print(proxy.__file__); sys.exit(proxy.cli.main(['policies']))"
    )
    command = [sys.executable, "-P", "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == str(tmp_path / "proxy" / "__init__.py")


def test_the_sdist_can_be_read_and_built(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "proxy/cli.py",
        "proxy/ui/app.js",
        "policies/base.py",
    } <= names
