"""How what a request costs grows: with its prompt's tokens, the fleet's replicas, the blocks that are held.

Six steps: parse (body to fields), tokenise (text to ids), key (all of a cold prompt: template, tokens, keys),
match (the index), choose (the default policy), relay (an answer of so many tokens, one event each, from the
replica's bytes to the client's). Beside them a match in an index of so many blocks, learned from placements
and confirmed by events: of prompts taken at random, so that caches help no more than they would. Microseconds
of the best of a few runs, and the most bytes that one run had allocated at once. Then the exponent of each
growth, by least squares on logarithms: 1 is linear, 2 is the regression to look for; it shows on any machine.

Run alone: python -m bench.micro_growth
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
import json
import tracemalloc
from array import array
from collections.abc import Callable
from functools import partial
from math import log
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from bench.prompts import word_salad
from policies import base, registry
from proxy.index.confirmed import Confirmed
from proxy.index.memory import MemoryIndex
from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, parse
from proxy.prompt.tokenizer import load
from proxy.relay import Limits, Relay

Row = dict[str, Any]

TOKENS = (1_000, 8_000, 32_000, 128_000)
REPLICAS = (10, 100, 1_000)
BLOCKS = (100_000, 1_000_000, 5_000_000, 10_000_000)
BLOCK = 16
PROMPT, ASKED, HOLDERS = 125, 500, 10
"""Blocks of a prompt, prompts asked for in one run, and replicas, where the blocks in the index grow."""
TOKENIZER = Path(__file__).parent / "data" / "tokenizer"
BUDGET_S = 0.25
"""Seconds of runs for one figure, at least `LEAST` of them."""
LEAST = 3
QUICK = {"TOKENS": (64, 512), "REPLICAS": (2, 20), "BLOCKS": (10_000, 20_000), "BUDGET_S": 0.0}
"""What `--quick` measures instead."""
EXPONENTS = {
    ("parse", "tokens"): 1.3,
    ("tokenise", "tokens"): 1.4,
    ("key", "tokens"): 1.4,
    ("match", "tokens"): 0.5,
    ("match", "replicas"): 1.3,
    ("choose", "replicas"): 1.3,
    ("relay", "tokens"): 1.3,
    ("match learned", "blocks"): 0.4,
    ("match confirmed", "blocks"): 0.4,
}
"""The most that each should be: linear, with what processor caches add. Matching searches the prompt."""


def rows() -> list[Row]:
    """Every figure, then the exponents."""
    found = [row for tokens in TOKENS for row in _of_prompt(tokens)]
    found += [row for tokens in TOKENS for replicas in REPLICAS for row in _of_fleet(tokens, replicas)]
    found += [row for blocks in BLOCKS for row in _of_index(blocks)]
    return found + exponents(found)


def exponents(found: list[Row]) -> list[Row]:
    """How each step grows with tokens (at the fewest replicas) and with replicas (at the longest prompt)."""
    out = []
    for (step, axis), most in EXPONENTS.items():
        mine = [row for row in found if row["step"] == step and row.get(axis)]
        if axis == "tokens":
            mine = [row for row in mine if row.get("replicas") in (None, REPLICAS[0])]
        else:
            mine = [row for row in mine if row.get("tokens") in (None, TOKENS[-1])]
        points = [(float(row[axis]), float(row["value"])) for row in mine]
        name = f"growth of {step} with {axis}: exponent"
        out.append({"name": name, "value": slope(points), "unit": "", "target": most})
    return out


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line through the logarithms."""
    xs, ys = ([log(point[i]) for point in points] for i in (0, 1))
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    above = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return above / sum((x - middle_x) ** 2 for x in xs)


def measured(call: Callable[[], object]) -> tuple[float, int]:
    """Microseconds of the best run, and bytes that one run had allocated at most."""
    best, until, runs = float("inf"), perf_counter() + BUDGET_S, 0
    while runs < LEAST or perf_counter() < until:
        began = perf_counter()
        call()
        best = min(best, perf_counter() - began)
        runs += 1
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return best * 1e6, peak


def _row(step: str, call: Callable[[], object], calls: int = 1, **at: int) -> Row:
    """A figure of what `call` does `calls` times."""
    value, peak = measured(call)
    where = ", ".join(f"{count:,} {what}" for what, count in at.items())
    return {
        "name": f"{step}, {where}",
        "value": value / calls,
        "unit": "us",
        "target": None,
        "step": step,
        "bytes": peak,
        **at,
    }


