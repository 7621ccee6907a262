"""Load over HTTP, and an account of what came of it.

    python -m bench load --url http://127.0.0.1:8080 --engines A,B --workload mixed --rate 8 --duration 60

Against any OpenAI-compatible URL: this proxy, another router, a bare engine; several --url take turns, which
is round robin without a router. Open loop unless --concurrency is given: requests go out when they are due,
whether or not earlier ones were answered, and every latency counts from the time a request was *due*. What is
sent is a workload from a seed or a published trace; see --workload and --trace.

Writes to --out: result.json, requests.jsonl (a line a request, written as they end), summary.md, report.html
(needs nothing else), *.png. Exit status 1 if a request failed or if random prompts hit the cache, 2 if there
is nothing to send, 130 after Ctrl-C, which keeps what was measured.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp
import uvloop
from rich.console import Console

from bench import endpoint, fleet, report, traffic
from bench.account import RANDOM_HIT_LIMIT, Slo
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.lifecycle import Target, carry_out
from bench.load_files import command_line, content, line, save, tell
from bench.plan import Planned, ceilings, prepare
from bench.record import Record, hit_rate
from bench.sending import send
from bench.traffic import Traffic

__all__ = ["RANDOM_HIT_LIMIT", "Measured", "Record", "failed", "main", "measure", "send"]

OUT = Path("bench/out/load")


@dataclass(frozen=True, slots=True)
class Measured:
    """A window's records, with what they are compared with."""

    records: list[Record]
    ceilings: dict[str, float]
    seconds: float


async def measure(
    plan: Sequence[Planned],
    warm_up: Sequence[Planned],
    *,
    urls: Sequence[str],
    engines: Sequence[fleet.EngineFacts],
    stop: asyncio.Event | None = None,
    on_record: Callable[[Record], None] = lambda _record: None,
) -> Measured:
    """Warm up, make everything cold, send the plan: the short form, for commands that know their engines."""
    proxy = urls[0] if len(urls) == 1 else None
    names = [engine.url for engine in engines]
    if warm_up:
        await send(warm_up, urls, stop=stop)
    async with aiohttp.ClientSession() as session:
        await fleet.wait_until_idle(session, names)
        await fleet.make_cold(session, names, proxy)
    began = monotonic()
    records = await send(plan, urls, stop=stop, on_record=on_record)
    blocks, size = sum(engine.blocks for engine in engines), engines[0].block_size
    return Measured(records, ceilings(plan, blocks=blocks, block_size=size), monotonic() - began)


