"""What the chaos tests share: three replicas that are processes of their own, started at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.replica_process import ReplicaProcess


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[list[ReplicaProcess]]:
    """Three, each listening."""
    all_of_them = [ReplicaProcess(tmp_path, name) for name in "abc"]
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(each) for each in all_of_them))
        yield all_of_them
