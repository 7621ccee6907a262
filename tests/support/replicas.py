"""Simulated replicas that publish KV events, in this event loop or as processes, and a subscriber to them.

`replicas(3, dialect="sglang-maps")` starts three on free ports; each is a `RunningReplica`: `url`, `feed`
(its `faults`, `next_seq`, `subscribers`, `port`), `restart()`, `stop()`. `replica_processes` starts them in
a process of their own, which is steered over HTTP (`/simulated/...`, see `bench/engine_controls.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import zmq
import zmq.asyncio

from bench import processes
from bench.engine import EventOptions, RunningReplica, serve
from bench.engine_events import Dialect
from bench.engine_feed import Feed
from bench.profiles import EngineSpec
from tests.support.eventually import PATIENCE, eventually

FAST = EngineSpec(
    name="test", cache_tokens=4096, prefill_tokens_per_s=1e6, step_s=0.0005, step_per_sequence_s=0.0
)
"""256 blocks of 16 tokens; a request takes milliseconds."""
END = b"\xff" * 8


@asynccontextmanager
async def replicas(
    count: int = 1,
    *,
    dialect: Dialect = "vllm",
    spec: EngineSpec = FAST,
    model: str = "simulated",
    adapters: tuple[str, ...] = (),
    **events: Any,
) -> AsyncIterator[list[RunningReplica]]:
    """`count` replicas in this loop; `events` are further fields of `EventOptions`."""
    options = EventOptions(dialect=dialect, **events)
    async with serve(spec, ports=(0,) * count, model=model, adapters=adapters, events=options) as running:
        yield running


@asynccontextmanager
async def replica_processes(
    count: int, log: Path, *, dialect: Dialect = "vllm", arguments: tuple[str, ...] = ()
) -> AsyncIterator[processes.Process]:
    """`count` replicas in one process of their own; `arguments` are further ones of `bench engine`."""
    async with processes.engines(count, ["--kv-events", dialect, *arguments], log) as process:
        yield process


class Message(NamedTuple):
    """One batch as it came."""

    topic: bytes | None
    """None where a replay does not carry it."""
    seq: int
    payload: bytes

    @property
    def events(self) -> list[Any]:
        return msgspec.msgpack.decode(self.payload)[1]


class Subscriber:
    """Follows one feed. `async with` it: inside, it is known to be subscribed."""

    def __init__(self, feed: Feed, host: str = "127.0.0.1") -> None:
        self.messages: list[Message] = []
        self._feed = feed
        self._host = host
        self._context = zmq.asyncio.Context()

    async def __aenter__(self) -> Self:
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RECONNECT_IVL, 10)
        self._live.subscribe(b"")
        known = self._feed.subscribers
        self._live.connect(f"tcp://{self._host}:{self._feed.port}")
        self._task = asyncio.create_task(self._read())
        await eventually(lambda: self._feed.subscribers > known, "the publisher knows its subscriber")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    @property
    def seqs(self) -> list[int]:
        return [message.seq for message in self.messages]

    @property
    def events(self) -> list[Any]:
        """Of all batches so far, in order."""
        return [event for message in self.messages for event in message.events]

    async def until(self, condition: Callable[[], Any]) -> None:
        await eventually(condition, f"got {self.seqs}")

    async def replay(self, start: int = 0, *, within: float = PATIENCE) -> list[Message]:
        """What the engine still has from `start` on; TimeoutError if it does not answer."""
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.connect(f"tcp://{self._host}:{self._feed.replay_port}")
            await dealer.send_multipart([b"", start.to_bytes(8, "big")])
            found: list[Message] = []
            while True:
                frames = await asyncio.wait_for(dealer.recv_multipart(), within)
                empty, *topic, seq, payload = frames
                assert empty == b""
                if seq == END:
                    assert payload == b""
                    assert topic in ([], [b""])
                    return found
                found.append(Message(topic[0] if topic else None, int.from_bytes(seq, "big"), payload))
        finally:
            dealer.close(linger=0)

    async def _read(self) -> None:
        while True:
            topic, seq, payload = await self._live.recv_multipart()
            assert len(seq) == 8
            self.messages.append(Message(topic, int.from_bytes(seq, "big"), payload))
