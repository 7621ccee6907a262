"""One replica's event feed over ZMQ: a subscription, a replay when asked for one, and nothing else.

It never looks into a payload and never decides what a sequence number means: whatever arrives is handed to
its owner by callbacks, on the event loop. Wire form (vLLM's and SGLang's `kv_events.py`): live messages are
[topic, sequence as 8 bytes big-endian, payload]; a replay is asked for with [empty, first sequence] and
answered with [empty, topic, sequence, payload] or, by older publishers, [empty, sequence, payload], until
one comes whose payload is empty.

Invariants: a ZMQ descriptor tells only that something has changed, so a socket is read until it is empty
after each wake and after each send; all feeds together take one slice of time in a round of the loop; each
replay has a socket of its own, so that the rest of one that was given up never reaches the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

SLICE_SECONDS = 0.001
"""What all feeds may take of one round of the event loop; one message more is finished."""
LIVE_MESSAGES = 1_000
"""Live messages held for a loop that is behind; after that TCP makes the publisher hold them."""
REPLAYED_MESSAGES = 20_000
"""More than a publisher's buffer holds by default (10,000): its socket drops what it cannot send at once."""
MESSAGE_BYTES = 64 << 20
"""A larger message costs the connection: no engine sends one."""
REPLAY_SECONDS = 5.0
"""Silence after which a replay has failed. Publishers look for requests every 0.1 s."""
RECONNECT_MS = (100, 2_000)
HEARTBEAT_MS = (5_000, 15_000)
"""Asked every, dead after: a peer that vanished without a word is noticed although it has nothing to say."""


class Owner(Protocol):
    """What a feed tells; called on the event loop, one call at a time."""

    def live(self, sequence: int, payload: bytes) -> None:
        """A message was published."""

    def replayed(self, sequence: int, payload: bytes) -> None:
        """A message of the replay that was asked for."""

    def replay_over(self, *, whole: bool) -> None:
        """The replay has ended, or has failed: no answer, or nobody to ask."""

    def joined(self) -> None:
        """The publisher is connected, for the first time or again: what it said meanwhile is missing."""

    def dropped(self) -> None:
        """The publisher's connection is gone: perhaps its process is."""


class Unreachable(Exception):
    """The endpoint cannot be used at all: it is no endpoint, or the port to listen on is taken."""


class Turns:
    """Shares the event loop among feeds: each takes a message in turn, all together a slice a round."""

    def __init__(self, clock: Callable[[], float], *, seconds: float = SLICE_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waiting: dict[Callable[[], bool], None] = {}
        self._running = False

    def ready(self, take: Callable[[], bool]) -> None:
        """Call `take` until it is False: until there is nothing more to take."""
        self._waiting[take] = None
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._run)

    def forget(self, take: Callable[[], bool]) -> None:
        """Call `take` no more."""
        self._waiting.pop(take, None)

    def _run(self) -> None:
        end = self._clock() + self._seconds
        waiting = self._waiting
        try:
            while waiting:
                take = next(iter(waiting))
                del waiting[take]
                if take():
                    waiting[take] = None  # behind the others
                if self._clock() >= end:
                    break
        finally:
            self._running = bool(waiting)
            if waiting:
                asyncio.get_running_loop().call_soon(self._run)


class _Reader:
    """Reads one socket until it is empty, whenever it may have something."""

    def __init__(self, turns: Turns, socket: zmq.Socket[bytes], each: Callable[[list[bytes]], None]) -> None:
        self._turns = turns
        self._each = each
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.FD)
        self.socket = socket
        self._loop.add_reader(self._fd, self.wake)
        self.wake()

    def wake(self) -> None:
        self._turns.ready(self._take)

    @property
    def waiting(self) -> bool:
        """Whether something has come that was not read: it is the loop that is late."""
        self.wake()  # asking may take the wake-up away
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _take(self) -> bool:
        try:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._each(frames)
        return not self.socket.closed

    def close(self) -> None:
        self._turns.forget(self._take)
        if not self.socket.closed:
            self._loop.remove_reader(self._fd)
            self.socket.close(linger=0)


