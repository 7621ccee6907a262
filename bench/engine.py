"""Simulated replicas over HTTP: `python -m bench engine --port 8101`.

Each is an OpenAI-compatible server that speaks vLLM's dialect over an `EngineModel` in real time: a real
block cache, continuous batching, queueing, cached tokens in its usage. It computes nothing: its text is words
drawn under a seed, its speed is its profile's. Several share one process, so that a fleet fits on two cores.

For loopback only; it has no defence against a hostile client.
"""

import argparse
import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
import zmq.asyncio

from bench.engine_events import DIALECTS
from bench.engine_feed import BUFFER_STEPS, Faults
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.engine_publisher import EventOptions
from bench.engine_replica import Identity
from bench.engine_running import RunningReplica
from bench.llama_server import serve_llama
from bench.profiles import PROFILES, EngineSpec, profile

__all__ = ["EventOptions", "RunningReplica", "serve"]


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
    adapters: Sequence[str] = (),
    events: EventOptions | None = None,
    ranks: int = 1,
) -> AsyncIterator[list[RunningReplica]]:
    """One replica a port on the running loop, until the block is left; port 0 is a free one.

    `events` makes them publish KV events; a port in it is the first replica's, the next has the next. `ranks`
    are data-parallel, of each: each takes ports of its own for its events.
    """
    limit = min(max_model_len or 32768, spec.blocks * spec.block_size)
    identity = Identity(model, limit, seed, report_cached, tuple(adapters))
    prompt = EnginePrompt(tokenizer)
    async with AsyncExitStack() as stack:
        context = None
        if events is not None:
            context = zmq.asyncio.Context()
            stack.callback(context.term)
        running: list[RunningReplica] = []
        for number, port in enumerate(ports):
            theirs = events and replace(
                events,
                port=events.port and events.port + number * ranks,
                replay_port=events.replay_port and events.replay_port + number * ranks,
            )
            one = RunningReplica(
                *(spec, prompt, identity), host=host, port=port, events=theirs, context=context, ranks=ranks
            )
            stack.push_async_callback(one.close)
            await one.start()
            running.append(one)
        yield running


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
    options.add_argument("--ranks", type=int, default=1, help="data-parallel ranks, each with its own cache")
    options.add_argument("--model", default="simulated", help="the served model's name")
    options.add_argument("--adapters", help="LoRA adapters that are served too: one,two")
    options.add_argument("--max-model-len", type=int)
    options.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a directory")
    options.add_argument(
        "--no-cached-tokens", action="store_true", help="leave them out of usage (vLLM's default)"
    )
    options.add_argument("--seed", type=int, default=0, help="decides every answer's text and length")
    options.add_argument("--engine", choices=("vllm", "llama_cpp"), default="vllm", help="whose dialect")
    slots = options.add_argument_group("llama_cpp")
    slots.add_argument("--slots", type=int, default=4, help="prompts held and computed at once")
    slots.add_argument("--slot-tokens", type=int, default=8192, help="context of a slot")
    slots.add_argument("--aside-tokens", type=int, default=0, help="of its cache in memory; 0: none")
    events = options.add_argument_group("KV events")
    events.add_argument("--kv-events", choices=DIALECTS, help="publish them as this engine does")
    events.add_argument("--kv-events-port", type=int, default=0, help="of the first replica; 0: free ones")
    events.add_argument("--kv-replay-port", type=int, default=0, help="likewise")
    events.add_argument("--kv-events-buffer", type=int, default=BUFFER_STEPS, help="batches kept for replay")
    events.add_argument("--kv-events-bytes", action="store_true", help="hashes of 32 bytes (vLLM only)")
    events.add_argument("--kv-events-faults", type=_faults, help='JSON: {"lose_every": 10}')
    return options


def _faults(text: str) -> Faults:
    faults = Faults()
    try:
        faults.set(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return faults


def events_from(arguments: argparse.Namespace) -> EventOptions | None:
    """The events that the command line asks for."""
    if arguments.kv_events is None:
        return None
    return EventOptions(
        dialect=arguments.kv_events,
        bytes_hashes=arguments.kv_events_bytes,
        port=arguments.kv_events_port,
        replay_port=arguments.kv_replay_port,
        buffer_steps=arguments.kv_events_buffer,
        faults=arguments.kv_events_faults,
    )


async def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    ports = [int(port) for port in arguments.ports.split(",")] if arguments.ports else [arguments.port]
    spec = spec_from(arguments)
    if arguments.engine == "llama_cpp":
        async with serve_llama(
            spec,
            ports=ports,
            host=arguments.host,
            model=arguments.model,
            tokenizer=arguments.tokenizer.resolve(),
            slots=arguments.slots,
            slot_tokens=arguments.slot_tokens,
            aside=arguments.aside_tokens,
        ) as servers:
            for server in servers:
                print(f"simulated llama.cpp server, {arguments.slots} slots, on {server.url}", flush=True)
            print(f"ready (pid {os.getpid()})", flush=True)
            await stop.wait()
        return
    async with serve(
        spec,
        ports=ports,
        host=arguments.host,
        model=arguments.model,
        tokenizer=arguments.tokenizer.resolve(),
        seed=arguments.seed,
        max_model_len=arguments.max_model_len,
        report_cached=not arguments.no_cached_tokens,
        adapters=arguments.adapters.split(",") if arguments.adapters else (),
        events=events_from(arguments),
        ranks=arguments.ranks,
    ) as running:
        for one in running:
            print(
                f"simulated replica ({spec.name}, {spec.blocks} blocks of {spec.block_size}) on {one.url}",
                flush=True,
            )
            if (events := one.describe_events()) is not None:
                print("its KV events ({dialect}): live {live}, replay {replay}".format(**events), flush=True)
        print(f"ready (pid {os.getpid()})", flush=True)
        await stop.wait()


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    uvloop.run(run(parser().parse_args(argv)))
    return 0
