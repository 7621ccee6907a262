"""What a proxy comes to know of a replica, and what it does not: its tokenizer, and its KV events.

Looks at a proxy that was started for this and serves nobody.
"""

import asyncio
from time import monotonic

import aiohttp

from proxy.app import Proxy
from proxy.doctor.asking import Asker
from proxy.doctor.findings import Findings
from proxy.doctor.flags import EVENTS
from proxy.engine_tokens import EngineTokens
from proxy.model_pool import ModelPool
from proxy.replica import Replica
from proxy.sources import variable
from proxy.spec import OFF, ReplicaSpec

PATIENCE = 5.0
"""Seconds in which an event should come of a prompt that was answered."""
LOOK_SECONDS = 0.05
CHECK_SECONDS = 10.0


async def tokenizer(
    found: Findings,
    asker: Asker,
    replica: Replica,
    pool: ModelPool | None,
    http: aiohttp.ClientSession,
    proxy: Proxy,
) -> None:
    """Whether our tokens are the engine's: compared on probe prompts, on each replica."""
    if pool is None or pool.keyer is None:
        found.loss(
            "tokenizer", "it could not be loaded in time", f"set {variable('tokenizer')} to its directory"
        )
        return
    if pool.engine_tokens is not None:
        name = "content" if replica.description.engine == "llama_cpp" else "prompt"
        asked = await asker.post("/tokenize", {"model": pool.model, name: "Once upon a time"})
        if not asked.ok:
            found.loss("tokenizer", f"/tokenize: {asked.complaint}", f"{variable('tokenizer')}=auto")
        else:
            found.note("tokenizer", "each prompt is sent to an engine first, to be tokenised")
        return
    if pool.keyer.mode != "exact":
        found.loss(
            "tokenizer",
            f"prompts of {pool.model} are keyed as text, not as tokens: {pool.degraded}",
            f"set {variable('tokenizer')} to a directory with the model's tokenizer.json",
        )
        return
    engine = EngineTokens(http, proxy.fleet, seconds=CHECK_SECONDS)
    wrong = await engine.differs(replica, pool.model, pool.keyer)
    if wrong:
        found.loss(
            "tokenizer",
            wrong,
            f"set {variable('tokenizer')} to the directory that the engine loaded its own from",
        )
    elif engine.trouble:
        found.warn(
            "tokenizer",
            f"it could not be compared: {engine.trouble}",
            "let the engine serve /tokenize; until then replies' token counts are compared",
        )
    else:
        found.fine(
            "tokenizer", f"it gives {replica.name}'s own tokens for the probe prompts that it tokenises"
        )


async def events(
    found: Findings,
    replica: Replica,
    spec: ReplicaSpec | None,
    pool: ModelPool | None,
    proxy: Proxy,
    *,
    caches: bool,
) -> None:
    """Whether it publishes what it stores, and whether that arrives; after a prompt was answered."""
    description, where = replica.description, variable("replicas")
    feed, engine = description.feed, description.engine
    if engine not in EVENTS:
        found.note("events", f"{engine} publishes none: its cache is guessed from what was routed")
        return
    if not caches:
        found.note("events", "there are none while prefix caching is off")
        return
    if feed is None:
        if spec is not None and spec.kv_events == OFF:
            found.loss("events", "the settings say off: its cache is guessed", 'leave out "kv_events": "off"')
        else:
            found.loss(
                "events",
                "it publishes none, or does not say where, so its cache is guessed from what was routed",
                f'{EVENTS[engine]}; where it does not tell, add "kv_events" in {where}',
            )
        return
    if pool is not None and pool.mode == "bytes":
        found.loss("events", "they tell of tokens, and prompts are keyed as text", "see tokenizer")
        return
    if not await _arrived(proxy, replica.name):
        how = "is connected to"
        fix = f'let this host reach that port, or name another as "kv_events" in {where}'
        if feed.bind:
            how = "listens at"
            fix = "let the engine dial in to this host; a proxy that listens there already keeps it"
        why = f"none came within {PATIENCE:g} s of a prompt's answer; this proxy {how} {feed.endpoint}"
        found.loss("events", why, fix)
        return
    found.fine("events", f"they arrive, from {feed.endpoint}")
    if feed.replay is None:
        found.warn("events", "those that are missed cannot be asked for again", EVENTS[engine])
    size = feed.block_size
    if size is not None and size != description.block_size:
        found.loss(
            "events",
            f"they tell of blocks of {size} tokens, and its cache has {description.block_size}",
            f"set {variable('block_size')}={size}",
        )


async def _arrived(proxy: Proxy, name: str) -> bool:
    """Whether events have told of blocks; some of what came before this proxy may be missing."""
    ends = monotonic() + PATIENCE
    while monotonic() < ends:
        if proxy.index.mode(name) != "learned" and proxy.index.confirmed_blocks(name):
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False