class Feed:
    """The feed of one replica. Opened and closed once; ZMQ reconnects by itself in between."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        turns: Turns,
        owner: Owner,
        *,
        endpoint: str,
        bind: bool = False,
        topic: str = "",
        replay: str | None = None,
        replay_seconds: float = REPLAY_SECONDS,
    ) -> None:
        """`endpoint` is connected to, or listened on if `bind`. `replay` is where replays are asked for."""
        self._context = context
        self._turns = turns
        self._owner = owner
        self._endpoint = endpoint
        self._bind = bind
        self._topic = topic
        self._replay_endpoint = replay
        self._replay_seconds = replay_seconds
        self._live: _Reader | None = None
        self._monitor: _Reader | None = None
        self._replay: _Reader | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._heard = False
        """Whether the replay has brought anything since the timer was set."""
        self.malformed = 0
        """Messages that are no event batches: something else speaks at the endpoint."""

    def open(self) -> None:
        """Subscribe. Raises Unreachable."""
        socket = self._socket(zmq.SUB, LIVE_MESSAGES, self._endpoint)
        watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = _Reader(self._turns, socket.get_monitor_socket(watched), self._changed)
        try:
            socket.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
            (socket.bind if self._bind else socket.connect)(self._endpoint)
        except zmq.ZMQError as error:
            self._unwatch(socket)
            socket.close(linger=0)
            raise Unreachable(f"{self._endpoint}: {error.strerror}") from error
        self._live = _Reader(self._turns, socket, self._published)

    def replay(self, first: int) -> None:
        """Ask for every message from sequence `first` on that the publisher still has.

        One at a time: another that is under way is given up.
        """
        self._give_up()
        loop = asyncio.get_running_loop()
        if self._replay_endpoint is None or self._live is None:
            self._patience = loop.call_later(0, self._over, False)
            return
        socket = self._socket(zmq.DEALER, REPLAYED_MESSAGES, self._replay_endpoint)
        try:
            socket.connect(self._replay_endpoint)
            socket.send_multipart([b"", first.to_bytes(8, "big")], zmq.NOBLOCK)
        except zmq.ZMQError:  # not an endpoint
            socket.close(linger=0)
            self._patience = loop.call_later(0, self._over, False)
            return
        self._replay = _Reader(self._turns, socket, self._answered)
        self._heard = False
        self._patience = loop.call_later(self._replay_seconds, self._silent)

    def close(self) -> None:
        """Stop at once: nothing is told after this."""
        self._give_up()
        if self._live is not None:
            self._unwatch(self._live.socket)
            self._live.close()
            self._live = None

    def _socket(self, kind: int, messages: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = messages
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, "[" in endpoint)  # a name is then only IPv6, and engines bind IPv4
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS[0])
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_MS[1])
        return socket

    def _unwatch(self, socket: zmq.Socket[bytes]) -> None:
        if self._monitor is not None:
            socket.disable_monitor()
            self._monitor.close()
            self._monitor = None

    def _published(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            self.malformed += 1
            return
        self._owner.live(int.from_bytes(frames[1], "big"), frames[2])

    def _answered(self, frames: list[bytes]) -> None:
        if not frames[-1]:
            self._over(True)
            return
        self._heard = True
        if len(frames) < 3 or len(frames[-2]) != 8:
            self.malformed += 1
            return
        self._owner.replayed(int.from_bytes(frames[-2], "big"), frames[-1])

    def _changed(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_DISCONNECTED:
            self._owner.dropped()
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._owner.joined()

    def _silent(self) -> None:
        replay = self._replay
        if replay is not None and (self._heard or replay.waiting):
            self._heard = False
            self._patience = asyncio.get_running_loop().call_later(self._replay_seconds, self._silent)
        else:
            self._over(False)

    def _over(self, whole: bool) -> None:  # noqa: FBT001 - told to call_later
        self._give_up()
        self._owner.replay_over(whole=whole)

    def _give_up(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None
