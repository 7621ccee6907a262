"""The other ways to ask a simulated replica: /v1/responses, /v1/messages, /generate, embeddings and rerank.

In simple form: the fields that decide a prompt are read, and answers have the fields that clients and proxies
look at. Cached tokens are where each dialect has them.
"""

from array import array
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from bench import engine_errors as errors
from bench.engine_call import Call
from bench.engine_errors import json_response
from bench.engine_http import EVENT_STREAM, encode
from bench.engine_replica import Replica


class Dialects:
    """Everything but chat and completions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    # ---- OpenAI responses -------------------------------------------------------------------------------

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        call = await Call.read(self._replica, request)
        given = call.require("input")
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if call.body.get("instructions"):
            messages = [{"role": "system", "content": call.body["instructions"]}, *messages]
        ids = call.chat_ids(messages, call.body)
        limit = call.body.get("max_output_tokens")
        with call.start([ids], max_tokens=limit, name="max_output_tokens"):
            if not call.stream:
                text = (await call.texts())[0]
                return json_response(self._response(call, "completed", text))
            response = await _open(request)
            created = {"type": "response.created", "response": self._response(call, "in_progress", "")}
            await response.write(_event("response.created", created))
            text = ""
            async for piece in call.pieces():
                delta = "".join(piece.texts)
                text += delta
                content = {"type": "response.output_text.delta", "delta": delta, "output_index": 0}
                await response.write(_event("response.output_text.delta", content))
            done = {"type": "response.completed", "response": self._response(call, "completed", text)}
            await response.write(_event("response.completed", done))
            await response.write_eof()
            return response

    def _response(self, call: Call, status: str, text: str) -> dict[str, Any]:
        usage = call.usage
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {
            "id": f"resp_{call.id}",
            "object": "response",
            "status": status,
            "model": call.model,
            "output": [{"type": "message", "role": "assistant", "status": status, "content": content}],
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens},
                "output_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }

    # ---- Anthropic messages -----------------------------------------------------------------------------

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages. Input tokens are those that neither came from the cache nor went into it."""
        call = await Call.read(self._replica, request)
        messages = call.require("messages")
        if call.body.get("system"):
            messages = [{"role": "system", "content": call.body["system"]}, *messages]
        ids = call.chat_ids(messages, call.body)
        with call.start([ids], max_tokens=call.require("max_tokens")):
            if not call.stream:
                text = (await call.texts())[0]
                content: dict[str, Any] = {
                    "id": f"chatcmpl-{call.id}",
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "text", "text": text}],
                    "model": call.model,
                    "stop_reason": _anthropic_reason(call),
                    "usage": _anthropic_usage(call),
                }
                return json_response(content)
            response = await _open(request)
            opened = False
            async for piece in call.pieces():
                out = b"" if opened else self._message_start(call)
                opened = True
                delta: dict[str, Any] = {"type": "text_delta", "text": "".join(piece.texts)}
                content = {"type": "content_block_delta", "index": 0, "delta": delta}
                await response.write(out + _event("content_block_delta", content))
            end = {
                "type": "message_delta",
                "delta": {"stop_reason": _anthropic_reason(call), "stop_sequence": None},
                "usage": _anthropic_usage(call),
            }
            await response.write(
                _event("content_block_stop", {"type": "content_block_stop", "index": 0})
                + _event("message_delta", end)
                + _event("message_stop", {"type": "message_stop"})
            )
            await response.write_eof()
            return response

    def _message_start(self, call: Call) -> bytes:
        message = {
            "id": f"chatcmpl-{call.id}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": call.model,
            "usage": {**_anthropic_usage(call), "output_tokens": 0},
        }
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return _event("message_start", {"type": "message_start", "message": message}) + _event(
            "content_block_start", block
        )

    # ---- SGLang -----------------------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """POST /generate, as SGLang has it: each event carries the whole text so far."""
        call = await Call.read(self._replica, request)
        if "input_ids" in call.body:
            prompts = call.prompt_ids(call.body["input_ids"], "input_ids")
        else:
            prompts = call.prompt_ids(call.require("text"), "text")
        sampling = call.body.get("sampling_params") or {}
        call.body.setdefault("ignore_eos", sampling.get("ignore_eos"))
        call.body.setdefault("n", sampling.get("n"))
        with call.start(prompts, max_tokens=sampling.get("max_new_tokens", 128), name="max_new_tokens"):
            if not call.stream:
                texts = await call.texts()
                contents = [self._generated(call, index, text) for index, text in enumerate(texts)]
                return json_response(contents[0] if len(contents) == 1 else contents)
            response = await _open(request)
            texts = [""] * len(call.generations)
            async for piece in call.pieces():
                texts[piece.choice] += "".join(piece.texts)
                content = self._generated(call, piece.choice, texts[piece.choice])
                await response.write(f"data: {encode(content)}\n\n".encode())
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
            return response

    def _generated(self, call: Call, index: int, text: str) -> dict[str, Any]:
        generation = call.generations[index]
        reason = {"type": generation.answer.finish_reason} if generation.done else None
        return {
            "text": text,
            "output_ids": list(generation.answer.ids[: generation.produced]),
            "meta_info": {
                "id": call.id,
                "finish_reason": reason,
                "prompt_tokens": generation.prompt_tokens,
                "completion_tokens": generation.produced,
                "cached_tokens": generation.cached_tokens,
            },
        }

    # ---- prompts without an answer ----------------------------------------------------------------------

    async def embeddings(self, request: web.Request) -> web.Response:
        """POST /v1/embeddings. The numbers mean nothing."""
        call = await Call.read(self._replica, request)
        prompts = call.prompt_ids(call.require("input"), "input")
        await self._read_only(call, prompts)
        entries = [
            {"index": index, "object": "embedding", "embedding": _direction(ids)}
            for index, ids in enumerate(prompts)
        ]
        content = {"id": f"embd-{call.id}", "object": "list", "data": entries, **_prompt_usage(call)}
        return json_response(content)

    async def rerank(self, request: web.Request) -> web.Response:
        """POST /v1/rerank. The scores mean nothing."""
        call = await Call.read(self._replica, request)
        query, documents = call.require("query"), call.require("documents")
        if not isinstance(query, str) or not isinstance(documents, list):
            raise errors.wrong_type("documents", "list", documents)
        texts = [d["text"] if isinstance(d, Mapping) else d for d in documents]
        prompts = [call.text_ids(f"{query}\n{text}") for text in texts]
        await self._read_only(call, prompts)
        scores = [_direction(ids)[0] for ids in prompts]
        results = [
            {"index": index, "document": {"text": texts[index]}, "relevance_score": scores[index]}
            for index in sorted(range(len(texts)), key=lambda index: -scores[index])
        ]
        return json_response({"id": f"rerank-{call.id}", "results": results, **_prompt_usage(call)})

    async def _read_only(self, call: Call, prompts: list["array[int]"]) -> None:
        call.body["ignore_eos"] = True
        with call.start(prompts, max_tokens=0):
            await call.texts()


def _event(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: {encode(content)}\n\n".encode()


async def _open(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers=EVENT_STREAM)
    await response.prepare(request)
    return response


def _anthropic_usage(call: Call) -> dict[str, int]:
    usage = call.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }


def _anthropic_reason(call: Call) -> str:
    return "max_tokens" if call.generations[0].answer.finish_reason == "length" else "end_turn"


def _prompt_usage(call: Call) -> dict[str, Any]:
    tokens = call.usage.prompt_tokens
    return {
        "model": call.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0},
    }


def _direction(ids: "array[int]") -> list[float]:
    total = float(sum(ids)) or 1.0
    return [sum(ids[start::8]) / total for start in range(8)]
