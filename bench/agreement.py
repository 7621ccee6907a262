"""What the proxy foretells against what the engines report: `python -m bench agreement --engines A,B,C`.

The replicas are started beforehand. Mixed traffic (see `bench/mixed.py`), some requests at once and more
prompts than the caches hold, goes through a proxy that follows the replicas' events, and through another one
that does not. The prediction is the header that the proxy made up before it sent the request; it is compared
with the cached tokens in the same answer's usage. Requests count for which either is above zero.

Writes `index-agreement.json` and `.md` to --out. Exit status 1 if a request failed or fewer predictions than
`TARGET` says came true within one block.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console

from bench import fleet, processes, report
from bench.agreement_table import page
from bench.client import until
from bench.mixed import Mixed, Outcome, one_token_words

OUT = Path("bench/results")
LOGS = Path("bench/out/agreement")
TARGET = {True: 0.99, False: 0.90}
"""With events, and without."""
REQUESTS, CONCURRENCY = 500, 6
MODE = "warmroute_replica_index_mode"
WITHOUT_EVENTS = {"kv_events": "off"}


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one mode."""

    events: bool
    outcomes: list[Outcome]
    seconds: float


def summary(run: Run, block_size: int, cache_tokens: int) -> dict[str, Any]:
    """The figures of one mode. `cache_tokens`: of all replicas together."""
    good = [outcome for outcome in run.outcomes if outcome.error is None]
    known = [o for o in good if o.predicted is not None and o.reported is not None]
    kinds = sorted({outcome.kind for outcome in known})
    ways = {"stream": True, "whole": False}
    prompt = sum(outcome.prompt_tokens or 0 for outcome in good)
    cached = sum(outcome.reported or 0 for outcome in good)
    return {
        "events": run.events,
        "requests": len(run.outcomes),
        "errors": sorted({o.error for o in run.outcomes if o.error is not None}),
        "failed": len(run.outcomes) - len(good),
        "unknown": len(good) - len(known),
        "seconds": run.seconds,
        "all": agreement(known, block_size),
        "kinds": {kind: agreement([o for o in known if o.kind == kind], block_size) for kind in kinds},
        "ways": {
            name: agreement([o for o in known if o.stream == stream], block_size)
            for name, stream in ways.items()
        },
        "hit_rate": cached / prompt if prompt else None,
        "counted_wrong": sum(outcome.counted != outcome.prompt_tokens for outcome in good),
        "turnover": (prompt - cached) / cache_tokens,
        "largest": _largest(known, block_size),
    }


def agreement(outcomes: Sequence[Outcome], block_size: int) -> dict[str, Any]:
    """How many predictions came true within a block, of those where anything was foretold or found."""
    pairs = [(o.predicted or 0, o.reported or 0) for o in outcomes if o.predicted or o.reported]
    over = sum(predicted > reported + block_size for predicted, reported in pairs)
    under = sum(reported > predicted + block_size for predicted, reported in pairs)
    return {
        "considered": len(pairs),
        "equal": len(pairs) - over - under,
        "over": over,
        "under": under,
        "share": (len(pairs) - over - under) / len(pairs) if pairs else None,
        "exactly": sum(predicted == reported for predicted, reported in pairs),
    }


def _largest(outcomes: Sequence[Outcome], block_size: int) -> list[dict[str, Any]]:
    """The ten predictions that were farthest off, if by more than a block."""
    wrong = [o for o in outcomes if abs((o.predicted or 0) - (o.reported or 0)) > block_size]
    wrong.sort(key=lambda o: -abs((o.predicted or 0) - (o.reported or 0)))
    names = ("kind", "stream", "replica", "decision", "predicted", "reported", "prompt_tokens")
    return [{name: getattr(outcome, name) for name in names} for outcome in wrong[:10]]


