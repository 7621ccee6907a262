"""Simulated replicas over HTTP: `python -m bench engine --port 8101`.

Each is an OpenAI-compatible server that speaks vLLM's dialect over an `EngineModel` in real time: a real
block cache, continuous batching, queueing, cached tokens in its usage. It computes nothing: its text is words
drawn under a seed, its speed is its profile's. Several share one process, so that a fleet fits on two cores.

For loopback only; it has no defence against a hostile client.
"""

import argparse
import asyncio
import dataclasses
import os
import signal
import socket
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from bench import engine_errors as errors
from bench.engine_call import Call
from bench.engine_dialects import Dialects
from bench.engine_errors import ApiError, json_response
from bench.engine_http import OpenAi
from bench.engine_metrics import exposition
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.engine_replica import Identity, Replica
from bench.profiles import PROFILES, EngineSpec, profile

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
        return json_response({"server_load": self._replica.in_flight})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=exposition(self._replica))

    async def models(self, _request: web.Request) -> web.Response:
        identity = self._replica.identity
        model = {
            "id": identity.model,
            "object": "model",
            "created": int(self._replica.started),
            "owned_by": "vllm",
            "root": str(self._replica.prompt.directory),
            "parent": None,
            "max_model_len": identity.max_model_len,
        }
        return json_response({"object": "list", "data": [model]})

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
        return json_response({"success": self._replica.reset_cache()})


@dataclasses.dataclass(frozen=True, slots=True)
class RunningReplica:
    """A replica that listens."""

    url: str
    replica: Replica


@asynccontextmanager
async def serve(
    spec: EngineSpec,
    *,
    ports: Sequence[int] = (0,),
    host: str = "127.0.0.1",
    model: str = "simulated",
    tokenizer: Path = TOKENIZER,
    seed: int = 0,
    max_model_len: int | None = None,
    report_cached: bool = True,
) -> AsyncIterator[list[RunningReplica]]:
    """One replica a port on the running loop, until the block is left; port 0 is a free one."""
    limit = min(max_model_len or 32768, spec.blocks * spec.block_size)
    identity = Identity(model, limit, seed, report_cached)
    prompt = EnginePrompt(tokenizer)
    runners: list[web.AppRunner] = []
    running: list[RunningReplica] = []
    try:
        for port in ports:
            replica = Replica(spec, prompt, identity)
            runner = web.AppRunner(
                application(replica), access_log=None, handler_cancellation=True, shutdown_timeout=0.5
            )
            await runner.setup()
            runners.append(runner)
            listener = socket.create_server((host, port), backlog=1024, reuse_port=False)
            await web.SockSite(runner, listener).start()
            running.append(RunningReplica(f"http://{host}:{listener.getsockname()[1]}", replica))
        yield running
    finally:
        for runner in runners:
            await runner.cleanup()
        for one in running:
            one.replica.close()


def spec_from(arguments: argparse.Namespace) -> EngineSpec:
    """The profile that the command line names, with what it changes."""
    names = ("cache_tokens", "block_size", "max_seqs", "max_batched_tokens", "prefill_tokens_per_s")
    changes: dict[str, Any] = {n: v for n in names if (v := getattr(arguments, n)) is not None}
    return profile(arguments.profile, **changes)


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench engine`."""
    options = argparse.ArgumentParser(prog="python -m bench engine", description=__doc__)
    options.add_argument("--host", default="127.0.0.1")
    options.add_argument("--port", type=int, default=8101, help="0 takes a free one")
    options.add_argument("--ports", help="several replicas in this process: 8101,8102 (instead of --port)")
    options.add_argument("--profile", default="h100-8b", choices=sorted(PROFILES), help="whose speed")
    options.add_argument("--cache-tokens", type=int, help="room of the KV cache")
    options.add_argument("--block-size", type=int)
    options.add_argument("--max-seqs", type=int)
    options.add_argument("--max-batched-tokens", type=int)
    options.add_argument("--prefill-tokens-per-s", type=float)
    options.add_argument("--model", default="simulated", help="the served model's name")
    options.add_argument("--max-model-len", type=int)
    options.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a directory")
    options.add_argument(
        "--no-cached-tokens", action="store_true", help="leave them out of usage (vLLM's default)"
    )
    options.add_argument("--seed", type=int, default=0, help="decides every answer's text and length")
    return options


async def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ports = [int(port) for port in arguments.ports.split(",")] if arguments.ports else [arguments.port]
    spec = spec_from(arguments)
    async with serve(
        spec,
        ports=ports,
        host=arguments.host,
        model=arguments.model,
        tokenizer=arguments.tokenizer.resolve(),
        seed=arguments.seed,
        max_model_len=arguments.max_model_len,
        report_cached=not arguments.no_cached_tokens,
    ) as running:
        for one in running:
            print(
                f"simulated replica ({spec.name}, {spec.blocks} blocks of {spec.block_size}) on {one.url}",
                flush=True,
            )
        print(f"ready (pid {os.getpid()})", flush=True)
        await stop.wait()


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    uvloop.run(run(parser().parse_args(argv)))
    return 0
