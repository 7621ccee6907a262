"""The process from its start to its exit: signals, and what they mean.

SIGTERM begins an orderly end, which lets load balancers notice first; SIGINT begins it without that; another
signal ends what is left at once. Whatever asked for the end, its exit status is 0; 1 means that the proxy
could not start.
"""

import asyncio
import gc
import signal
import sys
from functools import partial

import uvloop

from proxy import huge_pages, logs
from proxy.app import Proxy
from proxy.config import Settings
from proxy.logs import logger
from proxy.shared.base import Disagreement
from proxy.workers.siblings import Siblings

COLLECT_EVERY = 50_000
"""Objects made and not freed before the collector looks for cycles: at the default of 700 it takes a tenth
of the time, for requests that leave no cycles behind."""


def run(settings: Settings) -> int:
    """Serve until told to stop; the process's exit status."""
    logs.configure(json=settings.log_format == "json", level=settings.log_level)
    return uvloop.run(serve(settings))


async def serve(settings: Settings, siblings: Siblings | None = None) -> int:
    """The same on the running event loop, alone or as one of several workers."""
    if siblings is not None:
        siblings.listen()
    proxy = Proxy(settings, siblings=siblings)
    told = asyncio.Event()
    signals: list[int] = []

    def take(number: int) -> None:
        if signals:
            proxy.hurry()
        signals.append(number)
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, take, number)
    if siblings is not None:
        siblings.orphaned = partial(take, signal.SIGINT)
    try:
        if not await _unless(told, proxy):
            return 0
    except Disagreement as error:
        logger.error("not starting: %s", error)
        return 1
    except OSError as error:
        logger.error(
            "cannot listen on %s:%d (%s): choose another WARMROUTE_PORT", settings.host, settings.port, error
        )
        return 1
    if siblings is not None:
        siblings.ready()
    else:
        print(f"listening on {proxy.url}", file=sys.stderr, flush=True)  # noqa: T201 - for whoever started it
    gc.collect()
    gc.freeze()  # what was built at the start lives as long as the process
    gc.set_threshold(COLLECT_EVERY, 20, 50)
    huge_pages.ask(at_once=True)
    await told.wait()
    delay = settings.shutdown_delay if signals == [signal.SIGTERM] else 0.0
    logger.info(
        "stopping: new connections are taken for %g s more, then requests in flight have %g s; "
        "another signal ends them",
        delay,
        settings.shutdown_grace,
    )
    await proxy.close(grace=settings.shutdown_grace, delay=delay)
    if siblings is not None:
        await siblings.close()
    logger.info("stopped, with %d sequences in flight", proxy.in_flight)
    return 0


async def _unless(told: asyncio.Event, proxy: Proxy) -> bool:
    """Start, unless told to stop meanwhile; whether it runs."""
    starting = asyncio.ensure_future(proxy.__aenter__())
    stopping = asyncio.ensure_future(told.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done() and starting.exception() is None:
        return True
    starting.cancel()
    await asyncio.wait((starting,))
    await proxy.close(grace=0.0)
    if not starting.cancelled():
        await starting
    return False
