"""Real vLLM replicas, named in WARMROUTE_TEST_ENGINES, and a proxy process in front of them.

Nothing here skips: without engines, or with engines that lack a switch the tests need, the run fails and
says what is missing.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.conftest import ENGINES
from tests.engines.calls import BLOCK, at_rest, get, post
from tests.support.engines import named, need_engines

START_SECONDS = 60.0


@dataclass(frozen=True)
class Served:
    """A running proxy, and the engines behind it by the names it gave them."""

    url: str
    replicas: dict[str, str]

    async def reset(self, name: str) -> None:
        """Empty a replica's prefix cache the way an operator does."""
        answer = await post(self.url, f"/admin/replicas/{name}/reset_prefix_cache", b"")
        assert answer.status == 200, answer.text

    async def in_flight(self) -> int:
        replicas = (await get(self.url, "/admin/replicas")).json["replicas"]
        return sum(replica["in_flight"] for replica in replicas)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    need_engines(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def engines() -> list[str]:
    """The replicas' URLs; fails unless all of them are up and have what the suite needs."""
    urls = named(ENGINES)
    assert len(urls) >= 2, f"NOT RUN: name two or more vLLM replicas in {ENGINES}=http://host:port,..."
    for url in urls:
        try:
            with urlopen(f"{url}/metrics", timeout=30) as page:
                metrics = page.read().decode()
        except (URLError, OSError) as error:
            pytest.fail(f"NOT RUN: {url} does not answer ({error})", pytrace=False)
        found = re.search(r'vllm:cache_config_info\{.*\bblock_size="(\d+)"', metrics)
        assert found, f"{url} is not vLLM"
        assert int(found[1]) == BLOCK, f"start {url} with --block-size {BLOCK}"
    return urls


@pytest.fixture
async def rested(engines: list[str]) -> list[str]:
    """The replicas, once they have nothing to do."""
    for url in engines:
        await at_rest(url)
    return engines


@pytest.fixture(scope="module")
def served(engines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`python -m proxy serve` in front of all replicas, as it comes."""
    log = tmp_path_factory.mktemp("proxy") / "log"
    replicas = {f"r{number}": url for number, url in enumerate(engines, 1)}
    specs = json.dumps([{"name": name, "url": url} for name, url in replicas.items()])
    command = [sys.executable, "-m", "proxy", "serve", "--port", "0", "--replicas", specs]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            yield Served(_address(process, log), replicas)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(timeout=40) == 0, log.read_text()
            finally:
                process.kill()
    assert "Traceback" not in log.read_text(), log.read_text()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = re.search(r"listening on (http://\S+)", log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(f"not listening after {START_SECONDS} s: {log.read_text()}")


@pytest.fixture
async def cold(served: Served, rested: list[str]) -> AsyncIterator[Served]:
    """The proxy in front of replicas with empty caches, which it knows to be empty."""
    for name in served.replicas:
        await served.reset(name)
    yield served
    assert await served.in_flight() == 0
