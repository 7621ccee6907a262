"""The models that the fleet serves: their names, and how the prompts of each become keys.

One `ModelPool` a base model: its adapters share tokenizer and template. A tokenizer that is not provably the
engine's is worse than none, so it is compared with the engine when it is loaded and with the token counts
that engines report; where it differs the pool falls back to blocks of text and says so. The map of models
grows only by what replicas report, and a model that none has served for a while is forgotten.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from proxy.config import Settings
from proxy.description import DEFAULT_BLOCK
from proxy.engine_tokens import EngineTokens
from proxy.errors import BadRequest, ModelNotFound, NoReplica
from proxy.fleet import Fleet
from proxy.index.truth import TrueIndex
from proxy.logs import logger
from proxy.metrics import Metrics
from proxy.model_pool import MISMATCHES, ModelPool
from proxy.prompt import tokenizer as tokenizers
from proxy.prompt.keyer import Keyer
from proxy.prompt.template import Template
from proxy.replica import Replica
from proxy.tasks import Tasks

LINGER_SECONDS = 600.0
"""How long a model is known after its last replica has left: until then nobody serves it just now."""


@dataclass(slots=True)
class Target:
    """What a client's model name stands for."""

    name: str
    """As the replicas know it."""
    pool: ModelPool
    lora: str | None
    alias: bool
    """Whether the client used another name."""


