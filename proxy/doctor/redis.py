"""What the doctor asks of Redis: whether it is there, fit for this, and agrees with the settings.

Reads only; it joins no namespace.
"""

import re
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from redis.exceptions import RedisError

from proxy import redis_url
from proxy.config import Settings
from proxy.doctor.findings import Findings
from proxy.model_pool import ModelPool
from proxy.shared.client import Link
from proxy.shared.layout import Names
from proxy.shared.pool import settings as common
from proxy.sources import variable

LEAST, TESTED = (6, 2), (7, 0)
"""Versions: below the first scripts may fail; below the second nobody has tried."""
FULL = 0.8
"""Share of its memory from which on it is said to be nearly full."""
SLOW_SECONDS = 0.005
SKEW_SECONDS = 2.0
PINGS = 15


async def examine(settings: Settings, pools: Mapping[str, ModelPool]) -> Findings:
    """Everything about Redis. `pools`: how the prompts of each model are keyed."""
    found = Findings("redis")
    url = redis_url.parse(settings.redis_url)
    if url.kind == "none":
        found.note(
            "redis", "it is not used: this process's index is its own", f"{variable('redis_url')}=embedded"
        )
        return found
    link = Link(url, budget=settings.redis_timeout_ms / 1000)
    try:
        await link.start()
        if not link.up:
            found.loss("redis", f"{url} cannot be reached: {link.why}", f"correct {variable('redis_url')}")
            return found
        await _fitness(found, link, embedded=url.kind == "embedded")
        if url.shared:
            for pool in pools.values():
                await _agreement(found, link, settings, pool)
    except RedisError as error:
        found.loss("redis", f"{url} refuses what is asked of it: {error}", "see its ACL rules and its log")
    finally:
        await link.close()
    return found


async def _fitness(found: Findings, link: Link, *, embedded: bool) -> None:
    info = _info(await link.call("INFO"))
    name, version = (
        ("Valkey", info["valkey_version"])
        if "valkey_version" in info
        else (
            "Redis",
            info.get("redis_version", "0"),
        )
    )
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if name == "Redis" and numbers < LEAST:
        found.loss("version", f"Redis {version} is too old", "use Redis 7 or Valkey")
    elif name == "Redis" and numbers < TESTED:
        found.warn("version", f"Redis {version} was not tried", "use Redis 7 or Valkey")
    else:
        found.fine("version", f"{name} {version}{', embedded' if embedded else ''}")
    most, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        found.loss(
            "eviction policy",
            f"{policy} punches holes into prefixes, or drops what a replica holds",
            "CONFIG SET maxmemory-policy noeviction",
        )
    else:
        found.fine("eviction policy", policy)
    if most and used > FULL * most:
        found.loss(
            "memory",
            f"{used >> 20:,} of {most >> 20:,} MiB are in use; a full one refuses what is told to it",
            f"CONFIG SET maxmemory {2 * most >> 20}mb",
        )
    else:
        of = f"{most >> 20:,} MiB" if most else "no limit"
        found.fine("memory", f"{used >> 20:,} MiB in use, of {of}")
    await _times(found, link)


async def _times(found: Findings, link: Link) -> None:
    """How long it takes to answer, and what time it thinks it is."""
    taken = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        await link.call("PING")
        taken.append(time.perf_counter() - begun)
    usual = median(taken)
    if usual > SLOW_SECONDS:
        found.warn(
            "latency",
            f"it takes {usual * 1000:.1f} ms to answer: other proxies' words come late",
            "move it closer, or give it a core of its own",
        )
    else:
        found.fine("latency", f"{usual * 1000:.2f} ms")
    seconds, micros = map(int, await link.call("TIME"))
    skew = seconds + micros / 1e6 - time.time()
    if abs(skew) > SKEW_SECONDS:
        found.warn(
            "clock", f"it is {skew:+.0f} s off this one's", "keep both clocks with NTP (chronyc tracking)"
        )


async def _agreement(found: Findings, link: Link, settings: Settings, pool: ModelPool) -> None:
    """Whether the namespace was begun with the same settings as these."""
    if pool.keyer is None:
        return
    names = Names(settings.namespace, pool.model)
    reply = await link.call("HGETALL", names.meta)
    held = {k.decode(): v.decode(errors="replace") for k, v in zip(reply[::2], reply[1::2], strict=True)}
    ours = common(settings.secret.get_secret_value().encode(), pool.block_size, pool.keyer.fingerprint.hex())
    differing = [what for what, value in ours.items() if held and held.get(what) != value]
    if differing:
        found.loss(
            "namespace",
            f"{settings.namespace!r} was begun with another {' and '.join(differing)} for {pool.model}",
            f"give all proxies the same, or this one another {variable('namespace')}",
        )
    else:
        state = "agrees" if held else "is new"
        found.fine("namespace", f"{settings.namespace!r} {state}, for {pool.model}")


def _info(reply: Any) -> dict[str, str]:
    pairs = (line.partition(":") for line in bytes(reply).decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}
