"""Mixed traffic in a closed loop: shared prefixes, conversations, one-off prompts; streams and not.

A conversation's next turn repeats the answer that really came, so it cannot be made beforehand; at most one
of its turns is under way. `concurrency` requests are, all the time. What is drawn depends on the seed, which
turn comes when also on how fast answers come.

The answers of a model with random weights rarely read back as the tokens that they were, as a real model's
do. So, where the engine takes `allowed_token_ids`, conversations are held in words of one token each.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

import aiohttp
import msgspec

from bench.prompts import WORDS, word_salad

Messages = list[dict[str, str]]

SYSTEMS = 12
SYSTEM_TOKENS = 900
ONE_OFF_TOKENS = (300, 1500)
QUESTION_TOKENS = (20, 120)
TURNS = (3, 6)
KINDS = {"shared": 0.4, "conversation": 0.35, "random": 0.25}
_EVENT = re.compile(rb"^data: (\{.*)$", re.MULTILINE)


@dataclass(slots=True)
class Outcome:
    """One request: what the proxy foretold before it sent it, and what the replica then reported."""

    kind: str
    stream: bool
    status: int | None = None
    error: str | None = None
    replica: str | None = None
    decision: str | None = None
    predicted: int | None = None
    """Cached tokens, from the answer's head."""
    reported: int | None = None
    counted: int | None = None
    """Prompt tokens, as the proxy counted them."""
    prompt_tokens: int | None = None
    text: str = ""


@dataclass(slots=True)
class _Conversation:
    messages: Messages
    turns: int
    answers: list[str] = field(default_factory=list)


class Mixed:
    """The traffic of one run."""

    def __init__(self, model: str, seed: str, *, allowed: Sequence[int] = ()) -> None:
        """`allowed`: token ids that conversations' answers are made of; none: any."""
        self._model = model
        self._seed = seed
        self._allowed = list(allowed)
        self._rng = Random(f"{seed}/mixed")
        self._number = 0
        self._idle: list[_Conversation] = []
        weights = [1 / (group + 1) for group in range(SYSTEMS)]
        self._popularity = list(accumulate(weights))
        self._systems = [word_salad(f"{seed}/system/{n}", SYSTEM_TOKENS) for n in range(SYSTEMS)]

    async def run(
        self,
        url: str,
        requests: int,
        concurrency: int,
        on_outcome: Callable[[Outcome], None] = lambda _outcome: None,
    ) -> list[Outcome]:
        """Send so many requests to a proxy, always so many at once."""
        outcomes: list[Outcome] = []
        left = iter(range(requests))
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

            async def worker() -> None:
                for _ in left:
                    outcome = await self._one(session, url)
                    outcomes.append(outcome)
                    on_outcome(outcome)

            await asyncio.gather(*(worker() for _ in range(concurrency)))
        return outcomes

    async def _one(self, session: aiohttp.ClientSession, url: str) -> Outcome:
        rng = self._rng
        self._number += 1
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        outcome = Outcome(kind, stream=rng.random() < 0.5)
        if kind == "conversation":
            talk = self._conversation()
            fields: dict[str, Any] = {"max_tokens": 40, "min_tokens": 40}
            if self._allowed:
                fields["allowed_token_ids"] = self._allowed
            await ask(session, url, self._body(talk.messages, outcome, **fields), outcome)
            talk.turns -= 1
            talk.messages.append({"role": "assistant", "content": outcome.text or "Yes."})
            if talk.turns:
                self._idle.append(talk)
            return outcome
        if kind == "shared":
            first = rng.choices(self._systems, cum_weights=self._popularity)[0]
        else:
            first = self._text("one-off", *ONE_OFF_TOKENS)
        messages = [{"role": "system", "content": first}, self._question()]
        await ask(session, url, self._body(messages, outcome, max_tokens=rng.randint(1, 8)), outcome)
        return outcome

    def _conversation(self) -> _Conversation:
        """One that waits for its next turn, or a new one; its question is asked."""
        rng = self._rng
        if self._idle and rng.random() < 0.75:
            talk = self._idle.pop(rng.randrange(len(self._idle)))
        else:
            own = rng.random() < 0.5
            system = self._text("talk", 100, 400) if own else rng.choice(self._systems)
            talk = _Conversation([{"role": "system", "content": system}], rng.randint(*TURNS))
        talk.messages.append(self._question())
        return talk

    def _question(self) -> dict[str, str]:
        return {"role": "user", "content": self._text("question", *QUESTION_TOKENS)}

    def _text(self, what: str, least: int, most: int) -> str:
        return word_salad(f"{self._seed}/{what}/{self._number}", self._rng.randint(least, most))

    def _body(self, messages: Messages, outcome: Outcome, **fields: Any) -> bytes:
        body = {"model": self._model, "messages": messages, "temperature": 0, "ignore_eos": True, **fields}
        if outcome.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return msgspec.json.encode(body)


async def ask(session: aiohttp.ClientSession, url: str, body: bytes, outcome: Outcome) -> None:
    """Send one chat request; what came of it goes into `outcome`. Nothing is raised."""
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
            raw = await response.read()
            outcome.status = response.status
            told = response.headers
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
        return
    if outcome.status != 200:
        outcome.error = f"status {outcome.status}: {raw[:200].decode(errors='replace')}"
        return
    outcome.replica = told.get("x-warmroute-replica")
    outcome.decision = told.get("x-warmroute-decision")
    outcome.predicted = _number(told.get("x-warmroute-predicted-cached-tokens"))
    outcome.counted = _number(told.get("x-warmroute-prompt-tokens"))
    for event in _EVENT.findall(raw) if outcome.stream else [raw]:
        _take(msgspec.json.decode(event), outcome)


def _take(event: dict[str, Any], outcome: Outcome) -> None:
    for choice in event.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or {}
        outcome.text += said.get("content") or ""
    usage = event.get("usage")
    if usage:
        outcome.prompt_tokens = usage["prompt_tokens"]
        outcome.reported = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


async def one_token_words(session: aiohttp.ClientSession, engine: str, model: str) -> list[int]:
    """Token ids of words that are one token each, blank included, as an engine tokenises them."""
    found = []
    for word in WORDS[:60]:
        async with session.post(
            f"{engine}/tokenize",
            json={"model": model, "prompt": f" {word}", "add_special_tokens": False},
        ) as response:
            if response.status != 200:
                return []
            ids = (await response.json())["tokens"]
        if len(ids) == 1:
            found.append(int(ids[0]))
    return found