class Pools:
    """All models by name."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        index: TrueIndex,
        metrics: Metrics,
        tokens: EngineTokens,
        tasks: Tasks,
        *,
        keyed: Callable[[ModelPool], Coroutine[Any, Any, None]],
        rekeyed: Callable[[ModelPool], Coroutine[Any, Any, None]],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._index = index
        self._metrics = metrics
        self._tokens = tokens
        self._tasks = tasks
        self._keyed = keyed
        """Told when the prompts of a pool can be keyed."""
        self._rekeyed = rekeyed
        """Told when they are keyed otherwise than before."""
        self._secret = settings.secret.get_secret_value().encode()
        self._pools: dict[str, ModelPool] = {}
        self._targets: dict[str, Target] = {}
        self._loading: dict[str, asyncio.Event] = {}
        self._unserved: dict[str, float] = {}
        """Base models without a replica, and since when."""

    def resolve(self, name: str | None) -> Target:
        """What a client's model name stands for. Raises ModelNotFound, BadRequest, NoReplica."""
        if name is not None:
            target = self._targets.get(name)
            if target is not None:
                return target
        if not self._pools:
            raise NoReplica("no replica has told yet which models it serves", retry_after=1.0)
        if name is None:
            served = [model for model in self._pools if model not in self._unserved] or list(self._pools)
            if len(served) == 1:
                return self._targets[served[0]]
            raise BadRequest("name a model: this proxy serves several", param="model")
        known = ", ".join(sorted(self._targets)[:20])
        raise ModelNotFound(f"this model is not served here; served are: {known}", param="model")

    def described(self, name: str) -> None:
        """A replica has said what it serves: make its models ready to be keyed."""
        replica = self._fleet.replicas[name]
        description = replica.description
        self._size(replica)
        for model, parent in description.models.items():
            if parent is None or parent not in description.models:
                self._ensure(model, replica)
        self._rebuild()

    def removed(self, name: str) -> None:
        """A replica has left the fleet."""
        self._index.forget(name)
        self._rebuild()

    def sweep(self) -> None:
        """Forget the models that nobody has served for a while."""
        oldest = monotonic() - LINGER_SECONDS
        for model in [model for model, since in self._unserved.items() if since < oldest]:
            del self._unserved[model]
            pool = self._pools.pop(model)
            self._loading.pop(model, None)
            self._metrics.tokenizer_mode.pop(model, None)
            self._targets = {name: it for name, it in self._targets.items() if it.pool is not pool}
            self._tasks.start(f"end of {model}", self._rekeyed(pool))

    def forget(self, name: str) -> None:
        """A replica's cache is empty."""
        self._index.forget(name)
        replica = self._fleet.replicas.get(name)
        if replica is not None:
            self._size(replica)

    def _size(self, replica: Replica) -> None:
        """Tell the index how much a replica's cache takes, and in which way."""
        description = replica.description
        if description.cache_blocks is not None:
            self._index.resize(replica.name, description.cache_blocks)
        slots = description.max_seqs if description.engine == "llama_cpp" else None
        self._index.keep_slots(replica.name, slots)

    def give_up_tokenizer(self, pool: ModelPool) -> None:
        """Replies have shown that our tokens are not the engine's."""
        self._fall_back(pool, f"{MISMATCHES} replies in a row reported other prompt token counts")
        self._tasks.start(f"keying of {pool.model}", self._rekeyed(pool))

    def state(self) -> dict[str, dict[str, Any]]:
        """Model to how it fares, for /ready."""
        return {
            name: {
                "replicas": len(self._fleet.candidates(target.name)),
                "tokenizer": target.pool.mode,
                "block_size": target.pool.block_size,
                **({"degraded": target.pool.degraded} if target.pool.degraded else {}),
            }
            for name, target in self._targets.items()
        }

    def index_mode(self, replica: Replica) -> str:
        """`events`, `stale`, `slots` or `learned`, or `bytes` where prompts are not tokenised."""
        modes = {self._targets[m].pool.mode for m in replica.description.models if m in self._targets}
        if "bytes" in modes:
            return "bytes"
        return self._index.mode(replica.name) if self._index.slots(replica.name) is None else "slots"

    def pool_of(self, replica: str) -> ModelPool | None:
        """How the prompts of a replica's base model are keyed; None while it is not known."""
        known = self._fleet.replicas.get(replica)
        base = None if known is None else known.description.base_model
        return None if base is None else self._pools.get(base)

    def cards(self) -> list[dict[str, Any]]:
        """The union of the fleet's models, in OpenAI's shape."""
        cards: dict[str, dict[str, Any]] = {}
        for replica in self._fleet.replicas.values():
            for model in replica.description.models:
                card = replica.description.cards.get(model)
                cards.setdefault(model, card or {"id": model, "object": "model", "owned_by": "warmroute"})
        for alias, model in self._settings.aliases.items():
            if model in cards:
                cards.setdefault(alias, {**cards[model], "id": alias})
        return list(cards.values())

    def _rebuild(self) -> None:
        targets: dict[str, Target] = {}
        for replica in self._fleet.replicas.values():
            models = replica.description.models
            for model, parent in models.items():
                base = parent if parent is not None and parent in models else model
                pool = self._pools.get(base)
                if pool is not None:
                    lora = model if base != model else None
                    targets.setdefault(model, Target(model, pool, lora, alias=False))
        served = {target.pool.model for target in targets.values()}
        now = monotonic()
        self._unserved = {
            model: self._unserved.get(model, now) for model in self._pools if model not in served
        }
        for name, target in self._targets.items():
            if target.pool.model in self._unserved:
                targets.setdefault(name, target)
        for alias, model in self._settings.aliases.items():
            if model in targets:
                known = targets[model]
                targets[alias] = Target(known.name, known.pool, known.lora, alias=True)
        self._targets = targets

    def _ensure(self, model: str, replica: Replica) -> None:
        """Begin to load the tokenizer of a model that is new."""
        told = replica.description.block_size
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = ModelPool(model)
            size = self._settings.block_size
            pool.block_size = (told or DEFAULT_BLOCK) if size == "auto" else size
            self._note(pool)
            self._loading[model] = asyncio.Event()
            self._tasks.start(f"tokenizer of {model}", self._load(pool, replica))
        elif told is not None and told != pool.block_size and self._settings.block_size == "auto":
            logger.error(
                "replica %s keeps blocks of %d tokens and others of %s %d: give all of them one size, "
                "or its hits are misjudged",
                replica.name,
                told,
                model,
                pool.block_size,
            )

    async def settled(self) -> None:
        """Wait until the tokenizers that are being loaded are there, or given up."""
        await asyncio.gather(*(event.wait() for event in self._loading.values()))

    async def _load(self, pool: ModelPool, replica: Replica) -> None:
        try:
            await self._load_tokenizer(pool, replica)
        finally:
            if pool.keyer is None:
                self._fall_back(pool, "its tokenizer could not be loaded; the log says why")
            try:
                await self._keyed(pool)
            finally:
                self._loading[pool.model].set()

    async def _load_tokenizer(self, pool: ModelPool, replica: Replica) -> None:
        if self._settings.tokenizer == "engine":
            pool.engine_tokens = self._tokens
            pool.keyer = self._keyer(pool)
            self._note(pool)
            return
        source = self._source(replica)
        if source is None:
            chosen = self._settings.tokenizer == "bytes"
            unknown = "the replica names no tokenizer; set WARMROUTE_TOKENIZER to its directory"
            self._fall_back(pool, "WARMROUTE_TOKENIZER is bytes" if chosen else unknown)
            return
        loop = asyncio.get_running_loop()
        try:
            loaded = await loop.run_in_executor(None, tokenizers.load, source)
        except tokenizers.TokenizerUnavailable as error:
            self._fall_back(pool, str(error))
            return
        keyer = self._keyer(pool, *loaded)
        wrong = await self._tokens.differs(replica, pool.model, keyer)
        if wrong:
            self._fall_back(pool, wrong)
            return
        pool.keyer = keyer
        logger.info(
            "model %s: prompts are tokenised exactly, in blocks of %d tokens", pool.model, pool.block_size
        )
        self._note(pool)

    def _source(self, replica: Replica) -> str | None:
        chosen = self._settings.tokenizer
        if chosen == "bytes":
            return None
        if chosen != "auto":
            return str(Path(chosen).expanduser()) if Path(chosen).expanduser().is_dir() else chosen
        return replica.description.root

    def _keyer(
        self, pool: ModelPool, tokenizer: tokenizers.Tokenizer | None = None, template: Template | None = None
    ) -> Keyer:
        return Keyer(
            secret=self._secret,
            model=pool.model,
            tokenizer=tokenizer,
            template=template,
            block_size=pool.block_size,
            trie_bytes=self._settings.cache_mb * 1024 * 1024,
        )

    def _fall_back(self, pool: ModelPool, why: str) -> None:
        pool.keyer = self._keyer(pool)
        pool.why = why
        pool.engine_tokens = None
        level = logger.info if self._settings.tokenizer == "bytes" else logger.warning
        level("model %s: prompts are keyed as text, not as tokens: %s", pool.model, why)
        self._note(pool)

    def _note(self, pool: ModelPool) -> None:
        self._metrics.tokenizer_mode[pool.model] = pool.mode
