"""Real engines that somebody runs for the tests, named in an environment variable."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

PATIENCE = 300
"""Seconds a test may take: engines on a CPU take their time."""


def named(variable: str) -> list[str]:
    """The URLs in an environment variable, divided by commas."""
    return [url.strip().rstrip("/") for url in os.environ.get(variable, "").split(",") if url.strip()]


def need_engines(items: Iterable[pytest.Item], folder: Path) -> None:
    """Mark the tests below a folder, so that they run only where engines are asked for."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.engines)
            item.add_marker(pytest.mark.timeout(PATIENCE))
