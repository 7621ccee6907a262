"""What an operator asks of all workers: a request under /admin, carried out in each as if it had come there.

Pure but for `carry_out`, which hands a request to this process' own listener over a pair of sockets.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from proxy.http1 import HOP_BY_HOP

SECONDS = 10.0
"""That one worker may take."""
_NOT_PASSED_ON = HOP_BY_HOP | {b"content-length", b"expect"}
_REPLICAS = "/admin/replicas"


class Order(NamedTuple):
    """A request as it came to one worker."""

    method: str
    target: str
    fields: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def path(self) -> str:
        """Without the query."""
        return self.target.partition("?")[0]


class Answer(NamedTuple):
    """What a worker said to it."""

    status: int
    kind: bytes
    """Its content type; empty if there is no body."""
    body: bytes


def order(method: str, target: str, fields: Iterable[tuple[bytes, bytes]], body: bytes) -> Order:
    """Of what came; fields that belong to the client's connection are left out."""
    kept = [(name, value) for name, value in fields if name.lower() not in _NOT_PASSED_ON]
    return Order(method, target, kept, body)


class Journal:
    """The orders that a worker which begins later has to carry out too, in order.

    Bounded by what they are about: of those for one replica, or at one other path, the latest that matter.
    """

    def __init__(self) -> None:
        self._orders: dict[str, list[Order]] = {}

    def __iter__(self) -> Any:
        return (each for orders in self._orders.values() for each in orders)

    def note(self, what: Order, answer: Answer) -> None:
        """An order was carried out. A flush is none for who knows nothing yet."""
        path = what.path
        if path == "/admin/flush" or _is_a_step(what):
            return
        if not path.startswith(_REPLICAS):
            self._orders.pop(path, None)
            self._orders[path] = [what]
            return
        name, rest = _replica(what, answer)
        known = self._orders.setdefault(f"{_REPLICAS}/{name}", [])
        if rest == "drain":
            known[:] = [each for each in known if not each.path.endswith("/drain")]
            if what.method == "POST":
                known.append(what)
        elif what.method == "DELETE":
            known[:] = [what]
        else:
            known.append(what)


def _is_a_step(what: Order) -> bool:
    """Whether it changes the stage of a canary, which a worker that begins reads in Redis."""
    if what.path != "/admin/canary" or what.method != "POST":
        return False
    return bool({"action", "percent"} & msgspec.json.decode(what.body).keys())


def _replica(what: Order, answer: Answer) -> tuple[str, str]:
    """The engine that an order is about, and what follows its name in the path."""
    parts = urlsplit(what.target)
    name, _, rest = parts.path.removeprefix(_REPLICAS).removeprefix("/").partition("/")
    if name:
        return unquote(name), rest
    if what.method == "POST":
        return str(msgspec.json.decode(answer.body)["name"]), ""
    query = dict(pair.partition("=")[::2] for pair in parts.query.split("&"))
    return unquote(query.get("name", "")), ""


async def carry_out(what: Order, protocol: Callable[[], asyncio.Protocol]) -> Answer:
    """Hand an order to a listener of this process, and read its answer. Raises OSError, TimeoutError."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(protocol, theirs)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        writer.write(_request(what))
        async with asyncio.timeout(SECONDS):
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status, *fields = head.split(b"\r\n")
    kinds = [value.strip() for name, _, value in _split(fields) if name.lower() == b"content-type"]
    return Answer(int(status.split(b" ")[1]), kinds[0] if kinds else b"", body)


def _split(fields: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    return [field.partition(b":") for field in fields]


def _request(what: Order) -> bytes:
    lines = [f"{what.method} {what.target} HTTP/1.1".encode()]
    lines += [name + b": " + value for name, value in what.fields]
    lines += [b"Connection: close", b"Content-Length: %d" % len(what.body), b"", what.body]
    return b"\r\n".join(lines)
