"""`warmroute doctor`: everything is asked, at once where that is possible, and shown in one table.

A proxy is started for it that serves nobody and shares nothing: what it comes to know of the replicas is what
one that serves would know. Exit status 1 if anything loses hits or requests.
"""

import asyncio
from random import SystemRandom

import aiohttp
import uvloop
from rich.console import Console

from proxy import probes
from proxy.app import Proxy
from proxy.certificates import Contexts
from proxy.config import Settings
from proxy.doctor import knowledge, redis
from proxy.doctor.asking import Asker
from proxy.doctor.findings import Finding, Findings, Level, show
from proxy.doctor.replica import Examination
from proxy.insight import Tracing
from proxy.logs import logger
from proxy.names import Names
from proxy.replica import Replica
from proxy.sources import variable

AT_ONCE = 8
"""Replicas that are asked at the same time."""
PLAIN_WIDTH = 120
"""Of a table that no terminal shows."""


def run(settings: Settings) -> int:
    """Ask, show, and give the exit status."""
    logger.setLevel("CRITICAL")  # what it would say is among the findings
    findings = uvloop.run(diagnose(settings))
    console = Console(highlight=False)
    show(findings, console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH))
    return int(any(each.level is Level.LOSS for each in findings))


async def diagnose(settings: Settings) -> list[Finding]:
    """All findings: of each replica by name, of the fleet, and of Redis."""
    async with Proxy(_private(settings)) as proxy, _session(settings) as http:
        replicas = sorted(proxy.fleet.replicas.values(), key=lambda replica: replica.name)
        room = asyncio.Semaphore(AT_ONCE)
        found = await asyncio.gather(
            *(_examined(settings, proxy, http, replica, room) for replica in replicas)
        )
        fleet = _fleet(settings, replicas)
        pools = {pool.model: pool for each in replicas if (pool := proxy.pools.pool_of(each.name))}
        told = [*found, fleet, await redis.examine(settings, pools)]
    return [finding for each in told for finding in each.all]


async def _examined(
    settings: Settings,
    proxy: Proxy,
    http: aiohttp.ClientSession,
    replica: Replica,
    room: asyncio.Semaphore,
) -> Findings:
    """Everything about one replica."""
    configured = {spec.name: spec for spec in settings.replicas}
    spec = configured.get(replica.name.partition("@")[0])
    asker = Asker(http, replica)
    it = Examination(asker, replica, spec, settings, SystemRandom())
    async with room:
        if await it.alive():
            pool = proxy.pools.pool_of(replica.name)
            await it.metrics()
            await it.cache()
            await knowledge.tokenizer(it.found, asker, replica, pool, http, proxy)
            await it.answers()
            await it.priority()
            await knowledge.events(it.found, replica, spec, pool, proxy, caches=it.caches)
    return it.found


def _fleet(settings: Settings, replicas: list[Replica]) -> Findings:
    """What can only be seen of all replicas together."""
    found = Findings("fleet")
    if not replicas:
        found.loss("replicas", "there are none", f"set {variable('replicas')}=http://host:port,…")
    sizes: dict[str, set[int]] = {}
    for replica in replicas:
        model, size = replica.description.base_model, replica.description.block_size
        if model is not None and size is not None:
            sizes.setdefault(model, set()).add(size)
    for model, known in sizes.items():
        if len(known) > 1 and settings.block_size == "auto":
            told = " and ".join(map(str, sorted(known)))
            found.loss(
                "block size",
                f"replicas of {model} keep blocks of {told} tokens: only one of them is used for all",
                "start all of them with one --block-size (SGLang: --page-size)",
            )
    return found


def _private(settings: Settings) -> Settings:
    """The same fleet, for a proxy that nobody calls and no other one hears."""
    return settings.model_copy(
        update={
            "host": "127.0.0.1",
            "port": 0,
            "redis_url": "none",
            "workers": 1,
            "record": None,
            "tracing": Tracing(),
            "api_keys_file": None,
            "salt_per_key": False,
            "tls": settings.tls.model_copy(update={"cert": None, "key": None, "client_ca": None}),
        }
    )


def _session(settings: Settings) -> aiohttp.ClientSession:
    return probes.session(settings, Names(), Contexts(settings.tls).upstream)
