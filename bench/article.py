"""The experiment of the article behind this project, in its own terms: `python -m bench article`.

System prompts of 1,200 tokens and questions of 300, 20 requests at a time, 200 streaming requests, 128 tokens
out; once with a single system prompt, once with 30, once with nothing shared; under round robin and under
prefix_cost, window by window in turn, through the real proxy. With a single system prompt every replica soon
holds it, so parity with round robin is expected there: that is the case the article's own set-up measures.

On three simulated replicas (the profile `cpu`: what vLLM does on one core), or with --engines on running real
ones. With --beside FILE, another result of this command is put next to this one, with how far they are apart:
the simulator checked against real engines.
"""

import argparse
import json
import shlex
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console

from bench import account, article_table, endpoint, processes, report
from bench.account import Slo
from bench.command import ended
from bench.endpoint import Endpoint
from bench.engine_prompt import TOKENIZER, EnginePrompt
from bench.lifecycle import Target, Window, carry_out
from bench.plan import Planned, prepare
from bench.record import Record
from bench.workloads import Shape, generate

POLICIES = ("round_robin", "prefix_cost")
OUT = Path("bench/out/article")
REPLICAS, PROFILE = 3, "cpu"
CONCURRENCY, REQUESTS, WARM_UP = 20, 200, 20
PREFIX, QUESTION, OUTPUT = 1200, 300, 128
TOKEN = "bench"  # noqa: S105 - of a proxy that this command starts for itself
TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the three."""

    name: str
    workload: str
    prompts: int
    what: str

    def plan(self, prompt: EnginePrompt, first: Endpoint, seed: str, requests: int) -> list[Planned]:
        """Its requests, in order."""
        shape = Shape(groups=self.prompts, prefix=PREFIX, question=QUESTION, output=OUTPUT, requests=requests)
        arrivals = generate(self.workload, shape, seed)
        return prepare(arrivals, prompt, model=first.model or "", block_size=first.block_size or 16)


VARIANTS = (
    Variant("one", "shared", 1, "a single system prompt"),
    Variant("thirty", "shared", 30, "30 system prompts"),
    Variant("random", "random", 1, "nothing shared"),
)


async def run(arguments: argparse.Namespace, command: str) -> int:
    """Measure, write, tell."""
    console = Console()
    processes.end_on_sigterm()
    found: dict[tuple[str, str], list[tuple[dict[str, Any], list[Record]]]] = {}
    async with AsyncExitStack() as stack:
        urls = [url.rstrip("/") for url in (arguments.engines or "").split(",") if url]
        if not urls:
            flags = ["--profile", PROFILE]
            started = processes.engines(REPLICAS, flags, arguments.out / "engines.log")
            urls = (await stack.enter_async_context(started)).urls
        async with aiohttp.ClientSession() as session:
            engines = [await endpoint.look(session, url, None) for url in urls]
        prompt = EnginePrompt(engines[0].tokenizer or TOKENIZER)
        targets = {}
        for policy in POLICIES:
            log = arguments.out / f"{policy}.log"
            proxy = processes.proxy(urls, policy, log, arguments=["--admin-token", TOKEN])
            url = (await stack.enter_async_context(proxy)).urls[0]
            targets[policy] = Target([url], engines, proxy=url, admin_token=TOKEN)
        for number in range(1, arguments.repeats + 1):
            for variant in VARIANTS:
                seed = f"{arguments.seed}/{variant.name}/{number}"
                plan = variant.plan(prompt, engines[0], seed, arguments.requests)
                warm_up = variant.plan(
                    prompt, engines[0], f"{seed}/warm-up", min(WARM_UP, arguments.requests)
                )
                order = POLICIES if number % 2 else POLICIES[::-1]
                for policy in order:
                    window = await carry_out(
                        plan,
                        targets[policy],
                        warm_up=warm_up,
                        concurrency=CONCURRENCY,
                        timeout=TIMEOUT,
                        seed=seed,
                    )
                    one = _figures(policy, variant, window)
                    found.setdefault((variant.name, policy), []).append((one, window.records))
                    console.print(article_table.one_line(seed, one), highlight=False, soft_wrap=True)
                    _write(arguments, found, engines, command)
    console.print(f"wrote {arguments.out}/article.json and .md", highlight=False)
    problems = [text for runs in found.values() for one, _ in runs for text in one["problems"]]
    for text in problems:
        console.print(f"[bold red]{text}", soft_wrap=True)
    return 1 if problems else 0


def _figures(policy: str, variant: Variant, window: Window) -> dict[str, Any]:
    one = account.run(policy, window, Slo())
    one["variant"] = variant.name
    one["problems"] = account.problems(one)
    one["cautions"] = account.cautions(one, open_loop=False)
    return one


def _write(
    arguments: argparse.Namespace,
    found: dict[tuple[str, str], list[tuple[dict[str, Any], list[Record]]]],
    engines: Sequence[Endpoint],
    command: str,
) -> None:
    """After every window: what there is stays."""
    pooled = [article_table.pooled(variant, policy, runs) for (variant, policy), runs in found.items()]
    first = engines[0]
    records = {key: [some for _, some in runs] for key, runs in found.items()}
    gain = {
        variant.name: article_table.changes(*(records.get((variant.name, policy), []) for policy in POLICIES))
        for variant in VARIANTS
    }
    result = report.result(
        pooled,
        workload={
            "name": "article",
            "concurrency": CONCURRENCY,
            "requests": arguments.requests,
            "prefix": PREFIX,
            "question": QUESTION,
            "output": OUTPUT,
            "repeats": arguments.repeats,
            "seed": arguments.seed,
        },
        simulated=any(engine.simulated for engine in engines),
        command=command,
        engines={
            "replicas": len(engines),
            "version": first.version,
            "model": first.model,
            "block_size": first.block_size,
            "blocks": first.blocks,
        },
        gain=gain,
        windows=[one for runs in found.values() for one, _ in runs],
    )
    report.write(result, arguments.out / "article.json")
    beside = json.loads(arguments.beside.read_text()) if arguments.beside else None
    (arguments.out / "article.md").write_text(article_table.page(result, beside))


def parser() -> argparse.ArgumentParser:
    """Options of `python -m bench article`."""
    options = argparse.ArgumentParser(
        prog="python -m bench article",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument("--engines", help="running real replicas: A,B,C; default: simulated ones")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--requests", type=int, default=REQUESTS, help="of a window")
    options.add_argument("--seed", default="article")
    options.add_argument("--beside", type=Path, metavar="JSON", help="another result of this command")
    options.add_argument("--out", type=Path, default=OUT)
    return options


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parser().parse_args(argv)
    return ended(run(arguments, shlex.join(["python", "-m", "bench", "article", *argv])))
