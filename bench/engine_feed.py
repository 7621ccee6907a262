"""One KV event publisher over ZMQ, as vLLM's and SGLang's are, and what can go wrong with it on demand.

Live: three frames `[topic][sequence, 8 bytes big-endian][payload]` from a socket that subscribers connect
to. Replay: a ROUTER; a request is `[empty][start, 8 bytes big-endian]`, and every batch from there on that is
still kept comes back as a message of its own, then an end marker. All of it runs on the event loop and never
blocks it.

The live socket is an XPUB: on the wire that is a PUB, and it tells who has subscribed, so that a test can
wait for its subscriber. As in the engines, nobody's absence is noticed, and what a slow subscriber has no
room for is lost.
"""

import asyncio
import errno
from collections import deque
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

HWM = 100_000
"""Batches that wait for a slow subscriber; the engines' default. Their replay socket keeps ZMQ's 1,000."""
BUFFER_STEPS = 10_000
"""Batches that are kept for a replay; the engines' default."""

_END = (-1).to_bytes(8, "big", signed=True)
_TURN = 100
"""Messages of a replay between two turns of the event loop."""


@dataclass(slots=True)
class Faults:
    """What goes wrong on the live feed. Everything that is published can still be replayed, unless said so.

    May be changed at any time; `every` n counts sequence numbers: n = 3 hits 2, 5, 8 and so on.
    """

    lose_every: int = 0
    lose_range: tuple[int, int] | None = None
    """The first and the last sequence number that nobody gets."""
    delay_s: float = 0.0
    """Seconds that each batch is late, the order kept."""
    swap_every: int = 0
    """Such a batch comes after its successor."""
    duplicate_every: int = 0
    """Such a batch comes twice."""
    mute_replay: bool = False
    """Requests for a replay get no answer."""
    replay_delay_s: float = 0.0
    """Seconds until a replay begins; what it has is what there was when it was asked for."""

    def set(self, **changes: Any) -> None:
        """Change some; ValueError for a name that does not exist."""
        for name, value in changes.items():
            if name not in self.__slots__:
                raise ValueError(f"unknown fault {name!r}; there are {', '.join(self.__slots__)}")
            setattr(self, name, tuple(value) if isinstance(value, list) else value)

    def loses(self, seq: int) -> bool:
        """Whether the live feed drops this batch."""
        if self.lose_range is not None and self.lose_range[0] <= seq <= self.lose_range[1]:
            return True
        return _hits(self.lose_every, seq)


