"""OpenAI's chat and completions endpoints on a simulated replica, in vLLM 0.32's shapes byte for byte.

Chunks are put together from strings, since a replica must cost the machine less than the proxy it stands
behind: only the text of a token goes through the JSON encoder.
"""

import time
from typing import Any

import msgspec
from aiohttp import web

from bench.engine_call import Call
from bench.engine_errors import json_response
from bench.engine_replica import Replica

FINGERPRINT = "vllm-0.32.0-simulated"
EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


def encode(value: Any) -> str:
    """JSON text without blanks."""
    return msgspec.json.encode(value).decode()


def usage_json(call: Call, *, chat: bool, stream: bool) -> dict[str, Any]:
    """Usage as vLLM has it; which details it has differs between its endpoints."""
    usage = call.usage
    out: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    details: dict[str, Any] | None = None
    if call.identity.report_cached:
        details = {"cached_tokens": usage.cached_tokens}
        if chat or not stream:
            details["created_cache_tokens"] = usage.created_tokens if chat else None
        if not stream:
            details["multimodal_tokens"] = None
    if details is not None or not stream:
        out["prompt_tokens_details"] = details
    if not stream:
        out["completion_tokens_details"] = None
    return out


def _running_usage(prompt_tokens: int, sent: int) -> str:
    return (
        f',"usage":{{"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens + sent},'
        f'"completion_tokens":{sent},"completion_tokens_details":null}}'
    )


class OpenAi:
    """/v1/chat/completions and /v1/completions."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        call = await Call.read(self._replica, request)
        ids = call.chat_ids(call.require("messages"), call.body)
        name = "max_completion_tokens" if call.body.get("max_completion_tokens") is not None else "max_tokens"
        with call.start([ids], max_tokens=call.body.get(name), name=name):
            if call.stream:
                return await self._stream(request, call, chat=True)
            texts = await call.texts()
            choices = [
                {
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": text,
                        "refusal": None,
                        "annotations": None,
                        "audio": None,
                        "function_call": None,
                        "reasoning": None,
                    },
                    "logprobs": None,
                    "finish_reason": call.generations[index].answer.finish_reason,
                    "stop_reason": None,
                    "token_ids": None,
                    "routed_experts": None,
                }
                for index, text in enumerate(texts)
            ]
            return self._whole(call, f"chatcmpl-{call.id}", "chat.completion", choices)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        call = await Call.read(self._replica, request)
        prompts = call.prompt_ids(call.require("prompt"))
        max_tokens = call.body.get("max_tokens")
        with call.start(prompts, max_tokens=16 if max_tokens is None else max_tokens):
            if call.stream:
                return await self._stream(request, call, chat=False)
            texts = await call.texts()
            choices = [
                {
                    "index": index,
                    "text": text,
                    "logprobs": None,
                    "finish_reason": call.generations[index].answer.finish_reason,
                    "stop_reason": None,
                    "token_ids": None,
                    "prompt_logprobs": None,
                    "prompt_token_ids": None,
                    "routed_experts": None,
                }
                for index, text in enumerate(texts)
            ]
            return self._whole(call, f"cmpl-{call.id}", "text_completion", choices)

    def _whole(self, call: Call, id_: str, object_: str, choices: list[dict[str, Any]]) -> web.Response:
        chat = object_ == "chat.completion"
        content: dict[str, Any] = {
            "id": id_,
            "object": object_,
            "created": int(time.time()),
            "model": call.model,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage_json(call, chat=chat, stream=False),
        }
        if chat:
            content |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
        content |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        return json_response(content)

    async def _stream(self, request: web.Request, call: Call, *, chat: bool) -> web.StreamResponse:
        options = call.body.get("stream_options") or {}
        running = bool(options.get("include_usage") and options.get("continuous_usage_stats"))
        id_ = f"chatcmpl-{call.id}" if chat else f"cmpl-{call.id}"
        object_ = "chat.completion.chunk" if chat else "text_completion"
        head = (
            f'data: {{"id":{encode(id_)},"object":"{object_}","created":{int(time.time())},'
            f'"model":{encode(call.model)},"choices":['
        )
        response = web.StreamResponse(headers=EVENT_STREAM)
        await response.prepare(request)
        opened: set[int] = set()
        prompt_tokens, sent = call.usage.prompt_tokens, 0
        async for piece in call.pieces():
            out = usage = ""
            if chat and piece.choice not in opened:
                opened.add(piece.choice)
                if running:
                    usage = _running_usage(prompt_tokens, sent)
                out = (
                    f'{head}{{"index":{piece.choice},"delta":{{"role":"assistant","content":""}},'
                    f'"logprobs":null,"finish_reason":null}}]{usage},'
                    f'"prompt_token_ids":null,"prompt_text":null}}\n\n'
                )
            last = len(piece.texts) - 1
            for position, text in enumerate(piece.texts):
                reason = piece.finish_reason if position == last else None
                token = _chat_token if chat else _text_token
                sent += 1
                if running:
                    usage = _running_usage(prompt_tokens, sent)
                out += f"{head}{token(piece.choice, text, reason)}]{usage}}}\n\n"
            await response.write(out.encode())
        tail = ""
        if options.get("include_usage"):
            usage = encode(usage_json(call, chat=chat, stream=True))
            tail = f'{head}],"usage":{usage},"system_fingerprint":"{FINGERPRINT}"}}\n\n'
        await response.write((tail + "data: [DONE]\n\n").encode())
        await response.write_eof()
        return response


def _chat_token(index: int, text: str, reason: str | None) -> str:
    end = f'"{reason}","stop_reason":null' if reason else "null"
    return (
        f'{{"index":{index},"delta":{{"content":{encode(text)}}},"logprobs":null,'
        f'"finish_reason":{end},"token_ids":null}}'
    )


def _text_token(index: int, text: str, reason: str | None) -> str:
    end = f'"{reason}"' if reason else "null"
    return (
        f'{{"index":{index},"text":{encode(text)},"logprobs":null,"finish_reason":{end},'
        f'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}}'
    )
