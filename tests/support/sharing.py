"""Proxies that share an index: a real Valkey on a Unix socket, and pools with a listener that remembers."""

from __future__ import annotations

import subprocess
import time
from array import array
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack
from glob import escape as glob_escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as Unreachable

from proxy.index.handles import Delta
from proxy.redis_url import parse
from proxy.shared.base import Claim, Whole
from proxy.shared.client import Link
from proxy.shared.embedded import binary
from proxy.shared.layout import Names
from proxy.shared.pool import SharedPool, settings
from tests.support.eventually import eventually

SECRET = b"a secret of the tests"


class Valkey:
    """One server process, which can be killed, stopped, and started anew, empty."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.socket = directory / "s"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [str(binary()), "--port", "0", "--unixsocket", str(self.socket), "--save", ""]
        self._process = subprocess.Popen(
            [*command, "--appendonly", "no", "--dir", str(self.socket.parent), *self._options],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while True:
            try:
                with self.client() as client:
                    client.ping()
            except Unreachable:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.01)
            else:
                return

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.socket.unlink(missing_ok=True)

    def client(self) -> Redis:
        """For looking at what is there, beside the proxies."""
        return Redis(unix_socket_path=str(self.socket), socket_timeout=10)


class Listener:
    """What a proxy would know from what it was told."""

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = {}
        self.epochs: dict[str, str] = {}
        self.modes: dict[str, str] = {}
        self.said: list[tuple[Any, ...]] = []
        """Predictions and what became of them; forgotten replicas."""
        self.lost = 0

    def changed(
        self, replica: str, epoch: str, cleared: bool, removed: array[int], stored: array[int]
    ) -> None:
        if self.modes.get(replica) == "learned":
            return  # as an index does: nobody said that it is followed
        held = self.held.setdefault(replica, set())
        if cleared:
            held.clear()
        held.difference_update(removed)
        held.update(stored)
        self.epochs[replica] = epoch

    def snapshot(self, replica: str, epoch: str, keys: array[int], *, first: bool) -> None:
        if self.modes.get(replica) == "learned":
            return
        if first:
            self.held[replica] = set()
        self.held[replica].update(keys)
        self.epochs[replica] = epoch

    def predicted(self, origin: str, number: int, replica: str, keys: array[int]) -> None:
        self.said.append(("predicted", origin, number, replica, list(keys)))

    def retracted(self, origin: str, number: int) -> None:
        self.said.append(("retracted", origin, number))

    def reported(self, origin: str, number: int, predicted: int, reported: int) -> None:
        self.said.append(("reported", origin, number, predicted, reported))

    def forgotten(self, replica: str) -> None:
        self.held.pop(replica, None)
        self.epochs.pop(replica, None)
        self.said.append(("forgotten", replica))

    def mode(self, replica: str, epoch: str, mode: str) -> None:
        self.modes[replica] = mode
        if mode == "learned":
            self.held.pop(replica, None)

    def lost_track(self) -> None:
        self.lost += 1
        self.held.clear()
        self.epochs.clear()


class Peer:
    """One proxy's share in a pool, its listener, and the books of what it ingests."""

    def __init__(self, link: Link, origin: str, *, namespace: str, pool: str = "model", **known: Any) -> None:
        self.link = link
        self.origin = origin
        self.listener = Listener()
        known = {"secret": SECRET, "block_size": 16, "tokenizer": "t", **known}
        self.load: dict[str, Any] = {}
        self.pool = SharedPool(
            link,
            self.listener,
            namespace=namespace,
            pool=pool,
            origin=origin,
            settings=settings(known["secret"], known["block_size"], known["tokenizer"]),
            load=lambda: self.load,
        )
        self.books: dict[str, tuple[str, int, set[int]]] = {}

    def ingest(self, claim: Claim, epoch: str, seq: int, change: Delta) -> None:
        """Apply a batch to the book, then commit it: what an ingester does."""
        before = self.books.get(claim.replica)
        held = set(before[2]) if before is not None and before[0] == epoch and not change.cleared else set()
        held.difference_update(change.removed)
        held.update(change.stored)
        self.books[claim.replica] = (epoch, seq, held)
        self.pool.commit(claim, epoch, seq, change)

    def whole(self, replica: str) -> Whole:
        epoch, seq, held = self.books[replica]
        return Whole(epoch, seq, delta(stored=held, cleared=True))


def delta(
    *, stored: Iterable[int] = (), removed: Iterable[int] = (), cleared: bool = False, copies: int = 1
) -> Delta:
    """A batch in which the engine's handle of each block is its key, plus one."""
    stored, removed = array("Q", stored), array("Q", removed)
    return Delta(
        cleared=cleared,
        removed=removed,
        stored=stored,
        handles_gone=[handle_of(key) for key in removed],
        handles=[(handle_of(key), key, copies) for key in stored],
    )


def handle_of(key: int) -> int:
    return (key + 1) % 2**64


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server for all tests; each keeps to a namespace of its own."""
    server = Valkey(tmp_path_factory.mktemp("v"))
    yield server
    server.stop()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A server that a test may harm."""
    server = Valkey(tmp_path)
    yield server
    server.stop()


class Fleet:
    """Proxies of one namespace."""

    def __init__(self, valkey: Valkey, stack: AsyncExitStack) -> None:
        self.namespace = f"test-{uuid4().hex[:12]}"
        self.names = Names(self.namespace, "model")
        self.redis = valkey.client()
        self._url = valkey.url
        self._stack = stack
        stack.callback(self.redis.close)

    async def join(self, origin: str, *, synced: bool = True, **known: Any) -> Peer:
        """One more proxy, which knows all there is to know."""
        link = Link(parse(self._url))
        await link.start()
        self._stack.push_async_callback(link.close)
        peer = Peer(link, origin, namespace=self.namespace, **known)
        await peer.pool.start()
        self._stack.push_async_callback(peer.pool.close)
        if synced:
            await eventually(lambda: peer.pool.synced, f"{origin} has read everything")
        return peer

    def set_of(self, replica: str) -> set[int]:
        """What Redis says that the replica holds."""
        key = self.redis.hget(self.names.rep(replica), "r")
        members = self.redis.smembers(key) if key else ()
        return {int.from_bytes(member, "little") for member in members}

    def keys(self) -> list[bytes]:
        """Every key of the namespace."""
        return sorted(self.redis.scan_iter(f"{glob_escape(self.names.tag)}*", count=1000))


@pytest.fixture
async def fleet(valkey: Valkey) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(valkey, stack)


@pytest.fixture
async def own_fleet(own_valkey: Valkey) -> AsyncIterator[Fleet]:
    """On the server that a test may harm."""
    async with AsyncExitStack() as stack:
        yield Fleet(own_valkey, stack)
