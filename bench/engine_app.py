"""The HTTP face of one simulated replica: its routes, and what it tells of itself."""

from array import array
from collections.abc import Awaitable, Callable

from aiohttp import web

from bench import engine_errors as errors
from bench.engine_call import Call
from bench.engine_dialects import Dialects
from bench.engine_errors import ApiError, json_response
from bench.engine_http import OpenAi
from bench.engine_metrics import exposition
from bench.engine_replica import Replica

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_BODY = 64 * 1024 * 1024


@web.middleware
async def _vllm_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return error.response()
    except web.HTTPException as error:
        response = json_response({"detail": error.reason}, error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response


async def _sign(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "warmroute-bench (simulated)"


def application(replica: Replica) -> web.Application:
    """The HTTP face of one replica."""
    openai, dialects, engine = OpenAi(replica), Dialects(replica), _Engine(replica)
    app = web.Application(middlewares=[_vllm_errors], client_max_size=MAX_BODY)
    app.on_response_prepare.append(_sign)
    app.add_routes(
        [
            web.post("/v1/chat/completions", openai.chat),
            web.post("/v1/completions", openai.completions),
            web.post("/v1/responses", dialects.responses),
            web.post("/v1/messages", dialects.messages),
            web.post("/generate", dialects.generate),
            web.post("/v1/embeddings", dialects.embeddings),
            web.post("/v1/rerank", dialects.rerank),
            web.get("/v1/models", engine.models),
            web.get("/health", engine.health),
            web.get("/ping", engine.health),
            web.get("/version", engine.version),
            web.get("/load", engine.load),
            web.get("/metrics", engine.metrics),
            web.post("/tokenize", engine.tokenize),
            web.post("/detokenize", engine.detokenize),
            web.post("/reset_prefix_cache", engine.reset_prefix_cache),
        ]
    )
    if replica.publisher is not None and replica.publisher.sglang:
        app.add_routes(
            [
                web.get("/server_info", engine.server_info),
                web.get("/get_server_info", engine.server_info),
                web.post("/flush_cache", engine.flush_cache),
            ]
        )
    elif replica.publisher is not None:
        app.router.add_get("/kv_event_sources", engine.kv_event_sources)
    return app


class _Engine:
    """What a replica tells about itself."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return json_response({"version": "0.32.0+simulated"})

    async def load(self, _request: web.Request) -> web.Response:
        return json_response({"server_load": sum(rank.in_flight for rank in self._replica.ranks)})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=exposition(self._replica))

    async def models(self, _request: web.Request) -> web.Response:
        identity, publisher = self._replica.identity, self._replica.publisher
        model = {
            "id": identity.model,
            "object": "model",
            "created": int(self._replica.started),
            "owned_by": "sglang" if publisher is not None and publisher.sglang else "vllm",
            "root": str(self._replica.prompt.directory),
            "parent": None,
            "max_model_len": identity.max_model_len,
        }
        adapters = [
            {**model, "id": name, "parent": identity.model, "max_model_len": None}
            for name in identity.adapters
        ]
        return json_response({"object": "list", "data": [model, *adapters]})

    async def tokenize(self, request: web.Request) -> web.Response:
        call = await Call.read(self._replica, request)
        if "messages" in call.body:
            ids = call.chat_ids(call.body["messages"], call.body)
        else:
            ids = call.prompt_ids(call.require("prompt"))[0]
        strings = None
        if call.body.get("return_token_strs"):
            strings = [self._replica.prompt.tokenizer.id_to_token(number) for number in ids]
        limit = self._replica.identity.max_model_len
        content = {"count": len(ids), "max_model_len": limit, "tokens": list(ids), "token_strs": strings}
        return json_response(content)

    async def detokenize(self, request: web.Request) -> web.Response:
        call = await Call.read(self._replica, request)
        tokens = call.require("tokens")
        try:
            return json_response({"prompt": self._replica.prompt.decode(array("I", tokens))})
        except (TypeError, OverflowError) as error:
            raise errors.wrong_type("tokens", "list", tokens) from error

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return json_response({"success": self._reset()})

    def _reset(self) -> bool:
        """Of all ranks: one that is busy keeps its cache, as does the engine's word that all is done."""
        return all([rank.reset_cache() for rank in self._replica.ranks])  # noqa: C419 - each is asked

    async def kv_event_sources(self, _request: web.Request) -> web.Response:
        """Where each data-parallel rank publishes, as vLLM tells."""
        publishers = [rank.publisher for rank in self._replica.ranks if rank.publisher is not None]
        return json_response({str(rank): each.config() for rank, each in enumerate(publishers)})

    async def server_info(self, _request: web.Request) -> web.Response:
        """The part of SGLang's that a router reads."""
        replica = self._replica
        assert replica.publisher is not None
        root = str(replica.prompt.directory)
        content = {
            "model_path": root,
            "tokenizer_path": root,
            "served_model_name": replica.identity.model,
            "page_size": replica.spec.block_size,
            "max_total_num_tokens": replica.spec.blocks * replica.spec.block_size,
            "max_running_requests": replica.spec.max_seqs,
            "dp_size": len(replica.ranks),
            "version": "0.5.23+simulated",
            **replica.publisher.sglang_fields(len(replica.ranks)),
        }
        return json_response(content)

    async def flush_cache(self, _request: web.Request) -> web.Response:
        """SGLang's name for /reset_prefix_cache."""
        done = self._reset()
        return web.Response(text="Cache flushed.\n" if done else "Busy.\n", status=200 if done else 400)
