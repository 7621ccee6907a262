"""An engine's publisher of KV events: what a test tells it to send, and the faults of a real one."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from tests.support.eventually import eventually

END = b"\xff" * 8


def batch(*events: Any, at: float = 0.0, rank: int | None = 0) -> bytes:
    """A payload as vLLM writes it."""
    return msgspec.msgpack.encode([at, list(events), rank])


def stored(
    hashes: Sequence[int],
    tokens: Sequence[int],
    parent: int | None = None,
    *,
    block_size: int = 16,
    **more: Any,
) -> dict[str, Any]:
    """A BlockStored event as vLLM 0.32 writes it."""
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(*hashes: int) -> dict[str, Any]:
    """A BlockRemoved event as vLLM 0.32 writes it."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


class Publisher:
    """Publishes on one port and replays on another, both free ones of 127.0.0.1; `async with` it."""

    def __init__(self, *, topic: str = "kv@pod@m", replays_topic: bool = True) -> None:
        self.topic = topic.encode()
        self.replays_topic = replays_topic
        """False: the older form of a replay, without the topic."""
        self.endpoint = "tcp://127.0.0.1:*"
        self.replay_endpoint = "tcp://127.0.0.1:*"
        self.sequence = 0
        self.buffer: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        """Where each replay that was asked for begins."""
        self.answers = asyncio.Event()
        """Cleared: requests for a replay wait."""
        self.answers.set()
        self.batches_a_replay: int | None = None
        """A replay breaks off after so many, without its end marker."""
        self._context = zmq.asyncio.Context()
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._context.destroy(linger=0)

    async def start(self) -> None:
        """A new process at the same address: it numbers from 0 and remembers nothing."""
        self.sequence = 0
        self.buffer.clear()
        self._pub = self._context.socket(zmq.XPUB)  # a PUB that tells who subscribes
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.sndhwm = 0  # a slow reader must not make it drop what it replays
        for socket in (self._pub, self._router):
            socket.linger = 0
        await _bind(self._pub, self.endpoint)
        await _bind(self._router, self.replay_endpoint)
        self.endpoint = self._pub.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.replay_endpoint = self._router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self._serving = asyncio.get_running_loop().create_task(self._replay())

    async def stop(self) -> None:
        """As a process that ends."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
            self._serving = None
            self._pub.close()
            self._router.close()

    async def subscribed(self) -> None:
        """Wait until somebody has subscribed to what is published here."""
        async with asyncio.timeout(10):
            while not (await self._pub.recv()).startswith(b"\x01"):
                pass

    async def publish(self, *events: Any, lose: bool = False, rank: int | None = 0) -> int:
        """Publish a batch, or lose it on its way to subscribers; its sequence."""
        return await self.send(batch(*events, rank=rank), lose=lose)

    async def send(self, payload: bytes, *, lose: bool = False) -> int:
        """Publish these bytes."""
        sequence = self.sequence
        self.sequence += 1
        self.buffer.append((sequence, payload))
        if not lose:
            await self.deliver(sequence, payload)
        return sequence

    async def deliver(self, sequence: int, payload: bytes) -> None:
        """Send what subscribers get, whatever the count is."""
        await self._pub.send_multipart([self.topic, sequence.to_bytes(8, "big"), payload])

    async def raw(self, *frames: bytes) -> None:
        """Send frames as they are."""
        await self._pub.send_multipart(frames)

    async def _replay(self) -> None:
        while True:
            client, empty, first = await self._router.recv_multipart()
            start = int.from_bytes(first, "big")
            self.asked.append(start)
            await self.answers.wait()
            topic = [self.topic] if self.replays_topic else []
            wanted = [(number, payload) for number, payload in self.buffer if number >= start]
            for number, payload in wanted[: self.batches_a_replay]:
                await self._router.send_multipart([client, empty, *topic, number.to_bytes(8, "big"), payload])
            if self.batches_a_replay is None:
                nothing = [b""] if self.replays_topic else []
                await self._router.send_multipart([client, empty, *nothing, END, b""])


async def _bind(socket: zmq.asyncio.Socket, endpoint: str) -> None:
    """Bind, once whoever was bound there before has let go: ZMQ closes behind one's back."""

    def bound() -> bool:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            return False
        return True

    await eventually(bound, f"{endpoint} is free")
