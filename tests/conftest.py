"""What every test stands on: the variables of whoever runs the suite never reach the product."""

import os

import pytest

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
