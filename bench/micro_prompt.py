"""What a prompt costs: from body to block keys, warm and cold.

Times are medians. A warm conversation is one whose earlier turns have been keyed before; a cold prompt shares
nothing with any. Thread time is CPU time of the thread that runs the keying; the stall is the longest that a
task on the event loop, which wants to wake every millisecond, was late meanwhile. Run it on a quiet machine:
the stall counts what any other process did to ours.

The targets are stated for Qwen3's tokenizer. Give its directory as the argument, or in
WARMROUTE_BENCH_TOKENIZER; otherwise the small one in bench/data is used, whose texts are half as many tokens
again.

Run alone: python -m bench.micro_prompt [TOKENIZER]
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.prompts import WORDS
from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, Parsed, parse
from proxy.prompt.prompts import Chat
from proxy.prompt.template import Template
from proxy.prompt.tokenizer import Tokenizer, load

Row = dict[str, Any]

SMALL = Path(__file__).parent / "data" / "tokenizer"
TURNS = 60
CONVERSATION, PROMPT = 109_000, 32_000
"""Tokens."""
REPEATS = 21
QUICK = {"CONVERSATION": 2_000, "PROMPT": 1_000, "REPEATS": 2}
"""What `--quick` measures instead."""
SWITCH_INTERVAL = 0.0005
"""Seconds, as the proxy sets it: how long the event loop waits for a thread that holds the interpreter."""


def rows(tokenizer: str | Path | None = None) -> list[Row]:
    """Measure; each row has name, value, unit and target (None where there is none)."""
    source = tokenizer or os.environ.get("WARMROUTE_BENCH_TOKENIZER") or SMALL
    loaded, template = load(source)
    if template is None:
        raise ValueError(f"{source} has no chat template")
    of = f"{loaded.backing}, {template.engine}"
    warm, rendering, parsing = _warm(loaded, template)
    thread, stall = _cold(loaded, template)
    return [
        _row(
            f"tokens and keys of turn {TURNS} of a conversation, {CONVERSATION // 1000}k tokens, warm ({of})",
            warm - rendering,
            "ms",
            1.5,
        ),
        _row("rendering its template before that", rendering, "ms", None),
        _row(f"parsing its body, {CONVERSATION // 1000}k tokens", parsing, "ms", None),
        _row(f"keys of {PROMPT // 1000}k tokens, cold: thread time ({of})", thread, "ms", 12.0),
        _row(f"keys of {PROMPT // 1000}k tokens, cold: event-loop stall", stall, "ms", 5.0),
    ]


def _row(name: str, value: float, unit: str, target: float | None) -> Row:
    return {"name": name, "value": round(value, 3), "unit": unit, "target": target}


def _keyer(tokenizer: Tokenizer, template: Template) -> Keyer:
    return Keyer(secret=b"bench", model="m", tokenizer=tokenizer, template=template)


def _text(rng: Random) -> Iterator[str]:
    """Words with what prose and code put between them: some four characters a token, as both usually have."""
    for at in count(1):
        yield rng.choice(WORDS)
        yield ("." if at % 13 == 0 else ",") if at % 7 == 0 else ""
        yield "\n" if at % 40 == 0 else " "
        if at % 9 == 0:
            yield f"{rng.choice(WORDS)}{rng.choice(WORDS)}ing ({rng.randrange(100)}) "
        if at % 60 == 0:
            yield f'def f_{at}(x):\n    return {{"k": x[{rng.randrange(1000)}]}}\n'


def _of_tokens(tokenizer: Tokenizer, rng: Random, tokens: int) -> str:
    """Text of about so many tokens."""
    source = _text(rng)
    sample = "".join(next(source) for _ in range(6000))
    characters = round(tokens * len(sample) / (len(tokenizer.encode(sample)) // 4))
    text = sample
    while len(text) < characters:
        text += "".join(next(source) for _ in range(3000))
    return text[:characters]


def _conversation(tokenizer: Tokenizer) -> list[dict[str, str]]:
    text = _of_tokens(tokenizer, Random(1), CONVERSATION)
    roles = ["system", *["user", "assistant"] * (TURNS - 1), "user"]
    size = len(text) // len(roles)
    return [{"role": role, "content": text[at * size : (at + 1) * size]} for at, role in enumerate(roles)]


def _chat(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "m", "stream": True, "messages": messages}).encode()


def _warm(tokenizer: Tokenizer, template: Template) -> tuple[float, float, float]:
    """Milliseconds to keys of the last turn, those before being known; to render it; to read its body."""
    messages = _conversation(tokenizer)
    before, last = _chat(messages[:-2]), _chat(messages)
    times, rendering, parsing = [], [], []
    for _ in range(REPEATS):
        keyer = _keyer(tokenizer, template)
        keyer.begin(parse(Endpoint.CHAT, before)).run()
        gc.collect()
        started = time.perf_counter()
        parsed = parse(Endpoint.CHAT, last)
        parsing.append(time.perf_counter() - started)
        started = time.perf_counter()
        keying = keyer.begin(parsed)
        keying.run()
        times.append(time.perf_counter() - started)
        assert isinstance(parsed.prompt, Chat)
        started = time.perf_counter()
        template.render(parsed.prompt, str)
        rendering.append(time.perf_counter() - started)
    return median(times) * 1e3, median(rendering) * 1e3, median(parsing) * 1e3


def _cold(tokenizer: Tokenizer, template: Template) -> tuple[float, float]:
    """Milliseconds of thread time for a prompt that nothing is known of, and of the worst stall meanwhile."""
    keyer = _keyer(tokenizer, template)
    rng = Random(2)
    prompts = [
        parse(Endpoint.CHAT, _chat([{"role": "user", "content": _of_tokens(tokenizer, rng, PROMPT)}]))
        for _ in range(REPEATS)
    ]
    previous = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        measured = asyncio.run(_cold_each(keyer, prompts))
    finally:
        sys.setswitchinterval(previous)
    return median(thread for thread, _ in measured) * 1e3, median(stall for _, stall in measured) * 1e3


async def _cold_each(keyer: Keyer, prompts: list[Parsed]) -> list[tuple[float, float]]:
    measured = []
    for parsed in prompts:
        late: list[float] = []
        heart = asyncio.ensure_future(_beat(late.append))
        await asyncio.sleep(0.01)
        keying = keyer.begin(parsed)
        thread = await asyncio.to_thread(_thread_time, keying.run)
        await asyncio.sleep(0.005)
        heart.cancel()
        measured.append((thread, max(late)))
    return measured


def _thread_time(work: Callable[[], None]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


async def _beat(tell: Callable[[float], object]) -> None:
    """Sleep a millisecond at a time, and tell by how much each was overslept."""
    while True:
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        tell(time.perf_counter() - started - 0.001)


if __name__ == "__main__":
    for row in rows(sys.argv[1] if len(sys.argv) > 1 else None):
        print(f"{row['value']:10.3f} {row['unit']}  (target {row['target']})  {row['name']}")
