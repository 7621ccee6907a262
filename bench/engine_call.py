"""One HTTP request to a simulated replica: its body checked as vLLM checks it, its sequences queued.

What the endpoints share. `Call.read` raises `ApiError` for whatever vLLM would refuse; `Call.start` queues
one sequence a prompt and choice, and leaving its `with` block frees their slots however that happens.
"""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from aiohttp import web

from bench import engine_errors as errors
from bench.engine_prompt import PromptError
from bench.engine_replica import Generation, Replica


class Piece(NamedTuple):
    """New text of one of a call's sequences."""

    choice: int
    texts: Sequence[str]
    finish_reason: str | None
    """Set with the sequence's last text."""


@dataclass(slots=True)
class Usage:
    """Tokens of a whole call."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    created_tokens: int
    """Prompt tokens that this call brought into the cache."""


class Call:
    """A request whose body has been read."""

    def __init__(self, replica: Replica, request: web.Request, body: dict[str, Any], received: float) -> None:
        self.replica = replica
        self.body = body
        self.received = received
        self.identity = replica.identity
        given = request.headers.get("X-Request-Id")
        self.id = given or replica.new_id()
        self.generations: list[Generation] = []
        self._choices = 1

    @classmethod
    async def read(cls, replica: Replica, request: web.Request) -> "Call":
        """Read and check what is the same for every endpoint."""
        received = monotonic()
        if request.content_type != "application/json":
            raise errors.not_json()
        raw = await request.read()
        try:
            body = json.loads(raw)
        except json.JSONDecodeError as error:
            raise errors.invalid_json(error.pos, error.msg) from error
        except UnicodeDecodeError as error:
            raise errors.invalid_json(error.start, "Invalid UTF-8") from error
        if not isinstance(body, dict):
            raise errors.wrong_type("", "dictionary", type(body).__name__)
        call = cls(_rank(replica, request), request, body, received)
        call.check()
        return call

    def check(self) -> None:
        """Refuse what vLLM refuses before it looks at the prompt."""
        named = self.body.get("model")
        if named is not None and named not in self.identity.models:
            raise errors.unknown_model(named, ", ".join(self.identity.models))
        if self.body.get("cache_salt") == "":
            raise errors.empty_salt()
        for name, kind, types in _TYPES:
            value = self.body.get(name)
            if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
                raise errors.wrong_type(name, kind, value)

    def require(self, name: str) -> Any:
        """A field that has to be there."""
        if name not in self.body:
            raise errors.missing(name, len(self.body))
        return self.body[name]

    @property
    def model(self) -> str:
        """The model or the adapter that the client names, else the model."""
        return str(self.body.get("model") or self.identity.model)

    @property
    def lora(self) -> str | None:
        """The adapter, if that is what it names."""
        return None if self.model == self.identity.model else self.model

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return bool(self.body.get("stream"))

    # ---- prompts ------------------------------------------------------------------------------------------

    def chat_ids(self, messages: Any, options: Mapping[str, Any]) -> "array[int]":
        """Token ids of a conversation."""
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise errors.wrong_type("messages", "list", messages)
        try:
            return self.replica.prompt.encode(self.replica.prompt.render(messages, options))
        except PromptError as error:
            raise errors.ApiError(str(error)) from error

    def text_ids(self, text: str) -> "array[int]":
        """Token ids of a text."""
        try:
            return self.replica.prompt.encode(text)
        except PromptError as error:
            raise errors.ApiError(str(error)) from error

    def prompt_ids(self, prompt: Any, name: str = "prompt") -> list["array[int]"]:
        """Token ids of a `prompt` in any of its four forms: text, ids, or a list of either."""
        if isinstance(prompt, str):
            return [self.text_ids(prompt)]
        if isinstance(prompt, list) and prompt:
            if all(isinstance(item, int) for item in prompt):
                return [_as_ids(prompt, name)]
            if all(isinstance(item, str) for item in prompt):
                return [self.text_ids(item) for item in prompt]
            if all(isinstance(item, list) for item in prompt):
                return [_as_ids(item, name) for item in prompt]
        raise errors.wrong_type(name, "string", prompt)

    # ---- sequences ----------------------------------------------------------------------------------------

    @contextmanager
    def start(
        self, prompts: Sequence["array[int]"], *, max_tokens: int | None = None, name: str = "max_tokens"
    ) -> Iterator[None]:
        """Queue every sequence of the call. `max_tokens=None` leaves the length to the context's limit."""
        limit, body = self.identity.max_model_len, self.body
        if max_tokens is not None and max_tokens > limit:
            raise errors.too_many_output_tokens(name, max_tokens, limit)
        for ids in prompts:
            if not ids:
                raise errors.ApiError("The decoder prompt cannot be empty")
            if len(ids) > limit - (max_tokens != 0):
                raise errors.too_long(len(ids), limit)
        self._choices = body.get("n") or 1
        with ExitStack() as stack:
            for ids in prompts:
                room = limit - len(ids)
                for choice in range(self._choices):
                    generation = self.replica.generate(
                        ids,
                        received=self.received,
                        max_tokens=room if max_tokens is None else min(room, max_tokens),
                        ignore_eos=bool(body.get("ignore_eos")),
                        min_tokens=body.get("min_tokens") or 0,
                        salt=body.get("cache_salt"),
                        lora=self.lora,
                        choice=choice,
                    )
                    self.generations.append(stack.enter_context(generation))
            yield

    async def pieces(self) -> AsyncIterator[Piece]:
        """Text as it comes, of all sequences."""
        if len(self.generations) == 1:
            generation = self.generations[0]
            while not generation.done:
                texts = await generation.next_texts()
                yield Piece(0, texts, generation.answer.finish_reason if generation.done else None)
            return
        reading = {asyncio.ensure_future(g.next_texts()): i for i, g in enumerate(self.generations)}
        try:
            while reading:
                ready, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(ready, key=reading.__getitem__):
                    index = reading.pop(task)
                    generation = self.generations[index]
                    reason = generation.answer.finish_reason if generation.done else None
                    yield Piece(index, task.result(), reason)
                    if not generation.done:
                        reading[asyncio.ensure_future(generation.next_texts())] = index
        finally:
            for task in reading:
                task.cancel()

    async def texts(self) -> list[str]:
        """Each sequence's whole text."""
        return [await generation.whole_text() for generation in self.generations]

    @property
    def usage(self) -> Usage:
        """Tokens so far; a prompt counts once, however many choices it has."""
        firsts = self.generations[:: self._choices]
        size = self.replica.spec.block_size
        return Usage(
            prompt_tokens=sum(g.prompt_tokens for g in firsts),
            completion_tokens=sum(g.produced for g in self.generations),
            cached_tokens=sum(g.cached_tokens for g in firsts),
            created_tokens=sum(g.prompt_tokens // size * size - g.cached_tokens for g in firsts),
        )


_TYPES: Sequence[tuple[str, str, type | tuple[type, ...]]] = (
    ("temperature", "number", (int, float)),
    ("top_p", "number", (int, float)),
    ("max_tokens", "integer", int),
    ("max_completion_tokens", "integer", int),
    ("min_tokens", "integer", int),
    ("n", "integer", int),
    ("cache_salt", "string", str),
    ("stream_options", "dictionary", dict),
)


def _rank(replica: Replica, request: web.Request) -> Replica:
    """The data-parallel rank that a request is for; what is no number is ignored, as by vLLM."""
    named = request.headers.get("X-data-parallel-rank", "")
    rank = int(named) if named.isascii() and named.isdecimal() else None
    if rank is not None and rank >= len(replica.ranks):
        raise errors.rank_out_of_range(rank, len(replica.ranks))
    return replica.at(rank)


def _as_ids(numbers: list[Any], name: str) -> "array[int]":
    try:
        return array("I", numbers)
    except (TypeError, OverflowError) as error:
        raise errors.wrong_type(name, "list", numbers) from error
