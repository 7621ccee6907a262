"""WARMROUTE_WORKERS=N: N processes on one port, each a whole proxy, and this one, which serves nobody.

It holds the listening socket, so that no connection is lost while a worker is away, runs the embedded Valkey
through which they share their index, loads and rates, starts a worker anew that has ended, passes orders on
in one order for all, and keeps what dead workers have counted. A signal that it gets is theirs. Must do
nothing on a request's path: it may stand still for seconds and no client notices.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable
from time import monotonic
from typing import Any

import uvloop
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from proxy import logs, redis_url
from proxy.config import Settings
from proxy.logs import logger
from proxy.shared.client import Link
from proxy.workers.channel import Gone
from proxy.workers.child import Child
from proxy.workers.orders import Answer, Journal, Order
from proxy.workers.pages import Pages
from proxy.workers.share import share

PATIENCE = 10.0
"""Seconds that a worker may take for an order, or to be asked."""
SCRAPE_SECONDS = 2.0
"""Seconds that it may take to tell what it counts; else what it told last counts."""
FIRST_DELAY, LAST_DELAY = 0.1, 10.0
"""Seconds before a worker is started again: doubled each time that one did not last."""
LASTING = 30.0
"""Seconds after which a worker has lasted."""


def run(settings: Settings) -> int:
    """Serve until told to stop; the process's exit status."""
    logs.configure(json=settings.log_format == "json", level=settings.log_level)
    return uvloop.run(Supervisor(settings).run())


