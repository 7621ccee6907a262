"""A prefix that takes more than one simulated replica's time is held by more of them, and /admin tells so."""

import asyncio
from dataclasses import replace
from typing import Any

import aiohttp

from bench.engine import serve
from bench.profiles import EngineSpec
from proxy.app import Proxy
from proxy.config import Settings
from tests.support.eventually import eventually

SPEC = EngineSpec(
    name="slow", cache_tokens=65_536, prefill_tokens_per_s=2000.0, step_s=0.001, step_per_sequence_s=0.0
)
SYSTEM = "A system prompt that many share, with rules that nobody reads but all must hold to. " * 30


async def test_a_hot_prefix_is_replicated_and_shown():
    async with (
        serve(replace(SPEC), ports=(0, 0, 0)) as running,
        Proxy(
            Settings(
                port=0,
                replicas=[{"url": one.url, "name": f"r{number}"} for number, one in enumerate(running)],
                redis_url="none",
                log_level="warning",
            )
        ) as proxy,
        aiohttp.ClientSession() as session,
    ):

        async def prefixes() -> list[dict[str, Any]]:
            async with session.get(proxy.url + "/admin/prefixes") as reply:
                assert reply.status == 200
                return list((await reply.json())["prefixes"])

        async def metrics() -> str:
            async with session.get(proxy.url + "/metrics") as reply:
                return await reply.text()

        async def ask_on(who: int) -> None:
            for number in range(10_000):
                question = f"{who} asks for number {number}, and how to get there. " * 6
                body = {
                    "model": "simulated",
                    "messages": [
                        {"role": "system", "content": SYSTEM},
                        {"role": "user", "content": question},
                    ],
                    "max_tokens": 2,
                    "stream": True,
                }
                async with session.post(proxy.url + "/v1/chat/completions", json=body) as reply:
                    assert reply.status == 200
                    await reply.read()

        asking = [asyncio.create_task(ask_on(who)) for who in range(4)]
        try:

            async def everywhere() -> dict[str, Any] | None:
                for prefix in await prefixes():
                    if prefix["replicas_wanted"] == len(prefix["holders"]) == 3:
                        return prefix
                return None

            prefix = await eventually(everywhere, "three replicas are to hold it, and do", within=60)
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert prefix["hot"]
        assert {holder["replica"] for holder in prefix["holders"]} == {"r0", "r1", "r2"}
        assert all(one.replica.model.prompt_tokens > 0 for one in running)
        page = await metrics()
        assert "\nwarmroute_hot_prefixes 1.0\n" in page
        assert "\nwarmroute_hot_prefix_replicas_held 3.0\n" in page
        assert 'warmroute_prefix_replications_total{step="grow"}' in page
