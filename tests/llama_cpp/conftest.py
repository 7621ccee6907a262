"""Real llama.cpp servers, named in WARMROUTE_TEST_LLAMA_CPP, and a proxy in front of them.

WARMROUTE_TEST_TOKENIZER is the directory of their model's tokenizer. Without servers every test here is
skipped with a word.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.app import Proxy
from proxy.config import Settings
from tests.engines.calls import SLOW, get
from tests.support.engines import named, need_engines
from tests.support.eventually import eventually

SERVERS, TOKENIZER = "WARMROUTE_TEST_LLAMA_CPP", "WARMROUTE_TEST_TOKENIZER"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    need_engines(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def llama_servers() -> list[str]:
    """The servers' URLs."""
    urls = named(SERVERS)
    if not urls:
        pytest.skip(f"NOT RUN: name one or more llama.cpp servers in {SERVERS}=http://host:port,...")
    return urls


@pytest.fixture(scope="session")
def llama_tokenizer() -> str:
    """The directory of the model's tokenizer."""
    directory = os.environ.get(TOKENIZER)
    if not directory:
        pytest.skip(f"NOT RUN: name the directory of the model's tokenizer in {TOKENIZER}")
    return directory


async def at_rest(server: str) -> None:
    """Wait until a server has nothing to do."""

    async def idle() -> bool:
        return not any(slot["is_processing"] for slot in (await get(server, "/slots")).json)

    await eventually(idle, f"{server} is idle", within=SLOW)


@pytest.fixture
async def llama_proxy(llama_servers: list[str], llama_tokenizer: str) -> AsyncIterator[Proxy]:
    """A proxy in front of all servers, whose slots hold what earlier tests left there."""
    for server in llama_servers:
        await at_rest(server)
    named = [{"url": url, "name": f"r{number}"} for number, url in enumerate(llama_servers, 1)]
    settings = Settings(
        port=0, replicas=named, redis_url="none", log_level="warning", tokenizer=llama_tokenizer
    )
    async with Proxy(settings) as proxy:
        yield proxy
        assert proxy.in_flight == 0