async def measure(
    urls: Sequence[str],
    *,
    events: bool,
    requests: int = REQUESTS,
    concurrency: int = CONCURRENCY,
    seed: str = "agreement",
    logs: Path = LOGS,
    console: Console | None = None,
) -> Run:
    """Send mixed traffic through a proxy of its own, in front of emptied replicas."""
    log = logs / f"proxy-{'events' if events else 'learned'}.log"
    mode = "events" if events else "learned"
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        first = await fleet.facts(session, urls[0])
        allowed = await one_token_words(session, urls[0], first.model)
        await fleet.wait_until_idle(session, urls)
        await fleet.make_cold(session, urls, None)
        proxy = await stack.enter_async_context(
            processes.proxy(
                urls,
                "prefix_cost",
                log,
                # Replicas leave a thread little time on few cores: what is tried is what is foretold.
                arguments=["--redis-url", "none", "--tokenizer-budget-ms", "2000"],
                of_each={} if events else WITHOUT_EVENTS,
            )
        )
        (url,) = proxy.urls
        mixed = Mixed(first.model, seed, allowed=allowed)
        # vLLM tells that a cache was emptied with the next thing that it has to tell.
        await _touch(session, urls, first.model)
        await until(lambda: _all_in(session, url, mode), timeout=30.0, what=f"not every replica is {mode}")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with report.progress(console or Console(quiet=True), f"{mode:<8}", requests) as advance:
            outcomes = await mixed.run(url, requests, concurrency, lambda _outcome: advance())
        return Run(events, outcomes, loop.time() - began)


async def _touch(session: aiohttp.ClientSession, urls: Sequence[str], model: str) -> None:
    """Have each replica compute a few blocks, so that it publishes something."""
    for url in urls:
        body = {"model": model, "prompt": list(range(300, 700)), "max_tokens": 1}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{url}: {response.status} {await response.text()}")


async def _all_in(session: aiohttp.ClientSession, url: str, mode: str) -> bool:
    found = [labels["mode"] for labels, value in await fleet.samples(session, url, MODE) if value]
    return bool(found) and set(found) == {mode}


def reasons(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Why it does not count, or what was missed."""
    found = []
    for one in figures:
        how = "with events" if one["events"] else "without events"
        if one["failed"]:
            found.append(f"{how}: {one['failed']} requests failed: {one['errors'][:3]}")
        share, least = one["all"]["share"], TARGET[one["events"]]
        if share is None or share < least:
            found.append(f"{how}: {share or 0:.1%} came true within a block, below {least:.0%}")
    return found


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench agreement`."""
    options = argparse.ArgumentParser(prog="python -m bench agreement", description=__doc__)
    options.add_argument("--engines", required=True, help="URLs of running replicas: A,B,C")
    options.add_argument("--requests", type=int, default=REQUESTS)
    options.add_argument("--concurrency", type=int, default=CONCURRENCY)
    options.add_argument("--kv-events", choices=("on", "off", "both"), default="both")
    options.add_argument("--seed", default="agreement")
    options.add_argument("--out", type=Path, default=OUT)
    options.add_argument("--logs", type=Path, default=LOGS)
    return options


async def run(arguments: argparse.Namespace, command: str) -> int:
    """Measure both modes, write, tell."""
    processes.end_on_sigterm()
    console = Console()
    urls = [url.rstrip("/") for url in arguments.engines.split(",")]
    async with aiohttp.ClientSession() as session:
        facts = [await fleet.facts(session, url) for url in urls]
        async with session.get(f"{urls[0]}/version") as response:
            version = (await response.json())["version"] if response.status == 200 else None
    size, room = facts[0].block_size, sum(one.cache_tokens for one in facts)
    figures = []
    for events in {"on": (True,), "off": (False,), "both": (True, False)}[arguments.kv_events]:
        one = await measure(
            urls,
            events=events,
            requests=arguments.requests,
            concurrency=arguments.concurrency,
            seed=arguments.seed,
            logs=arguments.logs,
            console=console,
        )
        figures.append(summary(one, size, room))
    why = reasons(figures)
    result = {
        "simulated": any(one.simulated for one in facts),
        **report.where(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "engines": {
            "replicas": len(facts),
            "version": version,
            "model": facts[0].model,
            "block_size": size,
            "blocks": facts[0].blocks,
        },
        "requests": arguments.requests,
        "concurrency": arguments.concurrency,
        "target": {"events": TARGET[True], "learned": TARGET[False]},
        "modes": figures,
    }
    report.write(result, arguments.out / "index-agreement.json")
    text = page(result, why)
    (arguments.out / "index-agreement.md").write_text(text)
    console.print(text.split("\n\n## ", 1)[0], markup=False, highlight=False, soft_wrap=True)
    console.print(f"wrote {arguments.out}/index-agreement.json and .md", highlight=False)
    for reason in why:
        console.print(f"[bold red]{reason}")
    return 1 if why else 0


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    try:
        return uvloop.run(run(arguments, shlex.join(["python", "-m", "bench", "agreement", *argv])))
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 143
    except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
