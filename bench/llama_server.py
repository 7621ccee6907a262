"""Simulated llama.cpp servers: `python -m bench engine --engine llama_cpp --port 8101`.

Each speaks the dialect of llama-server (build 10434) as far as routers and clients look at it, over slots
that hold one prompt each. It computes nothing: its text is words drawn by the prompt, its speed its
profile's. One prompt is computed at a time; requests for which no slot is free wait in line.

For loopback only; it has no defence against a hostile client.
"""

import asyncio
import json
from array import array
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from time import monotonic, time
from typing import Any

import msgspec
from aiohttp import web

from bench.engine_prompt import TOKENIZER, EnginePrompt, PromptError
from bench.llama_answer import FINGERPRINT, Answer
from bench.llama_slots import Slot, SlotCache
from bench.profiles import EngineSpec

DEFAULT_TOKENS = 128


class Refused(Exception):
    """An answer that is none; raised with the message, the status and llama.cpp's name of it."""

    def __init__(self, message: str, status: int = 400, type_: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.message, self.status, self.type = message, status, type_

    def response(self) -> web.Response:
        """As llama.cpp's server answers it."""
        return _json(
            {"error": {"code": self.status, "message": self.message, "type": self.type}}, self.status
        )


class LlamaServer:
    """One server on one port."""

    def __init__(
        self, spec: EngineSpec, prompt: EnginePrompt, *, model: str, slots: int, slot_tokens: int, aside: int
    ) -> None:
        self.cache = SlotCache(slots, aside_tokens=aside)
        self.url = ""
        self._spec = spec
        self._prompt = prompt
        self._model = model
        self._slot_tokens = slot_tokens
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._prefill = asyncio.Lock()
        self._counted = {"prompt": 0, "cached": 0, "predicted": 0}

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(middlewares=[self._named])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/props", self._props),
                web.get("/slots", self._slots),
                web.get("/metrics", self._metrics),
                web.post("/tokenize", self._tokenize),
                web.post("/apply-template", self._apply_template),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
            ]
        )
        return app

    @web.middleware
    async def _named(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except Refused as error:
            response = error.response()
        except web.HTTPNotFound:
            response = Refused("File Not Found", 404, "not_found_error").response()
        if not response.prepared:
            response.headers["Server"] = "llama.cpp"
        return response

    # ---- what it tells of itself ---------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        meta = {"n_ctx": self._slot_tokens}
        card = {
            "id": self._model,
            "aliases": [self._model],
            "object": "model",
            "created": int(time()),
            "owned_by": "llamacpp",
            "meta": meta,
        }
        return _json({"object": "list", "data": [card]})

    async def _props(self, _: web.Request) -> web.Response:
        settings = {"n_ctx": self._slot_tokens}
        return _json(
            {
                "default_generation_settings": settings,
                "total_slots": len(self.cache.slots),
                "model_alias": self._model,
                "build_info": FINGERPRINT,
                "is_sleeping": False,
            }
        )

    async def _slots(self, _: web.Request) -> web.Response:
        return _json(
            [
                {
                    "id": slot.number,
                    "n_ctx": self._slot_tokens,
                    "is_processing": slot.busy,
                    "n_prompt_tokens": slot.prompt,
                    "n_prompt_tokens_cache": slot.cached,
                }
                for slot in self.cache.slots
            ]
        )

    async def _metrics(self, _: web.Request) -> web.Response:
        busy = sum(slot.busy for slot in self.cache.slots)
        values = {
            "prompt_tokens_total": self._counted["prompt"],
            "prompt_tokens_cached_total": self._counted["cached"],
            "tokens_predicted_total": self._counted["predicted"],
            "requests_processing": busy,
            "requests_deferred": len(self._waiting),
        }
        return web.Response(text="".join(f"llamacpp:{name} {value}\n" for name, value in values.items()))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await _body(request)
        return _json({"tokens": list(self._encode(body.get("content", "")))})

    async def _apply_template(self, request: web.Request) -> web.Response:
        return _json({"prompt": self._render(await _body(request))})

    # ---- completions ---------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        tokens = self._encode(self._render(body))
        return await self._complete(request, body, tokens, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        if "prompt" not in body:
            raise Refused("[json.exception.out_of_range.403] key 'prompt' not found")
        prompt = body["prompt"]
        tokens = array("I", prompt) if isinstance(prompt, list) else self._encode(prompt)
        return await self._complete(request, body, tokens, chat=False)

    def _render(self, body: dict[str, Any]) -> str:
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise Refused(
                "'messages' is required" if messages is None else "Expected 'messages' to be an array"
            )
        try:
            return self._prompt.render(messages, body)
        except PromptError as error:
            raise Refused(str(error)) from error

    def _encode(self, text: Any) -> "array[int]":
        try:
            return self._prompt.encode(text)
        except (PromptError, TypeError) as error:
            raise Refused(str(error)) from error

    async def _complete(
        self, request: web.Request, body: dict[str, Any], tokens: "array[int]", *, chat: bool
    ) -> web.StreamResponse:
        if len(tokens) >= self._slot_tokens:
            raise Refused(
                f"request ({len(tokens)} tokens) exceeds the available context size "
                f"({self._slot_tokens} tokens), try increasing it",
                type_="exceed_context_size_error",
            )
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_TOKENS
        words = Random(repr(tokens[-32:])).choices(
            self._prompt.words, k=min(limit, self._slot_tokens - len(tokens))
        )
        answer = Answer(self._model, chat=chat, prompt=len(tokens), words=[text for text, _ in words])
        slot = await self._seat(tokens)
        done = array("I")
        response: web.StreamResponse | None = None
        try:
            answer.cached = slot.cached
            begun = monotonic()
            async with self._prefill:
                await asyncio.sleep(
                    self._spec.base_latency_s + (len(tokens) - slot.cached) / self._spec.prefill_tokens_per_s
                )
            answer.prompt_ms = 1000 * (monotonic() - begun)
            done = tokens[:]
            if body.get("stream"):
                response = web.StreamResponse(
                    headers={"Content-Type": "text/event-stream", "Server": "llama.cpp"}
                )
                await response.prepare(request)
                await response.write(answer.opening())
            for number, (text, token) in enumerate(words):
                await asyncio.sleep(self._spec.step_s if number else 0)
                done.append(token)
                if response is not None:
                    await response.write(answer.piece(text))
        finally:
            self.cache.leave(
                slot, done[:-1] if len(done) > len(tokens) else done or slot.tokens[: slot.cached]
            )
            self._next()
        self._counted["prompt"] += len(tokens) - answer.cached
        self._counted["cached"] += answer.cached
        self._counted["predicted"] += len(words)
        if response is None:
            return _json(answer.whole())
        asked = (body.get("stream_options") or {}).get("include_usage")
        await response.write(answer.ending(usage=bool(asked)))
        await response.write_eof()
        return response

    async def _seat(self, tokens: "array[int]") -> Slot:
        while (slot := self.cache.take(tokens)) is None:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
        return slot

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


@asynccontextmanager
async def serve_llama(
    spec: EngineSpec,
    *,
    ports: Sequence[int] = (0,),
    host: str = "127.0.0.1",
    model: str = "simulated",
    tokenizer: Path = TOKENIZER,
    slots: int = 4,
    slot_tokens: int = 8192,
    aside: int = 0,
) -> AsyncIterator[list[LlamaServer]]:
    """One server a port on the running loop, until the block is left; port 0 is a free one."""
    prompt = EnginePrompt(tokenizer)
    running: list[LlamaServer] = []
    runners: list[web.AppRunner] = []
    try:
        for port in ports:
            one = LlamaServer(spec, prompt, model=model, slots=slots, slot_tokens=slot_tokens, aside=aside)
            runner = web.AppRunner(
                one.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
            )
            runners.append(runner)
            await runner.setup()
            site = web.TCPSite(runner, host, port)
            await site.start()
            one.url = f"http://{host}:{runner.addresses[0][1]}"
            running.append(one)
        yield running
    finally:
        for runner in runners:
            await runner.cleanup()


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise Refused(
            f"[json.exception.parse_error.101] parse error: {error}", 500, "server_error"
        ) from error
    if not isinstance(body, dict):
        raise Refused("the body is no object")
    return body


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content),
        status=status,
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