class Feed:
    """Binds on `open`; `close` leaves nothing behind. Ports stay the same when it is opened again."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        host: str,
        topic: str,
        *,
        port: int = 0,
        replay_port: int = 0,
        buffer_steps: int = BUFFER_STEPS,
        replay_topic: bool = True,
        faults: Faults | None = None,
    ) -> None:
        """`replay_topic`: whether replayed batches carry the topic (vLLM since 0.26) or not (all others)."""
        self.topic = topic
        self.port, self.replay_port = port, replay_port
        self.buffer_steps = buffer_steps
        self.faults = faults or Faults()
        self.next_seq = 0
        """The sequence number of the next batch."""
        self.sent = 0
        """Messages on the live feed so far, those that came twice twice."""
        self._context = context
        self._host = host
        self._replay_topic = [topic.encode()] if replay_topic else []
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._live: zmq.Socket[bytes] | None = None
        self._replay: zmq.asyncio.Socket | None = None
        self._replies: set[asyncio.Task[None]] = set()
        self._held: tuple[int, bytes] | None = None
        self._late: deque[tuple[float, int, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._subscribers = 0

    # ---- sockets -----------------------------------------------------------------------------------------

    async def open(self, patience: float = 5.0) -> None:
        """Bind, with sequence numbers from 0; OSError if a port is still taken after `patience` seconds."""
        self._live = zmq.Context.shadow(self._context).socket(zmq.XPUB)
        self._live.set_hwm(HWM)
        self._live.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._replay = self._context.socket(zmq.ROUTER)
        deadline = asyncio.get_running_loop().time() + patience
        try:
            self.port = await self._bind(self._live, self.port, deadline)
            self.replay_port = await self._bind(self._replay, self.replay_port, deadline)
        except BaseException:
            await self.close()
            raise
        self._spawn(self._answer_requests(self._replay))

    async def close(self) -> None:
        """Unbind, and forget what was published, held back or late."""
        for task in list(self._replies):
            task.cancel()
        await asyncio.gather(*self._replies, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._late.clear()
        for socket in (self._live, self._replay):
            if socket is not None:
                socket.close(linger=0)
        self._live = self._replay = self._held = None
        self._subscribers = self.next_seq = 0
        self._buffer.clear()

    async def _bind(
        self, socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", port: int, deadline: float
    ) -> int:
        """The port; ZMQ gives one up only a moment after its socket was closed, hence the patience."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                socket.bind(f"tcp://{self._host}:{port or '*'}")
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or loop.time() > deadline:
                    raise OSError(error.errno, f"cannot bind KV events on {self._host}:{port}") from error
                await asyncio.sleep(0.01)
            else:
                endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
                assert isinstance(endpoint, bytes)
                return int(endpoint.rstrip(b"\0").rsplit(b":", 1)[1])

    @property
    def subscribers(self) -> int:
        """Subscriptions at this moment."""
        if self._live is not None:
            while self._live.poll(0):
                self._subscribers += 1 if self._live.recv(zmq.NOBLOCK)[0] else -1
        return self._subscribers

    # ---- live --------------------------------------------------------------------------------------------

    def publish(self, payload: bytes) -> int:
        """Send a batch to whoever subscribes, or do to it what the faults say; its sequence number."""
        seq = self.next_seq
        self.next_seq += 1
        self._buffer.append((seq, payload))
        if self.faults.loses(seq):
            return seq
        if self._held is None and _hits(self.faults.swap_every, seq):
            self._held = (seq, payload)
            return seq
        for _ in range(1 + _hits(self.faults.duplicate_every, seq)):
            self._send(seq, payload)
        if self._held is not None:
            (seq_before, payload_before), self._held = self._held, None
            self._send(seq_before, payload_before)
        return seq

    def resend(self, seq: int) -> bool:
        """Send a batch once more on the live feed, as a transport may; False if it is no longer kept."""
        for number, payload in self._buffer:
            if number == seq:
                self._send(seq, payload)
                return True
        return False

    def forget_replay(self) -> None:
        """Lose what is kept for replays; what is published from here on is kept again."""
        self._buffer.clear()

    def _send(self, seq: int, payload: bytes) -> None:
        if self.faults.delay_s <= 0 and not self._late:
            self._send_now(seq, payload)
            return
        self._late.append((asyncio.get_running_loop().time() + self.faults.delay_s, seq, payload))
        if self._timer is None:
            self._send_late()

    def _send_late(self) -> None:
        """Send what is due, in the order of its publication, and come back for the rest."""
        loop = asyncio.get_running_loop()
        while self._late and self._late[0][0] <= loop.time():
            self._send_now(*self._late.popleft()[1:])
        self._timer = loop.call_at(self._late[0][0], self._send_late) if self._late else None

    def _send_now(self, seq: int, payload: bytes) -> None:
        if self._live is None:
            return
        self.sent += 1
        try:
            self._live.send_multipart([self.topic.encode(), seq.to_bytes(8, "big"), payload], zmq.NOBLOCK)
        except zmq.Again:  # pragma: no cover - a publisher drops, it is never full
            pass

    # ---- replay ------------------------------------------------------------------------------------------

    async def _answer_requests(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames: list[bytes] = await socket.recv_multipart()
            if len(frames) == 3 and not self.faults.mute_replay:
                client, _, start = frames
                self._spawn(self._answer(socket, client, int.from_bytes(start, "big"), list(self._buffer)))

    async def _answer(
        self, socket: zmq.asyncio.Socket, client: bytes, start: int, kept: list[tuple[int, bytes]]
    ) -> None:
        if self.faults.replay_delay_s > 0:
            await asyncio.sleep(self.faults.replay_delay_s)
        sent = 0
        for seq, payload in kept:
            if seq >= start:
                await socket.send_multipart(
                    [client, b"", *self._replay_topic, seq.to_bytes(8, "big"), payload]
                )
                sent += 1
                if sent % _TURN == 0:
                    await asyncio.sleep(0)
        await socket.send_multipart([client, b"", *(b"" for _ in self._replay_topic), _END, b""])

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)


def _hits(every: int, seq: int) -> bool:
    return every > 0 and (seq + 1) % every == 0
