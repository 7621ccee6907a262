"""What the bench asks of the engines and the proxy it measures: sizes, idleness, a cold start.

HTTP only, so it works for simulated and for real replicas alike.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from bench.client import until

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine, as it describes itself."""

    url: str
    model: str
    tokenizer: Path | None
    """Its tokenizer's directory, if that is on this machine."""
    simulated: bool
    block_size: int
    blocks: int

    @property
    def cache_tokens(self) -> int:
        """Room of its prefix cache."""
        return self.block_size * self.blocks


async def facts(session: aiohttp.ClientSession, url: str) -> EngineFacts:
    """Ask an engine what it serves and how large its cache is."""
    async with session.get(f"{url}/v1/models") as response:
        simulated = "simulated" in response.headers.get("Server", "")
        model = (await response.json())["data"][0]
    async with session.get(f"{url}/metrics") as response:
        config = _labels(await response.text(), "vllm:cache_config_info")
    root = Path(model.get("root") or "")
    tokenizer = root if (root / "tokenizer.json").is_file() else None
    return EngineFacts(
        url=url,
        model=model["id"],
        tokenizer=tokenizer,
        simulated=simulated,
        block_size=int(config["block_size"]),
        blocks=int(config["num_gpu_blocks"]),
    )


async def samples(session: aiohttp.ClientSession, url: str, name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of one metric, each with its labels; none where it does not exist."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    return [
        (dict(_LABEL.findall(labels)), float(value))
        for found, labels, value in _SAMPLE.findall(text)
        if found == name
    ]


async def total(session: aiohttp.ClientSession, url: str, name: str) -> float:
    """The sum of a metric's samples."""
    return sum(value for _, value in await samples(session, url, name))


async def wait_for_start(session: aiohttp.ClientSession, url: str, path: str, timeout: float = 30.0) -> None:
    """Until `path` answers 200."""

    async def answers() -> bool:
        try:
            async with session.get(url + path) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    await until(answers, timeout=timeout, what=f"{url}{path} did not answer 200", every=0.1)


async def wait_until_idle(
    session: aiohttp.ClientSession, engines: Sequence[str], timeout: float = 60.0
) -> None:
    """Until no engine has a request running or waiting."""

    async def idle() -> bool:
        counts = await asyncio.gather(*(_in_flight(session, url) for url in engines))
        return not any(counts)

    await until(idle, timeout=timeout, what="the engines did not become idle")


async def make_cold(session: aiohttp.ClientSession, engines: Sequence[str], proxy: str | None) -> None:
    """Empty the engines' prefix caches and the proxy's index of them."""

    async def reset(url: str) -> bool:
        async with session.post(f"{url}/reset_prefix_cache") as response:
            if response.status == 404:
                raise RuntimeError(f"{url} has no /reset_prefix_cache; vLLM needs VLLM_SERVER_DEV_MODE=1")
            return bool((await response.json()).get("success", True))

    for url in engines:
        await until(partial(reset, url), timeout=10.0, what=f"{url} did not reset its cache")
    if proxy is not None:
        async with session.post(f"{proxy}/admin/flush") as response:
            if response.status not in {200, 204, 404}:
                raise RuntimeError(f"{proxy}/admin/flush: {response.status} {await response.text()}")


async def _in_flight(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    names = {"vllm:num_requests_running", "vllm:num_requests_waiting"}
    return sum(float(value) for name, _, value in _SAMPLE.findall(text) if name in names)


def _labels(exposition: str, name: str) -> dict[str, str]:
    for found, labels, _ in _SAMPLE.findall(exposition):
        if found == name:
            return dict(_LABEL.findall(labels))
    raise ValueError(f"the engine's metrics lack {name}")
