"""What any OpenAI-compatible URL tells of itself, and what can be asked of it. HTTP only; nothing is guessed.

Known dialects: vLLM's and SGLang's metrics and cache resets, and this proxy's. What an endpoint does not tell
is None, and whoever reports says so.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
TIMEOUT = aiohttp.ClientTimeout(total=10)

QUERIES = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting", "sglang:num_running_reqs")
PREEMPTIONS = ("vllm:num_preemptions_total",)
RESETS = ("/reset_prefix_cache", "/flush_cache")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One URL, as it describes itself; None where it does not."""

    url: str
    model: str | None = None
    tokenizer: Path | None = None
    """Its tokenizer's directory, if that is on this machine."""
    simulated: bool = False
    block_size: int | None = None
    blocks: int | None = None
    version: str | None = None
    tells_counters: bool = False


@dataclass(frozen=True, slots=True)
class Counters:
    """An engine's own counts: prompt tokens looked up and found in its cache, and how much it preempted."""

    queries: float = 0.0
    hits: float = 0.0
    preemptions: float = 0.0

    def since(self, earlier: "Counters") -> "Counters":
        """What was counted since."""
        return Counters(
            self.queries - earlier.queries,
            self.hits - earlier.hits,
            self.preemptions - earlier.preemptions,
        )


class Samples(list[tuple[str, dict[str, str], float]]):
    """One page of Prometheus text: name, labels, value."""

    @classmethod
    def parse(cls, text: str) -> "Samples":
        """Lines that are no samples are passed over."""
        found = cls()
        for name, labels, value in _SAMPLE.findall(text):
            try:
                found.append((name, dict(_LABEL.findall(labels)), float(value)))
            except ValueError:
                continue
        return found

    def total(self, names: Sequence[str]) -> float | None:
        """The sum of all samples of these names; None if there is none."""
        values = [value for name, _, value in self if name in names]
        return sum(values) if values else None

    def labels(self, name: str) -> Mapping[str, str]:
        """Of the first sample of that name; empty if there is none."""
        return next((labels for found, labels, _ in self if found == name), {})


async def metrics(session: aiohttp.ClientSession, url: str) -> Samples:
    """Its /metrics; empty if it has none."""
    try:
        async with session.get(f"{url}/metrics", timeout=TIMEOUT) as response:
            return Samples.parse(await response.text()) if response.status == 200 else Samples()
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return Samples()


async def look(session: aiohttp.ClientSession, url: str, model: str | None) -> Endpoint:
    """Ask an endpoint what it is; raises if nobody answers and no model is given."""
    found = Endpoint(url, model)
    try:
        async with session.get(f"{url}/v1/models", timeout=TIMEOUT) as response:
            simulated = "simulated" in response.headers.get("Server", "")
            models = (await response.json(content_type=None))["data"] if response.status == 200 else []
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
        if model is None:
            raise
        return found
    if model is None and not models:
        raise ValueError(f"{url}/v1/models names no model; name one with --model")
    if models:
        root = Path(str(models[0].get("root") or ""))
        directory = root if (root / "tokenizer.json").is_file() else None
        found = Endpoint(url, model or str(models[0]["id"]), directory, simulated)
    page = await metrics(session, url)
    sizes = page.labels("vllm:cache_config_info") or page.labels("sglang:cache_config_info")
    return replace(
        found,
        block_size=_count(sizes.get("block_size", sizes.get("page_size"))),
        blocks=_count(sizes.get("num_gpu_blocks", sizes.get("num_pages"))),
        version=await _version(session, url),
        tells_counters=page.total(QUERIES) is not None and page.total(HITS) is not None,
    )


async def counters(session: aiohttp.ClientSession, urls: Sequence[str]) -> dict[str, Counters | None]:
    """Each engine's counts; None where it does not tell."""
    pages = await asyncio.gather(*(metrics(session, url) for url in urls))
    found: dict[str, Counters | None] = {}
    for url, page in zip(urls, pages, strict=True):
        queries, hits = page.total(QUERIES), page.total(HITS)
        known = queries is not None and hits is not None
        found[url] = Counters(queries or 0.0, hits or 0.0, page.total(PREEMPTIONS) or 0.0) if known else None
    return found


async def stages(session: aiohttp.ClientSession, url: str) -> dict[tuple[str, str], float]:
    """This proxy's waterfall: (group, stage) to prompt tokens; empty for anything else."""
    found: dict[tuple[str, str], float] = {}
    for name, labels, value in await metrics(session, url):
        if name == "warmroute_prefix_tokens_total":
            key = labels.get("group", ""), labels.get("stage", "")
            found[key] = found.get(key, 0.0) + value
    return found


async def idle(session: aiohttp.ClientSession, urls: Sequence[str], seconds: float = 60.0) -> bool:
    """Wait until none has a request; False if one still has then. Who tells nothing counts as idle."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        pages = await asyncio.gather(*(metrics(session, url) for url in urls))
        if not any(page.total(BUSY) for page in pages):
            return True
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.1)


async def reset(session: aiohttp.ClientSession, url: str) -> str | None:
    """Empty an engine's prefix cache; what is wrong, or None if it is empty now."""
    for path in RESETS:
        for _ in range(20):
            status, done = await _post(session, url + path, {})
            if status == 200 and done:
                return None
            if status in {404, 405}:
                break
            if status is None:
                return f"{url} did not answer"
            await asyncio.sleep(0.25)
        else:
            return f"{url}{path} answered {status} and did not empty its cache"
    return f"{url} has none of {', '.join(RESETS)} (vLLM: VLLM_SERVER_DEV_MODE=1)"


async def flush(session: aiohttp.ClientSession, url: str, token: str | None) -> str | None:
    """Empty this proxy's index; what is wrong, or None. What is not this proxy keeps what it knows."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    status, _ = await _post(session, f"{url}/admin/flush", headers)
    if status in {200, 204}:
        return None
    why = {None: "did not answer", 401: "needs its admin token"}.get(status, "has no /admin/flush")
    return f"{url} {why}: what it remembers of earlier prompts was not emptied"


async def _post(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]
) -> tuple[int | None, bool]:
    """The status, and whether the answer did not say that it failed."""
    try:
        async with session.post(url, headers=headers, timeout=TIMEOUT) as response:
            try:
                said = await response.json(content_type=None)
            except ValueError:
                said = None
            return response.status, not (isinstance(said, dict) and said.get("success") is False)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None, False


async def _version(session: aiohttp.ClientSession, url: str) -> str | None:
    try:
        async with session.get(f"{url}/version", timeout=TIMEOUT) as response:
            said = await response.json(content_type=None) if response.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    return str(said["version"]) if isinstance(said, dict) and "version" in said else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
