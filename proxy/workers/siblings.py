"""The other workers, as one of them sees them: all goes by way of the supervisor.

Orders, this worker's own among them, come from the supervisor in one order for all, and are carried out one
after the other. Where the supervisor has ended, this worker ends too, in an orderly way.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

from redis import exceptions

from proxy.errors import NoReplica
from proxy.logs import logger
from proxy.redis_url import Address
from proxy.shared.wire import Command
from proxy.tasks import Tasks
from proxy.workers.channel import Channel, Gone
from proxy.workers.orders import Answer, Order, carry_out
from proxy.workers.pages import Page

PUSH_SECONDS = 2.0
"""Between two tellings of what was counted: what a worker that is killed has not told is lost."""
PATIENCE = 15.0
"""Seconds for all workers to answer."""


class Siblings:
    """One worker's view."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sockets: Sequence[socket.socket]
    ) -> None:
        self.sockets = sockets
        """To listen on, with the others."""
        self.redis = Given()
        """Where the supervisor's Valkey is."""
        self.orphaned: Callable[[], None] = _nobody
        """Called when the supervisor has ended."""
        self._channel = Channel(reader, writer, self._serve)
        self._orders: asyncio.Queue[tuple[Order, asyncio.Future[Answer]]] = asyncio.Queue()
        self._tasks = Tasks()
        self._page: Callable[[], Page] = list
        self._replicas: Callable[[], list[str]] = list
        self._flushed: Callable[[str], None] = _nothing
        self._protocol: Callable[[], asyncio.Protocol]

    def listen(self) -> None:
        """Begin to hear the supervisor."""
        self._tasks.start("supervisor", self._hear())

    async def join(
        self,
        *,
        page: Callable[[], Page],
        replicas: Callable[[], list[str]],
        flushed: Callable[[str], None],
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        """Carry out what was ordered before, then be one of the workers that answer.

        `page`: what is counted here; `replicas`: those that it is counted of; `flushed`: told that an engine
        has emptied its cache; `protocol`: makes a client's connection.
        """
        self._page, self._replicas, self._flushed, self._protocol = page, replicas, flushed, protocol
        begun = self._orders.qsize()
        for _ in range(begun):
            await self._carry_out_next()
        self._tasks.start("orders", self._carry_out())
        self._tasks.every("page", PUSH_SECONDS, self.push)

    async def _hear(self) -> None:
        await self._channel.run()
        self.orphaned()

    def ready(self) -> None:
        """This worker accepts connections."""
        self._channel.tell("ready")

    def push(self) -> None:
        """Tell what was counted."""
        self._channel.tell("page", self._told())

    async def order(self, what: Order) -> Answer:
        """Have something carried out in every worker; what this one answered."""
        return Answer(*await self._call("order", what))

    async def ask(self, what: Order) -> list[Answer]:
        """What every worker answers."""
        return [Answer(*answer) for answer in await self._call("ask", what)]

    async def metrics(self) -> bytes:
        """The exposition of all workers together."""
        self.push()
        page: bytes = await self._call("metrics")
        return page

    def flushed(self, replica: str) -> None:
        """Tell the others that an engine has emptied its cache."""
        self._channel.tell("flushed", replica)

    async def close(self) -> None:
        """Say the last, and leave."""
        self.push()
        self._channel.close()
        await self._tasks.close()

    async def _call(self, what: str, details: Any = None) -> Any:
        try:
            return await self._channel.call(what, details, seconds=PATIENCE)
        except (Gone, TimeoutError) as error:
            raise NoReplica(f"the other workers cannot be asked ({error})", retry_after=1.0) from error

    def _serve(self, what: str, details: Any) -> Any:
        if what == "page":
            return self._told()
        if what == "order":
            done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            method, target, fields, body = details
            self._orders.put_nowait((Order(method, target, fields, body), done))
            return done
        if what == "flushed":
            self._flushed(details)
        elif what == "redis":
            self.redis.address = (details, 0)
        return None

    def _told(self) -> tuple[Page, list[str]]:
        return self._page(), self._replicas()

    async def _carry_out(self) -> None:
        while True:
            await self._carry_out_next()

    async def _carry_out_next(self) -> None:
        what, done = await self._orders.get()
        try:
            done.set_result(await carry_out(what, self._protocol))
        except (OSError, TimeoutError, ValueError, IndexError) as error:
            logger.exception("%s %s was not carried out", what.method, what.path)
            done.set_exception(error)


class Given:
    """A topology of one server, run by somebody else who tells where it is."""

    def __init__(self) -> None:
        self.address: Address | None = None

    async def find(self) -> frozenset[Address]:
        """Where it was said to be."""
        return frozenset((self._known(),))

    def node(self, _commands: Sequence[Command]) -> Address:
        """The server."""
        return self._known()

    def _known(self) -> Address:
        if self.address is None:
            raise exceptions.ConnectionError("the supervisor has not started the embedded Valkey yet")
        return self.address

    async def close(self) -> None:
        """There is nothing to give up."""


def _nobody() -> None:
    """Nobody is told."""


def _nothing(_: str) -> None:
    """Nothing is known yet that could be forgotten."""
