"""A simulated replica in real time: an `EngineModel` on the monotonic clock, and what its answers say.

Knows nothing of HTTP. One asyncio timer stands for the whole engine; a request is a `Generation` that its
handler takes events from, and must close: closing one early frees its slot, as a client's disconnect does.
Answers are words drawn under the seed and the prompt, so the same request gets the same answer from every
replica.
"""

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from time import monotonic
from types import TracebackType
from typing import Self

from xxhash import xxh3_64_intdigest

from bench.engine_events import Source
from bench.engine_model import EngineModel, EngineSpec, TokenEvent
from bench.engine_prompt import EnginePrompt, block_keys
from bench.engine_publisher import Publisher

_NATURAL_LENGTHS = (48, 192)
"""Tokens of an answer whose client does not insist on a length; the last of them is the end token."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a replica says of itself."""

    model: str
    max_model_len: int
    seed: int = 0
    report_cached: bool = True
    """Whether usage has `prompt_tokens_details` (vLLM: --enable-prompt-tokens-details)."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters; each answers as the model does, with a cache of its own."""

    @property
    def models(self) -> tuple[str, ...]:
        """Every name a request may have."""
        return (self.model, *self.adapters)


class Replica:
    """One engine, or one data-parallel rank of one. Its clock is `time.monotonic`."""

    def __init__(
        self,
        spec: EngineSpec,
        prompt: EnginePrompt,
        identity: Identity,
        publisher: Publisher | None = None,
    ) -> None:
        self.spec = spec
        self.prompt = prompt
        self.identity = identity
        self.publisher = publisher
        """Of its KV events; None where it does not publish any."""
        self.ranks: Sequence[Replica] = (self,)
        """All ranks of its engine, itself among them."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._made = 0
        self.begin()

    def begin(self) -> None:
        """Be a process that has just started: nothing cached, nothing running, every counter at zero.

        Who waits for an answer from before waits for ever; the caller sees to them.
        """
        self.close()
        self.model = EngineModel(
            self.spec, changed=None if self.publisher is None else self.publisher.changed
        )
        self.started = time.time()
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        """Requests by how they ended."""
        self._open: dict[str, Generation] = {}

    def new_id(self) -> str:
        """16 hex digits, the same sequence under the same seed."""
        self._made += 1
        return f"{Random(f'{self.identity.seed}/{self._made}').getrandbits(64):016x}"

    def generate(
        self,
        ids: "array[int]",
        *,
        received: float,
        max_tokens: int,
        ignore_eos: bool = False,
        min_tokens: int = 0,
        salt: str | None = None,
        lora: str | None = None,
        choice: int = 0,
    ) -> "Generation":
        """Queue one sequence that arrived at `received` on the monotonic clock."""
        answer = self._answer(ids, max_tokens, choice, min_tokens=min_tokens, ignore_eos=ignore_eos)
        whole = array("I", ids)
        whole.extend(answer.ids)
        request_id = self.new_id()
        size, base = self.spec.block_size, self.identity.model
        keys = block_keys(whole, size, model=lora or base, salt=salt)
        generation = Generation(self, request_id, len(ids), answer)
        source = None
        if self.publisher is not None:
            without = None if lora is None else block_keys(whole, size, model=base, salt=salt)
            source = Source(whole, salt, lora, without)
        self.model.submit(received, request_id, keys, len(ids), len(answer.ids), source)
        self._open[request_id] = generation
        self._run()
        return generation

    def forget(self, generation: "Generation") -> None:
        """The handler is through with it, whether it is complete or not."""
        if self._open.pop(generation.request_id, None) is not None:
            self.model.cancel(monotonic(), generation.request_id)
            self.finished["abort"] += 1
            self._run()

    def at(self, rank: int | None) -> "Replica":
        """The rank that is asked for; without one, the engine's own balancer takes whichever has least to do.

        Raises IndexError.
        """
        return min(self.ranks, key=lambda each: each.in_flight) if rank is None else self.ranks[rank]

    @property
    def in_flight(self) -> int:
        """Sequences handed over and not complete."""
        return len(self._open)

    def reset_cache(self) -> bool:
        """Forget every cached block; False while sequences run."""
        self._run()
        done = self.model.reset_cache()
        if done and self.publisher is not None:
            self.publisher.cleared()
        return done

    def close(self) -> None:
        """Stop the clock. Open generations never end after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        """Deliver what has happened and sleep until something will."""
        for event in self.model.advance(monotonic()):
            generation = self._open[event.request_id]
            if event.kind == "done":
                del self._open[event.request_id]
                self.finished[generation.answer.finish_reason] += 1
            generation.deliver(event)
        if self._timer is not None:
            self._timer.cancel()
        at = self.model.next_event()
        # Timers count in milliseconds: rounded up, so that none fires before there is something to do.
        delay = None if at is None else ceil(1000 * max(0.0, at - monotonic())) / 1000
        self._timer = None if delay is None else self._loop.call_later(delay, self._run)

    def _answer(
        self, ids: "array[int]", max_tokens: int, choice: int, *, min_tokens: int, ignore_eos: bool
    ) -> "Answer":
        rng = Random(f"{self.identity.seed}/{choice}/{xxh3_64_intdigest(ids)}")
        natural = max(min_tokens, rng.randint(*_NATURAL_LENGTHS))
        length = max_tokens if ignore_eos else min(max_tokens, natural)
        stops = not ignore_eos and natural <= max_tokens and length > 0
        words = rng.choices(self.prompt.words, k=length - stops)
        texts, numbers = [text for text, _ in words], array("I", [number for _, number in words])
        if stops:
            texts.append("")
            numbers.append(self.prompt.end_id)
        return Answer(texts, numbers, "stop" if stops else "length")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a sequence will say, one text a token."""

    texts: Sequence[str]
    ids: "array[int]"
    finish_reason: str


class Generation:
    """One sequence on its way. Use as a context manager: leaving it frees the slot."""

    def __init__(self, replica: Replica, request_id: str, prompt_tokens: int, answer: Answer) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.answer = answer
        self.cached_tokens = 0
        self.produced = 0
        self.done = False
        self._replica = replica
        self._events: list[TokenEvent] = []
        self._waiter: asyncio.Future[None] | None = None

    async def next_texts(self) -> list[str]:
        """The texts of the tokens since the last call, waiting for at least one; empty when it is done."""
        while True:
            if self._events:
                events, self._events = self._events, []
                self.cached_tokens = events[0].cached_tokens
                first = self.produced
                self.produced += sum(event.kind != "done" for event in events)
                self.done = events[-1].kind == "done"
                if self.produced > first or self.done:
                    return list(self.answer.texts[first : self.produced])
            if self.done:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def whole_text(self) -> str:
        """Everything, once it is done."""
        texts: list[str] = []
        while not self.done:
            texts += await self.next_texts()
        return "".join(texts)

    def deliver(self, event: TokenEvent) -> None:
        """Hand over an event; the replica's business."""
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._replica.forget(self)
