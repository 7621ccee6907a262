"""What the doctor asks of one replica. It sends a few short prompts, one token of answer each.

Whatever a replica answers becomes a finding; nothing here raises for it.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec

from proxy.config import Settings
from proxy.doctor.asking import Answer, Asker
from proxy.doctor.findings import Findings
from proxy.doctor.flags import (
    CACHED,
    CACHING,
    KNOWN_METRICS,
    METRICS,
    ORDER,
    PRIORITY,
    USED_METRICS,
    field,
)
from proxy.replica import Replica
from proxy.sources import variable
from proxy.spec import ReplicaSpec

SKEW_SECONDS = 2.0
"""A clock that is off by more is said to be wrong."""
BLOCKS = 4
"""Blocks that a probe prompt has at least: enough that a second one finds some."""
UNKNOWN_BLOCK = 64
"""Tokens of a block where the engine does not say: more than most have."""
_WORDS = 0.75
"""Blocks of the probe's words a token: each is a few tokens, never less than one."""


class Examination:
    """One replica, looked at from the outside."""

    def __init__(
        self, asker: Asker, replica: Replica, spec: ReplicaSpec | None, settings: Settings, rng: Random
    ) -> None:
        """`spec`: how it is configured; None for one that was found by discovery."""
        self.found = Findings(replica.name)
        self.caches = True
        """Whether it keeps prefixes."""
        self.reports: bool | None = None
        """Whether its replies tell cached tokens; None where that could not be seen."""
        self._ask = asker
        self._replica = replica
        self._spec = spec
        self._settings = settings
        self._rng = rng
        self._engine = replica.description.engine

    async def alive(self) -> bool:
        """Whether it can be used at all."""
        found, description = self.found, self._replica.description
        health = await self._ask.get("/health")
        if not health.status or health.status >= 500:
            found.loss(
                "health", f"/health: {health.complaint}", f"start it, or correct {variable('replicas')}"
            )
            return False
        if not description.models:
            models = await self._ask.get("/v1/models")
            fix = field("model", '"its name"')
            if models.status in (401, 403):
                fix = f"set {variable('upstream_api_key')} to a key that it takes"
            why = "it names no model" if models.ok else models.complaint
            found.loss("models", f"/v1/models: {why}", fix)
            return False
        found.fine("health", f"it answers, as {self._engine}, for {', '.join(sorted(description.models))}")
        if self._engine == "openai":
            found.warn(
                "engine",
                "it does not say which engine it is, so nothing of its cache is asked",
                field("engine", '"vllm"|"sglang"|"llama_cpp"'),
            )
        self._clock(health)
        return True

    def _clock(self, answer: Answer) -> None:
        if answer.skew is None:
            self.found.note("clock", "it does not tell the time")
        elif abs(answer.skew) > SKEW_SECONDS:
            ahead = "ahead of" if answer.skew > 0 else "behind"
            self.found.warn(
                "clock",
                f"its clock is {abs(answer.skew):.0f} s {ahead} this one, so the lag of its events is wrong",
                "keep both clocks with NTP (chronyc tracking)",
            )
        else:
            self.found.fine("clock", "it is right")

    async def metrics(self) -> None:
        """Which metric names are there."""
        found, engine = self.found, self._engine
        page = await self._ask.get("/metrics")
        if not page.ok:
            if engine in METRICS:
                found.warn("metrics", f"/metrics: {page.complaint}", METRICS[engine])
            else:
                found.note("metrics", f"/metrics: {page.complaint}")
            return
        names = {
            line.partition("{")[0].partition(" ")[0] for line in page.text.splitlines() if line[:1] != "#"
        }
        used = _missing(USED_METRICS.get(engine, ()), names)
        known = _missing(KNOWN_METRICS.get(engine, ()), names)
        if used:
            fix = METRICS.get(engine, "")
            found.warn("metrics", f"these are missing, under any name known: {', '.join(used)}", fix)
        if known:
            found.note("metrics", f"these are missing: {', '.join(known)}", METRICS.get(engine, ""))
        if not used and not known and engine in USED_METRICS:
            found.fine("metrics", "every name is there")
        if "process_start_time_seconds" not in names and engine in ("vllm", "sglang"):
            found.note("metrics", "process_start_time_seconds is missing: a fast restart may go unseen")

    async def cache(self) -> None:
        """Whether it keeps prefixes, in blocks of which size, and how many."""
        found, description, settings = self.found, self._replica.description, self._settings
        caches = description.caches
        if self._engine == "sglang":
            info = (await self._ask.get("/server_info")).json()
            if isinstance(info, Mapping) and info.get("disable_radix_cache") is True:
                caches = False
        self.caches = caches
        if not caches:
            found.loss("prefix caching", "it is off", CACHING.get(self._engine, "turn it on"))
        size, chosen = description.block_size, settings.block_size
        if self._engine == "llama_cpp":
            found.fine("block size", "it shares token by token; blocks are the proxy's own")
        elif size is None:
            found.loss(
                "block size",
                "it does not say, so hits are cut at the wrong places",
                field("block_size", "16"),
            )
        elif chosen not in ("auto", size):
            found.loss(
                "block size",
                f"it is {size} tokens here, and {chosen} in the settings",
                f"{variable('block_size')}=auto",
            )
        elif self._engine == "sglang" and size == 1:
            found.loss("block size", "pages of one token are not worth their keys", "--page-size 16")
        else:
            found.fine("block size", f"{size} tokens")
        if description.cache_blocks is None:
            found.warn(
                "cache size",
                "it does not say, so evictions are guessed",
                METRICS.get(self._engine) or field("capacity", "blocks"),
            )
        else:
            found.fine("cache size", f"{description.cache_blocks:,} blocks")

    async def answers(self) -> None:
        """Whether equal prompts hit, and whether replies say so, in one piece and in streams."""
        found = self.found
        body = self._probe()
        first = await self._ask.post("/v1/completions", body)
        path = "/v1/completions"
        if first.status in (400, 404, 405, 501):
            path, body = "/v1/chat/completions", _chat(body)
            first = await self._ask.post(path, body)
        if not first.ok:
            found.warn("answers", f"{path}: {first.complaint}", "see the engine's log")
            return
        again = await self._ask.post(path, body)
        stream = await self._ask.post(
            path, {**body, "stream": True, "stream_options": {"include_usage": True}}
        )
        prompt, cached = _usage(again.json())
        self.reports = cached is not None
        if cached is None:
            fix = CACHED.get(self._engine, "")
            found.warn(
                "cached tokens", "its replies do not tell them: nothing corrects what is believed", fix
            )
        elif (
            not cached
            and (prompt or 0) > BLOCKS * (self._replica.description.block_size or UNKNOWN_BLOCK) // 2
        ):
            found.loss(
                "cached tokens",
                f"of two equal prompts of {prompt} tokens in a row, the second found nothing",
                CACHING.get(self._engine, "turn prefix caching on"),
            )
        else:
            found.fine("cached tokens", f"the second of two equal prompts found {cached} of {prompt}")
        self._streams(stream)

    def _streams(self, stream: Answer) -> None:
        found, never = self.found, f"{variable('stream_usage')}=never"
        if not stream.ok:
            found.warn("streams", f"one that asks for usage is refused: {stream.complaint}", never)
            return
        prompt, cached = None, None
        for line in stream.body.splitlines():
            if line.startswith(b"data: {"):
                told, hits = _usage(Answer(200, line[6:]).json())
                prompt, cached = told or prompt, cached if hits is None else hits
        if prompt is None:
            found.warn("streams", "usage is not told at their end, even where it is asked for", never)
        elif cached is None and self.reports:
            found.warn("streams", "usage in them does not tell cached tokens", CACHED.get(self._engine, ""))
        else:
            found.fine("streams", "usage is told at their end")

    async def priority(self) -> None:
        """Whether it orders by priority, and whether the settings say the same."""
        found, engine = self.found, self._engine
        said = None if self._spec is None else self._spec.priority
        if engine not in PRIORITY:
            if said is not None:
                found.warn(
                    "priority", f"it is said to be {said}, and {engine} has none", "leave out priority"
                )
            return
        orders, say_it = await self._orders(), field("priority", f'"{ORDER[engine]}"')
        if orders is None and said is None:
            found.note("priority", "it does not say whether it orders by it", f"where it does, {say_it}")
        elif orders is None:
            found.note("priority", f"the settings say {said}, and it does not say", PRIORITY[engine])
        elif said is not None and not orders:
            found.loss(
                "priority",
                f"the settings say {said}, but it does not order by it: it ignores it, or refuses requests",
                f"{PRIORITY[engine]}, or leave out priority",
            )
        elif orders and said is None:
            found.note("priority", "it orders by it, and is not used for it", say_it)
        elif orders:
            found.fine("priority", f"it orders by it, {said}")
        else:
            found.note("priority", "it does not order by it: classes are kept apart here", PRIORITY[engine])

    async def _orders(self) -> bool | None:
        """Whether it orders by priority; None if it does not say. vLLM says so in its development mode only.

        Some of its versions refuse a priority that they would not order by; 0.32 takes it and does nothing.
        """
        if self._engine == "sglang":
            info = (await self._ask.get("/server_info")).json()
            told = info.get("enable_priority_scheduling") if isinstance(info, Mapping) else None
            return told if isinstance(told, bool) else None
        info = (await self._ask.get("/server_info?config_format=json")).json()
        for part in ("vllm_config", "scheduler_config"):
            info = info.get(part) if isinstance(info, Mapping) else None
        if isinstance(info, Mapping) and isinstance(info.get("policy"), str):
            return bool(info["policy"] == "priority")
        body = {**self._probe(), "prompt": "priority", "priority": 1}
        answer = await self._ask.post("/v1/completions", body)
        return False if answer.status == 400 and "priority" in answer.text.lower() else None

    def _probe(self) -> dict[str, Any]:
        """A prompt of some blocks that nobody has sent before."""
        block = self._replica.description.block_size or UNKNOWN_BLOCK
        words = [f"{self._rng.getrandbits(20):x}" for _ in range(max(8, int(BLOCKS * block * _WORDS)))]
        return {
            "model": self._replica.description.base_model,
            "prompt": " ".join(words),
            "max_tokens": 1,
            "temperature": 0,
        }


def _missing(wanted: tuple[tuple[str, ...], ...], names: set[str]) -> list[str]:
    return [any_of[0] for any_of in wanted if names.isdisjoint(any_of)]


def _chat(body: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in body.items() if name != "prompt"}
    return {**rest, "messages": [{"role": "user", "content": body["prompt"]}]}


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Told(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


def _usage(reply: Any) -> tuple[int | None, int | None]:
    """Prompt tokens and cached tokens in a reply or a chunk; None for what it does not tell."""
    usage = reply.get("usage") if isinstance(reply, Mapping) else None
    try:
        told = msgspec.convert(usage, _Told)
    except msgspec.ValidationError:
        return None, None
    details = told.prompt_tokens_details
    return told.prompt_tokens, None if details is None else details.cached_tokens
