"""Other routers: where they come from and how they are started, configured as their documentation recommends.

Each is installed in a venv of its own, so that none decides another's versions. Their commands and traps were
checked for the versions named here; another version may want another flag, and then does not start, which
whoever runs it tells.
"""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from subprocess import run

import aiohttp

from bench import processes
from bench.hop import cpu_seconds, rss_mib

HOME = Path(os.environ.get("WARMROUTE_BENCH_PEERS", Path.home() / ".cache" / "warmroute-bench" / "peers"))
START_SECONDS = 90.0
SETTLE_SECONDS = 1.5
"""After its first answer: until a router has looked at every replica."""

_GATEWAY = (
    "--host 127.0.0.1 --port {port} --policy cache_aware --log-level error --prometheus-host 127.0.0.1 "
    "--prometheus-port {metrics} --worker-urls {replicas}"
)


@dataclass(frozen=True, slots=True)
class Router:
    """One that can be compared."""

    name: str
    command: str | None
    """With {port}, {metrics}, {replicas} (separated by spaces; {commas}: by commas), {home} (its venv),
    {config} (litellm's file), {shared} (flags of our proxies); None: the client takes turns itself."""
    package: str | None = None
    """What to install."""
    note: str = ""
    """How it is configured, and why so."""


KNOWN: dict[str, Router] = {
    router.name: router
    for router in (
        Router("direct", None, note="no router: the client takes turns over the replicas (round robin)"),
        Router(
            "smg",
            "{home}/bin/smg launch " + _GATEWAY,
            "smg==1.13.0",
            "its default policy and thresholds; a tree over the prompts' text",
        ),
        Router(
            "sglang-router",
            "{home}/bin/sglang-router launch " + _GATEWAY,
            "sglang-router==0.3.2",
            "its default policy and thresholds; a tree over the prompts' text",
        ),
        Router(
            "vllm-router",
            "{home}/bin/vllm-router " + _GATEWAY,
            "vllm-router==0.1.17",
            "its default policy and thresholds; asks a replica to render prompts, and routes by load where "
            "that is refused (real vLLM needs --enable-scale-out)",
        ),
        Router(
            "litellm",
            "{home}/bin/litellm --host 127.0.0.1 --port {port} --config {config} --telemetry False",
            "litellm[proxy]",
            "one deployment a replica, least-busy, prompt_caching as its routing documentation asks",
        ),
        Router(
            "warmroute",
            shlex.quote(sys.executable) + " -m proxy serve --host 127.0.0.1 --port {port} --shutdown-delay 0 "
            "--replicas {commas} {shared}",
            note="its defaults, with the replicas' KV events where they publish them, and an index shared "
            "through a Valkey, as several proxies would have it",
        ),
    )
}
"""The production stack's router is no package: give its command, `production-stack='...'`."""


def install(names: Sequence[str]) -> None:
    """Install some of the known ones, each in a venv below `HOME`."""
    for name in names:
        package = KNOWN[name].package
        if package is None:
            continue
        venv = HOME / name
        if not (venv / "bin" / "python").exists():
            run([sys.executable, "-m", "venv", str(venv)], check=True)
        run([str(venv / "bin" / "pip"), "install", "-q", package], check=True)


def installed(router: Router) -> bool:
    """Whether it can be started."""
    return router.package is None or (HOME / router.name / "bin" / "python").exists()


@dataclass(frozen=True, slots=True)
class Shared:
    """What several proxies of ours share, for as long as a run lasts."""

    redis: str
    pid: int
    namespace: str
    secret: str

    @classmethod
    def of(cls, valkey: processes.Process) -> "Shared":
        """Nothing of an earlier window is in it."""
        return cls(valkey.urls[0], valkey.pid, f"bench-{token_hex(4)}", token_hex(16))

    @property
    def flags(self) -> str:
        """Of the proxy."""
        return f"--redis-url {self.redis} --namespace {self.namespace} --secret {self.secret}"


@dataclass(frozen=True, slots=True)
class Running:
    """One that runs."""

    pid: int
    url: str

    def cpu_seconds(self) -> float:
        """Of its whole process tree."""
        return cpu_seconds(self.pid)

    def memory_mib(self) -> float:
        """Of its whole process tree."""
        return rss_mib(self.pid)


@asynccontextmanager
async def started(
    router: Router, replicas: Sequence[str], log: Path, *, model: str, shared: Shared | None = None
) -> AsyncIterator[Running]:
    """Start one and wait until it answers. RuntimeError with the end of its log if it does not."""
    assert router.command is not None
    port = processes.free_port()
    log.parent.mkdir(parents=True, exist_ok=True)
    config = log.with_suffix(".json")
    config.write_text(json.dumps(litellm_config(replicas, model)))
    command = router.command.format(
        port=port,
        metrics=processes.free_port(),
        replicas=" ".join(replicas),
        commas=",".join(replicas),
        home=HOME / router.name,
        config=config,
        shared=shared.flags if shared else "--redis-url none",
    )
    async with processes.running(["sh", "-c", f"exec {command}"], log) as process:
        url = f"http://127.0.0.1:{port}"
        await _answers(url, model, process, log)
        yield Running(process.pid, url)


async def _answers(url: str, model: str, process: asyncio.subprocess.Process, log: Path) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            await processes.still_there(process, log)
            try:
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    said = await response.text()
                    if response.status == 200:
                        await asyncio.sleep(SETTLE_SECONDS)
                        return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                said = str(error)
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeError(f"it did not answer within {START_SECONDS:g} s: {said[:300]}")
            await asyncio.sleep(0.3)


def litellm_config(replicas: Sequence[str], model: str) -> Mapping[str, object]:
    """Its config file (JSON is YAML): one deployment a replica."""
    return {
        "model_list": [
            {
                "model_name": model,
                "litellm_params": {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"},
            }
            for url in replicas
        ],
        "router_settings": {
            "routing_strategy": "least-busy",
            "optional_pre_call_checks": ["prompt_caching"],
        },
        "litellm_settings": {"drop_params": False, "request_timeout": 600},
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},  # loopback only
    }


def arm(text: str) -> Router:
    """A known router's name, or NAME=COMMAND."""
    name, _, command = text.partition("=")
    if command:
        return Router(name, command, note=f"as given: {command}")
    if name not in KNOWN:
        raise ValueError(f"unknown router {name!r}; there are {', '.join(KNOWN)}, or NAME=COMMAND")
    if not installed(KNOWN[name]):
        raise ValueError(f"{name} is not installed: python -m bench peers install {name}")
    return KNOWN[name]
