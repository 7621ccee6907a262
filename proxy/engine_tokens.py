"""Asks an engine how it tokenises: to check our own tokenizer at the start, or in its place.

Never raises and never waits longer than its budget: no answer means that a prompt is routed by load. A
refusal (a missing key, an engine without /tokenize) is a reason in a counter, not a silence. llama.cpp's
/tokenize takes text alone, so a chat is rendered by its /apply-template before.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec
import xxhash

from proxy.fleet import Fleet
from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, parse
from proxy.replica import Replica

MAX_CACHED_TOKENS = 4_000_000
CHECK_SECONDS = 5.0
_CHAT_FIELDS = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
)
_LONG = "The quick brown fox jumps over the lazy dog; 12345 times, naïve café, 你好世界 🙂.\n\n" * 8
CHECKS: tuple[tuple[Endpoint, dict[str, Any]], ...] = (
    (Endpoint.CHAT, {"messages": [{"role": "user", "content": _LONG}]}),
    (
        Endpoint.CHAT,
        {
            "messages": [
                {"role": "system", "content": "You answer briefly.  " + _LONG},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello.\n"},
                {"role": "user", "content": "<|not special|> [INST] and\ttabs " + _LONG},
            ]
        },
    ),
    (Endpoint.COMPLETIONS, {"prompt": _LONG}),
)
"""What our tokenizer is compared with the engine's on; templates need turns that alternate."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Rendered(msgspec.Struct):
    prompt: str


Shape = TypeVar("Shape", _Tokens, _Rendered)


class EngineTokens:
    """The engines' own /tokenize."""

    def __init__(self, http: aiohttp.ClientSession, fleet: Fleet, *, seconds: float) -> None:
        self._http = http
        self._fleet = fleet
        self._seconds = seconds
        self._cache: OrderedDict[bytes, array[int]] = OrderedDict()
        self._cached = 0
        self.trouble = ""
        """Why the last prompt was not tokenised; empty if it was."""

    async def tokens(self, model: str, endpoint: Endpoint, body: bytes) -> array[int] | None:
        """The token ids of a request's prompt, as an engine that serves `model` gives them, if it does."""
        try:
            asked = _question(endpoint, msgspec.json.decode(body))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        candidates = self._fleet.candidates(model)
        if asked is None or not candidates:
            return None
        question = msgspec.json.encode({"model": model, **asked})
        key = xxhash.xxh3_128_digest(question)
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        view = min(candidates, key=lambda candidate: candidate.in_flight)
        ids = await self._ask(self._fleet.replicas[view.name], question, self._seconds)
        if ids is not None:
            self._cache[key] = ids
            self._cached += len(ids)
            while self._cached > MAX_CACHED_TOKENS:
                self._cached -= len(self._cache.popitem(last=False)[1])
        return ids

    async def differs(self, replica: Replica, model: str, keyer: Keyer) -> str:
        """Why `keyer` is not the replica's tokenizer; empty if it is, or if the replica has no say."""
        for endpoint, fields in CHECKS:
            body = msgspec.json.encode({"model": model, **fields})
            asked = _question(endpoint, {"model": model, **fields})
            ids = await self._ask(
                replica, msgspec.json.encode({"model": model, **(asked or {})}), CHECK_SECONDS
            )
            if ids is None:
                continue
            ours = keyer.token_ids(parse(endpoint, body))
            if ours is not None and ours != ids:
                return f"the tokenizer does not give replica {replica.name}'s own token ids"
        return ""

    async def _ask(self, replica: Replica, question: bytes, seconds: float) -> array[int] | None:
        if replica.description.engine == "llama_cpp":
            content = await self._content(replica, question, seconds)
            if content is None:
                return None
            question = msgspec.json.encode({"content": content, "add_special": True})
        told = await self._post(replica, "/tokenize", question, seconds, _Tokens)
        try:
            return None if told is None else array("I", told.tokens)
        except (OverflowError, TypeError):
            self.trouble = f"/tokenize of replica {replica.name} gave no token ids"
            return None

    async def _content(self, replica: Replica, question: bytes, seconds: float) -> str | None:
        """The text that llama.cpp's server would read for a prompt."""
        fields = msgspec.json.decode(question)
        if "prompt" in fields:
            return str(fields["prompt"])
        told = await self._post(replica, "/apply-template", question, seconds, _Rendered)
        return None if told is None else told.prompt

    async def _post(
        self, replica: Replica, path: str, body: bytes, seconds: float, shape: type[Shape]
    ) -> Shape | None:
        try:
            async with self._http.post(
                replica.url + path,
                server_hostname=replica.server_name,
                data=body,
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                if response.status != 200:
                    self.trouble = f"{path} of replica {replica.name} answered {response.status}"
                    return None
                self.trouble = ""
                return msgspec.json.decode(await response.read(), type=shape)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            self.trouble = f"{path} of replica {replica.name} failed ({type(error).__name__})"
            return None


def _question(endpoint: Endpoint, fields: Any) -> dict[str, Any] | None:
    """What to ask /tokenize for a request's prompt; None if it cannot be asked."""
    if not isinstance(fields, Mapping):
        return None
    if endpoint is Endpoint.CHAT and isinstance(fields.get("messages"), list):
        return {name: fields[name] for name in _CHAT_FIELDS if name in fields}
    if endpoint is Endpoint.COMPLETIONS and isinstance(fields.get("prompt"), str):
        return {"prompt": fields["prompt"]}
    return None