class Supervisor:
    """The workers, and what is kept for all of them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sockets: list[socket.socket] = []
        self._children: dict[int, Child] = {}
        self._link: Link | None = None
        self._valkey = ""
        """Path of the embedded server's socket, once there is one."""
        self._pages = Pages()
        self._journal = Journal()
        self._ordering = asyncio.Lock()
        self._restarts = 0
        self._serving = asyncio.Event()
        """Set once every worker has been ready; a worker that cannot start before that ends the start."""
        self._refused = False
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """From the start to the end."""
        settings = self._settings
        try:
            self._sockets = await bound(settings.host, settings.port)
        except OSError as error:
            place = f"{settings.host}:{settings.port}"
            logger.error("cannot listen on %s (%s): choose another WARMROUTE_PORT", place, error)
            return 1
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if redis_url.parse(settings.redis_url).kind == "embedded":
            self._link = Link(redis_url.parse(settings.redis_url))
            self._link.on_up(self._valkey_is_up)
            await self._link.start()
        keeping = [asyncio.ensure_future(self._keep(number)) for number in range(settings.workers)]
        announcing = asyncio.ensure_future(self._announce())
        try:
            await asyncio.gather(*keeping)
        finally:
            announcing.cancel()
            if self._link is not None:
                await self._link.close()
        logger.info("all workers have stopped")
        return int(self._refused)

    def _signalled(self, number: signal.Signals) -> None:
        """Pass it on; a worker knows what a first and a second one mean."""
        self._ending.set()
        for each in self._sockets:  # the workers have it still, for as long as they accept
            each.close()
        for child in self._children.values():
            child.signal(number)

    async def _announce(self) -> None:
        await self._serving.wait()
        host, port = self._settings.host, self._sockets[0].getsockname()[1]
        scheme = "http" if self._settings.tls.cert is None else "https"
        place = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"listening on {place}", file=sys.stderr, flush=True)  # noqa: T201 - for whoever started it

    async def _keep(self, number: int) -> None:
        """See that there is a worker of this number, until the end."""
        delay = FIRST_DELAY
        while True:
            began = monotonic()
            status, who = await self._live(number)
            if self._ending.is_set():
                return
            if status == 1 and not self._serving.is_set():  # it has said why
                self._refused = True
                self._signalled(signal.SIGTERM)
                return
            self._restarts += 1
            logger.warning("%s has ended with status %d: another takes its place", who, status)
            delay = FIRST_DELAY if monotonic() - began > LASTING else min(2 * delay, LAST_DELAY)
            try:
                async with asyncio.timeout(delay):
                    await self._ending.wait()
            except TimeoutError:
                pass
            else:
                return

    async def _live(self, number: int) -> tuple[int, str]:
        """One worker from its start to its end: its exit status, and what to call it."""
        try:
            child = await Child.start(number, share(self._settings, number), self._sockets, self._serve)
        except (OSError, ValueError) as error:  # no room for a process, or the sockets were just closed
            logger.error("worker %d cannot be started: %s", number, error)
            return -1, f"worker {number}"
        await self._take_in(child)
        if self._ending.is_set():
            child.signal(signal.SIGTERM)
        status = await child.ended()
        self._pages.end(child.page)
        del self._children[number]
        return status, f"worker {number} (pid {child.pid})"

    async def _take_in(self, child: Child) -> None:
        """Tell a new worker what the others know, between two orders; it hears all that follow."""
        async with self._ordering:
            self._children[child.number] = child
            if self._valkey:
                child.channel.tell("redis", self._valkey)
            for order in self._journal:
                child.channel.tell("order", order)

    def _valkey_is_up(self) -> None:
        assert self._link is not None
        ((self._valkey, _),) = self._link.addresses
        for child in self._children.values():
            child.channel.tell("redis", self._valkey)

    # ---- what workers ask ---------------------------------------------------------------------------------

    def _serve(self, child: Child, what: str, details: Any) -> Awaitable[Any] | None:
        if what == "ready":
            child.ready = True
            logger.info("worker %d (pid %d) serves", child.number, child.pid)
            if len(self._living) == self._settings.workers:
                self._serving.set()
        elif what == "page":
            child.take(details)
        elif what == "flushed":
            for other in self._living:
                if other is not child:
                    other.channel.tell("flushed", details)
        elif what == "order":
            return self._order(child, Order(*details))
        elif what == "ask":
            return self._ask(Order(*details))
        elif what == "metrics":
            return self._metrics()
        return None

    @property
    def _living(self) -> list[Child]:
        return [child for child in self._children.values() if child.ready]

    async def _order(self, by: Child, what: Order) -> Answer:
        """Have every worker carry something out; what the one answered that was asked."""
        async with self._ordering:
            children = list(self._children.values())
            for child in children:
                if not child.ready and child is not by:  # it will, before it accepts connections
                    child.channel.tell("order", what)
            others = [self._carried_out(child, what) for child in children if child.ready and child is not by]
            answer, *_ = await asyncio.gather(self._carried_out(by, what), *others)
            if answer is None:
                raise Gone("the worker that was asked has ended")
            if answer.status < 400:
                self._journal.note(what, answer)
            return answer

    async def _ask(self, what: Order) -> list[Answer]:
        answers = await asyncio.gather(*(self._carried_out(child, what) for child in self._living))
        return [answer for answer in answers if answer is not None]

    async def _carried_out(self, child: Child, what: Order) -> Answer | None:
        try:
            return Answer(*await child.channel.call("order", what, seconds=PATIENCE))
        except (Gone, TimeoutError) as error:
            logger.warning("worker %d: %s %s: %s", child.number, what.method, what.path, error or "no answer")
            return None

    async def _metrics(self) -> bytes:
        """What all workers count together."""
        await asyncio.gather(*(self._look(child) for child in self._living))
        living = self._living
        self._pages.know(name for child in living for name in child.replicas)
        workers = GaugeMetricFamily("warmroute_workers", "Worker processes that serve.", len(living))
        text = "Times that a worker ended and another took its place."
        restarts = CounterMetricFamily("warmroute_worker_restarts", text, self._restarts)
        return self._pages.text([child.page for child in living], workers, restarts)

    async def _look(self, child: Child) -> None:
        try:
            child.take(await child.channel.call("page", seconds=SCRAPE_SECONDS))
        except (Gone, TimeoutError):
            pass


async def bound(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a host, all on one port, to be listened on. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, proto, _, address in dict.fromkeys(found):
            each = socket.socket(family, kind, proto)
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.setblocking(False)
            each.bind((address[0], port or sockets[0].getsockname()[1], *address[2:]))
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets
