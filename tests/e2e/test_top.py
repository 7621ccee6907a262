"""`warmroute top` against a proxy."""

import asyncio
import os
import pty
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proxy import cli
from tests.support import dialect
from tests.support.admin import TOKEN
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.fixtures import counts, serving
from tests.support.upstream import Upstream

CHAT = "/v1/chat/completions"


Top = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def top(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Top:
    """Runs it in a thread: its exit status, what it printed and what it complained of."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")

    async def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        status = await asyncio.to_thread(cli.main, ["top", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


async def test_once_prints_one_screen_and_ends(upstream: Upstream, proxy_factory: Any, top: Top) -> None:
    proxy = await proxy_factory(upstream, admin_token=TOKEN)
    assert (await exchange(proxy.port, "POST", CHAT, dialect.chat())).status == 200
    await counts(proxy, "warmroute_requests_total", 1)
    status, out, err = await top("--once", "--url", proxy.url, WARMROUTE_ADMIN_TOKEN=TOKEN)
    assert (status, err) == (0, "")
    assert "50.0 % of prompt tokens cached" in out
    assert "1 requests" in out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)


async def test_the_proxy_is_the_one_of_the_settings(upstream: Upstream, proxy_factory: Any, top: Top) -> None:
    proxy = await proxy_factory(upstream)
    status, out, _ = await top("--once", WARMROUTE_PORT=str(proxy.port), WARMROUTE_HOST="0.0.0.0")
    assert status == 0
    assert "warmroute" in out


async def test_what_keeps_it_from_showing_is_one_sentence(
    upstream: Upstream, proxy_factory: Any, top: Top
) -> None:
    proxy = await proxy_factory(upstream, admin_token=TOKEN)
    for arguments, words in (
        (("--once", "--url", proxy.url), "does not accept the token"),
        (("--once", "--url", upstream.url), "has no /admin/live"),
        (("--once", "--port", "1"), "http://127.0.0.1:1 cannot be watched"),
        (("--port", "1"), "http://127.0.0.1:1 cannot be watched"),
    ):
        status, out, err = await top(*arguments, WARMROUTE_ADMIN_TOKEN="wrong")
        assert (status, out) == (1, "")
        assert words in err
        assert err.count("\n") == 1
    status, _, err = await top("--url", "ftp://x")
    assert status == 2
    assert "--url is 'ftp://x'" in err
    upstream.requests.clear()


async def test_it_follows_until_q_and_leaves_the_terminal_as_it_was(upstream: Upstream) -> None:
    screen, terminal = pty.openpty()
    seen = bytearray()
    loop = asyncio.get_running_loop()

    async def until(part: bytes) -> None:
        await eventually(lambda: part in seen, f"{part!r} is seen", within=30)
        del seen[: seen.index(part) + len(part)]

    async with serving(upstream) as proxy:
        port = proxy.port
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "top", "--url", proxy.url),
            env={"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        loop.add_reader(screen, lambda: seen.extend(os.read(screen, 65536)))
        try:
            await until(b"since start")
            await until(b"last 1 s")
            await proxy.close(grace=0)
            await until(b"trying again")
            async with serving(upstream, port=port):
                await until(b"last")
                os.write(screen, b"q")
                assert await process.wait() == 0
                await until(b"\x1b[?1049l")
        finally:
            loop.remove_reader(screen)
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(screen)
            os.close(terminal)
