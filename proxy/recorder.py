"""WARMROUTE_RECORD: the traffic as a trace that can be replayed, without a word of it.

Of a request its time, its lengths and its blocks are written, the blocks as numbers in the order in which
they were first seen. A number tells nothing of its block: not its text, and not its routing key, which is a
chained hash and as the seed of the next would let a guess at the text be checked. A block that was not seen
for a long time gets another number, so memory stays bounded, and a block without a key one of its own.

Fed by the ledger, a batch at a time; all work and every write is done in a thread of its own. Requests end in
another order than they came, so lines wait: for `HOLD` seconds after their request came, or until `HELD`
bytes wait. One that lasted longer is written late, at the time of the line before it. What falls behind is
dropped and counted, never waited for.

Bounded: `REMEMBERED` numbers in each of two generations, some 100 MB in all; `HELD` bytes of lines; `BEHIND`
batches; on disk what the settings say.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import heapq
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from math import log2
from pathlib import Path
from time import monotonic, time
from typing import NamedTuple
from uuid import uuid4

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from proxy import trace_file
from proxy.logs import logger
from proxy.record import Record
from proxy.series import CounterFamily
from proxy.trace_file import TraceFile

HOLD = 60.0
"""Seconds."""
HELD = 32 << 20
REMEMBERED = 1 << 19
"""Blocks whose numbers are kept, in each generation."""
BEHIND = 64
RESULTS = ("written", "unkeyed", "unmeasured", "behind", "failed", "block_sizes")
SIZES = 8
"""Sizes of blocks that are told apart, each in a file of its own."""


class Request(NamedTuple):
    """What is written of one request."""

    at: float
    """Seconds since the trace began."""
    keys: array[int]
    tokens: int
    """Prompt tokens, counted as `block` is."""
    output: int
    block: int
    """Tokens of a block."""


class Numbers:
    """Dense numbers for keys, as far back as two generations reach."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._next = 0

    def of(self, keys: Iterable[int]) -> list[int]:
        """The number of each key, a new one for those not known."""
        young, old, found = self._young, self._old, []
        for key in keys:
            number = young.get(key)
            if number is None:
                number = old.get(key)
                if number is None:
                    number = self.fresh()
                young[key] = number
            found.append(number)
        if len(young) >= self._remembered:
            self._old, self._young = young, {}
        return found

    def fresh(self) -> int:
        """A number that no key has."""
        self._next += 1
        return self._next - 1


class Recorder(Collector):
    """Writes the trace."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """`most_bytes` bound what lies on disk, for each size of blocks. Raises OSError if it cannot be."""
        self.requests = CounterFamily(
            "warmroute_recorded_requests",
            "Requests that the trace was to have: written, or why not.",
            "result",
        )
        for result in RESULTS:  # all there, so that none comes while another thread counts them
            self.requests.add((result,), 0)
        self._path = path
        self._most = most_bytes
        self._began = monotonic()
        self._meta: dict[str, object] = {
            "hash_ids": "dense numbers; equal ones are equal blocks after equal blocks",
            "process": uuid4().hex,
            "began": time(),
        }
        self._numbers = Numbers()
        self._files: dict[int, TraceFile] = {}
        self._sizes: dict[str, int] = {}
        self._waiting: list[tuple[int, int, int, bytes]] = []
        """Milliseconds, running number, tokens of a block, line: a heap."""
        self._held = 0
        self._lines = 0
        self._last: dict[int, int] = {}
        """Size of blocks to the latest millisecond written."""
        self._pending: list[Future[None]] = []
        self._failed = False
        trace_file.check(path)  # now, when somebody looks, rather than at the first request
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="record")

    def read(self, records: Sequence[Record]) -> None:
        """Take in requests that have ended; their leases are still there."""
        requests = [request for record in records if (request := self._request(record)) is not None]
        if not requests and not self._waiting:
            return
        self._pending = [batch for batch in self._pending if not batch.done()]
        if len(self._pending) >= BEHIND:
            self.requests.add(("behind",), len(requests))
            return
        until = monotonic() - self._began - HOLD
        self._pending.append(self._thread.submit(self._take, requests, until))

    def close(self) -> None:
        """Write what waits, and end."""
        self._thread.submit(self._take, [], float("inf")).result()
        self._thread.shutdown()
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    def collect(self) -> Iterable[Metric]:
        """The counter."""
        return [self.requests.collect()]

    def _request(self, record: Record) -> Request | None:
        lease = record.lease
        if lease is None or record.status != 200 or record.outcome not in ("ok", "client_closed"):
            return None
        asked = lease.request
        output = record.output_tokens
        if output is None and record.tpot and record.ttft is not None:
            output = round((record.e2e - record.ttft) / record.tpot) + 1
        if not asked.tokens or output is None:
            self.requests.add(("unkeyed" if not asked.tokens else "unmeasured",))
            return None
        block = self._block(record.model, asked.block_tokens, exact=asked.exact)
        tokens = round(asked.tokens * block / asked.block_tokens)
        if asked.exact and asked.sequences == 1 and record.reported_prompt:
            tokens = record.reported_prompt
        return Request(record.started - self._began, asked.keys, tokens, output // asked.sequences, block)

    def _block(self, model: str, block_tokens: float, *, exact: bool) -> int:
        """Tokens of a block; where they are guessed the nearest power of two, for good for each model."""
        if exact:
            return int(block_tokens)
        known = self._sizes.get(model)
        if known is None:
            known = self._sizes[model] = 1 << max(0, round(log2(block_tokens)))
        return known

    # In the thread

    def _take(self, requests: Sequence[Request], until: float) -> None:
        """Number the blocks of some requests, and write all that came before `until`."""
        try:
            for request in requests:
                self._hold(request)
            wrote = 0
            while self._waiting and (self._waiting[0][0] < until * 1000 or self._held > HELD):
                at, _, block, line = heapq.heappop(self._waiting)
                self._held -= len(line)
                self._write(at, block, line)
                wrote += 1
            if wrote:
                for file in self._files.values():
                    file.flush()
            self._failed = False
        except OSError as error:
            self.requests.add(("failed",))
            if not self._failed:
                logger.error("the trace %s cannot be written: %s", self._path, error.strerror or error)
            self._failed = True

    def _hold(self, request: Request) -> None:
        blocks = -(-request.tokens // request.block)
        known = min(len(request.keys), request.tokens // request.block)
        ids = self._numbers.of(request.keys[:known])
        ids += [self._numbers.fresh() for _ in range(blocks - known)]
        rest = b',"input_length":%d,"output_length":%d,"hash_ids":' % (request.tokens, request.output)
        line = rest + msgspec.json.encode(ids) + b"}\n"
        self._lines += 1
        heapq.heappush(self._waiting, (max(0, round(request.at * 1000)), self._lines, request.block, line))
        self._held += len(line)

    def _write(self, at: int, block: int, line: bytes) -> None:
        file = self._files.get(block)
        if file is None:
            if len(self._files) >= SIZES:
                self.requests.add(("block_sizes",))
                return
            path = self._path if not self._files else self._path.with_stem(f"{self._path.stem}.b{block}")
            file = self._files[block] = TraceFile(path, self._most, {"block_size": block, **self._meta})
        at = self._last[block] = max(at, self._last.get(block, 0))
        file.write(b'{"timestamp":%d' % at + line)
        self.requests.add(("written",))
