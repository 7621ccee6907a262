"""What every test stands on: the variables of whoever runs the suite never reach the product."""

import asyncio
import os
from collections.abc import Callable

import pytest
import uvloop

ENGINES = "WARMROUTE_TEST_ENGINES"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say aloud what the default run leaves out."""
    if config.getoption("markexpr") == "not engines":
        return "engines: left out, they need real vLLM replicas; `make test-engines` runs them"
    return None


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WARMROUTE_") and name != ENGINES]:
        monkeypatch.delenv(name)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give every test the event loop that the product runs on."""
    return {"uvloop": uvloop.new_event_loop}