def _of_prompt(tokens: int) -> list[Row]:
    loaded, template = load(TOKENIZER)
    words = 1000
    text = word_salad("growth", tokens, len(loaded.encode(word_salad("growth", words))) / 4 / words)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    parsed = parse(Endpoint.CHAT, body)

    def key() -> None:
        Keyer(secret=b"bench", model="m", tokenizer=loaded, template=template).begin(parsed).run()

    answer = _answer(tokens)
    return [
        _row("parse", partial(parse, Endpoint.CHAT, body), tokens=tokens),
        _row("tokenise", partial(loaded.encode, text), tokens=tokens),
        _row("key", key, tokens=tokens),
        _row("relay", partial(relay, answer), tokens=tokens),
    ]


def _of_fleet(tokens: int, replicas: int) -> list[Row]:
    """Every replica holds half of the prompt, a tenth of them all of it."""
    rng = Random(1)
    keys = array("Q", rng.randbytes(8 * (tokens // BLOCK)))
    index = MemoryIndex()
    for number in range(replicas):
        held = keys if number % 10 == 0 else keys[: len(keys) // 2]
        index.predict(f"r{number}", held)
    rows = [_row("match", partial(index.match, keys), tokens=tokens, replicas=replicas)]
    if tokens == TOKENS[-1]:
        views = [base.Replica(f"r{number}", in_flight=number % 7) for number in range(replicas)]
        matched = {name: blocks * BLOCK for name, blocks in index.match(keys).items()}
        request = base.Request(tokens, matched)
        policy = registry.create("prefix_cost")
        rows.append(_row("choose", lambda: policy.choose(request, views, Random(1)), replicas=replicas))
    return rows


def _of_index(blocks: int) -> list[Row]:
    """Prompts that one replica each holds, found again."""
    rng = Random(2)
    prompts = [array("Q", rng.randbytes(8 * PROMPT)) for _ in range(blocks // PROMPT)]
    asked = rng.sample(prompts, min(ASKED, len(prompts)))
    learned, confirmed = MemoryIndex(), Confirmed()
    for number in range(HOLDERS):
        learned.resize(f"r{number}", blocks)
    for number, keys in enumerate(prompts):
        learned.predict(f"r{number % HOLDERS}", keys)
        confirmed.apply(f"r{number % HOLDERS}", (), keys)
    rows = []
    for name, match in (("match learned", learned.match), ("match confirmed", confirmed.match)):
        assert all(PROMPT in match(keys).values() for keys in asked), "what was placed is found"
        everything = partial(_each, match, asked)
        rows.append(_row(name, everything, len(asked), blocks=blocks))
    return rows


def _each(match: Callable[[array[int]], object], asked: list[array[int]]) -> None:
    for keys in asked:
        match(keys)


# ---- the relay alone, between two ends that are not there ------------------------------------------------


def _answer(tokens: int) -> list[bytes]:
    """A streamed answer as it comes from a replica: its head, one event a token, the end."""
    event = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"delta":{"content":" word"}}]}\n\n'
    one = b"%x\r\n%b\r\n" % (len(event), event)
    end = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *([one] * tokens), end]


class _Replica:
    """A connection that takes a request and says nothing."""

    served = 0
    transport: Any = None

    def send(self, *_: object) -> None:
        """The request is nobody's."""

    def release(self) -> None:
        """For the next one."""

    abort = release


class _Client:
    """One that reads at once."""

    relay: Any = None
    writing_paused = False
    got = 0

    def send(self, chunk: bytes) -> None:
        """Count it."""
        self.got += len(chunk)


def relay(cuts: list[bytes]) -> int:
    """Relay one answer; bytes that the client got."""
    loop = asyncio.new_event_loop()
    client = _Client()
    replica: Any = _Replica()
    limits = Limits(first_byte=60.0, idle=60.0, header_bytes=65536)
    try:
        one = Relay(
            replica,
            client,
            limits,
            loop,
            respond=lambda _head: [b"HTTP/1.1 200 OK\r\n"],
            on_first_token=lambda _now: None,
        )
        one.start(b"", b"")
        for cut in cuts:
            one.received(cut)
        assert one.done.done(), "the answer was relayed to its end"
    finally:
        loop.close()
    return client.got


if __name__ == "__main__":
    for row in rows():
        print(f"{row['value']:12.2f} {row['unit']:3} {row.get('bytes', 0):>12,} bytes  {row['name']}")