def failed(records: Sequence[Record]) -> list[str]:
    """Why a run does not count; empty if it does."""
    reasons = []
    if errors := [record.error for record in records if record.error is not None]:
        reasons.append(f"{len(errors)} of {len(records)} requests failed, the first with: {errors[0]}")
    rate = hit_rate([record for record in records if record.group == "random"])
    if rate is not None and rate > RANDOM_HIT_LIMIT:
        reasons.append(f"random prompts hit the cache ({rate:.1%}): something else shares it, or they do")
    return reasons


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench load`."""
    options = argparse.ArgumentParser(
        prog="python -m bench load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = options.add_argument_group("where")
    where.add_argument("--url", required=True, help="the proxy, or several that take turns: A,B,C")
    where.add_argument("--engines", help="the engines' URLs; default: those of --url")
    where.add_argument("--balance", choices=("turns", "random"), default="turns", help="among several --url")
    where.add_argument("--model", help="default: the first that the first engine names")
    where.add_argument("--tokenizer", type=Path, help="a directory; default: the engine's, or the bench's")
    where.add_argument("--api-key", help="sent as a bearer token; default: $OPENAI_API_KEY")
    where.add_argument(
        "--admin-token", help="of the proxy, to empty its index; default: $WARMROUTE_ADMIN_TOKEN"
    )
    traffic.add_options(options)
    how = options.add_argument_group("how")
    how.add_argument("--concurrency", type=int, help="closed loop: so many requests at a time")
    how.add_argument("--requests", type=int, help="so many, instead of --duration")
    how.add_argument("--duration", type=float, default=30.0, help="seconds that are measured")
    how.add_argument("--warm-up", type=float, default=5.0, help="seconds before them, with other prompts")
    how.add_argument("--cool-down", type=float, default=0.0, help="seconds that traffic goes on after them")
    how.add_argument("--prime", action="store_true", help="send each shared prefix once before")
    how.add_argument("--keep", action="store_true", help="do not empty caches and index before")
    how.add_argument("--timeout", type=float, default=300.0, help="seconds for one request")
    how.add_argument("--slo-ttft", type=float, default=Slo().ttft, help="seconds; for goodput")
    how.add_argument("--slo-tpot", type=float, default=Slo().tpot, help="seconds; for goodput")
    how.add_argument("--policy", default="direct", help="what to call this run in the result")
    how.add_argument("--out", type=Path, default=OUT, help="a folder")
    return options


@dataclass(frozen=True, slots=True)
class Plans:
    """Everything that a run will send."""

    window: list[Planned]
    warm_up: list[Planned]
    cool_down: list[Planned]
    left_out: int
    """Requests that do not fit into a replica's cache."""


def plans(
    wanted: Traffic, arguments: argparse.Namespace, prompt: EnginePrompt, target: Target, model: str
) -> Plans:
    """Render all of it. Raises ValueError if there is nothing to send, TraceError for a bad trace."""
    size = target.block_size
    room = min((e.blocks * size for e in target.engines if e.blocks), default=None)

    def fit(planned: Planned) -> bool:
        return room is None or planned.prompt_tokens + planned.output_tokens + size <= room

    def rendered(seconds: float | None, seed: str = "") -> list[Planned]:
        return prepare(wanted.plan(seconds, seed=seed), prompt, model=model, block_size=size)

    if arguments.requests:
        everything = rendered(None)
        window, after = everything[: arguments.requests], everything[arguments.requests :]
    else:
        everything = rendered(arguments.duration + arguments.cool_down)
        window = [planned for planned in everything if planned.due <= arguments.duration]
        after = everything[len(window) :]
    kept = [planned for planned in window if fit(planned)]
    if not kept:
        raise ValueError("nothing to send: no request is due in time and fits into a replica's cache")
    before = rendered(arguments.warm_up, "warm-up") if arguments.warm_up else []
    before, after = ([p for p in one if fit(p)] for one in (before, after))
    return Plans(kept, before, after, len(window) - len(kept))


async def found(arguments: argparse.Namespace) -> Target:
    """Who is there."""
    urls = [url.rstrip("/") for url in arguments.url.split(",")]
    names = [url.rstrip("/") for url in arguments.engines.split(",")] if arguments.engines else urls
    async with aiohttp.ClientSession() as session:
        engines = [await endpoint.look(session, url, arguments.model) for url in names]
    key = arguments.api_key or os.environ.get("OPENAI_API_KEY")
    return Target(
        urls,
        engines,
        proxy=urls[0] if len(urls) == 1 and arguments.engines else None,
        admin_token=arguments.admin_token or os.environ.get("WARMROUTE_ADMIN_TOKEN"),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        balance=arguments.balance,
    )


async def run(arguments: argparse.Namespace, command: str) -> int:
    """Measure and report."""
    console = Console()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    wanted = traffic.from_arguments(
        arguments,
        requests=(arguments.requests or 0) + round(arguments.rate * arguments.cool_down),
        duration=None if arguments.requests else arguments.duration,
    )
    target = await found(arguments)
    first = target.engines[0]
    prompt = EnginePrompt(arguments.tokenizer or first.tokenizer or TOKENIZER)
    planned = plans(wanted, arguments, prompt, target, first.model or "")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (
        report.progress(console, "measuring", len(planned.window)) as advance,
        (arguments.out / "requests.jsonl").open("w") as lines,
    ):

        def keep(record: Record) -> None:
            lines.write(line(record))
            lines.flush()  # what was measured stays, however the run ends
            advance()

        window = await carry_out(
            planned.window,
            target,
            warm_up=planned.warm_up,
            cool_down=planned.cool_down,
            prime=arguments.prime,
            cold=not arguments.keep,
            concurrency=arguments.concurrency,
            timeout=arguments.timeout,
            seed=f"{arguments.seed}",
            stop=stop,
            on_record=keep,
        )
    if planned.left_out:
        window.notes.append(f"{planned.left_out} requests were left out: longer than a replica's cache")
    result = content(arguments, wanted, target, window, command)
    for path in save(result, window.records, arguments.out):
        console.print(f"wrote {path}", highlight=False)
    tell(console, result)
    if stop.is_set():
        console.print(f"stopped after {len(window.records)} of {len(planned.window)} requests")
        return 130
    return 1 if result["runs"][0]["problems"] else 0


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    try:
        return uvloop.run(run(arguments, command_line("load", argv)))
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        print(f"bench load: {error}", file=sys.stderr)
        return 2
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
