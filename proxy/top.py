"""`warmroute top`: the fleet and its hit rates in a terminal, live, from a proxy's /admin.

Reads what the dashboard reads. Never changes anything at the proxy. What keeps it from showing is one
sentence on standard error; while it shows, a proxy that goes away is waited for.
"""

import asyncio
import os
import sys
import termios
import tty
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
import uvloop
from rich.console import Console, RenderableType
from rich.live import Live

from proxy.config import Settings
from proxy.figures import Frame, between
from proxy.screen import draw, plain

SPAN_SECONDS = 60.0
"""Of the counters that are shown, once it has watched for so long."""
QUIET_SECONDS = 10.0
"""Without a frame before the proxy counts as gone."""
AGAIN_SECONDS = 1.0
ASKED = ("requests", "canary", "prefixes", "breaks")
"""What is asked for with each frame."""
LONGEST_FRAME = 16 * 1024**2
_START = b"data: "


class CannotWatch(Exception):
    """Why nothing can be shown: a sentence with the fix."""


def run(settings: Settings, *, url: str | None = None, once: bool = False) -> int:
    """Show the proxy at `url`, or the one that these settings start; its exit status.

    `once`: one frame of what was counted since the proxy's start, and no more.
    """
    token = settings.admin_token
    headers = {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}
    proxy = (url or address(settings)).rstrip("/")
    try:
        return uvloop.run(_run(proxy, headers, once=once))
    except CannotWatch as error:
        sys.stderr.write(f"warmroute: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 0


def address(settings: Settings) -> str:
    """Where a proxy with these settings is reached from its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not bound
    scheme = "http" if settings.tls.cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}"


class Top:
    """What is known of a proxy that is watched."""

    def __init__(self, session: aiohttp.ClientSession, proxy: str) -> None:
        self._session = session
        self._proxy = proxy
        self._frames: deque[Frame] = deque()
        self._asked: dict[str, Frame] = {}
        self._state = ""

    async def see(self) -> None:
        """Take one frame. Raises CannotWatch, or what the connection fails with."""
        async for frame in self._follow():
            await self._take(frame)
            return
        raise CannotWatch(f"{self._proxy} ended the stream before it told anything: is it about to end?")

    async def watch(self, changed: Callable[[], None]) -> None:
        """Take frame after frame, and wait for a proxy that goes away. Raises CannotWatch."""
        while True:
            try:
                async for frame in self._follow():
                    await self._take(frame)
                    self._state = ""
                    changed()
                self._state = "the proxy has ended the stream; trying again"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if not self._frames:
                    raise CannotWatch(_unreachable(self._proxy, error)) from None
                self._state = "the proxy does not answer; trying again"
            changed()
            await asyncio.sleep(AGAIN_SECONDS)

    def screen(self, height: int) -> RenderableType:
        """What is known, in so many lines at most."""
        now, first = self._frames[-1], self._frames[0]
        span = now["at"] - first["at"] if len(self._frames) > 1 else None
        over = now if span is None else between(first, now)
        return draw(now, over, span, self._asked, height=height, state=self._state)

    async def _take(self, frame: Frame) -> None:
        self._frames.append(frame)
        while frame["at"] - self._frames[0]["at"] > SPAN_SECONDS:
            self._frames.popleft()
        for name in ASKED:
            async with self._session.get(f"{self._proxy}/admin/{name}") as response:
                self._asked[name] = await response.json() if response.status == HTTPStatus.OK else {}

    async def _follow(self) -> AsyncIterator[Frame]:
        async with self._session.get(f"{self._proxy}/admin/live") as response:
            if response.status != HTTPStatus.OK or response.content_type != "text/event-stream":
                raise CannotWatch(await _refusal(self._proxy, response))
            async for line in response.content:
                if line.startswith(_START):
                    yield msgspec.json.decode(line[len(_START) :])


async def _run(proxy: str, headers: dict[str, str], *, once: bool) -> int:
    console = Console(highlight=False)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=QUIET_SECONDS)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=LONGEST_FRAME) as session:
        top = Top(session, proxy)
        if once or not console.is_terminal:
            try:
                await top.see()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise CannotWatch(_unreachable(proxy, error)) from None
            console.print(top.screen(console.height))
            return 0
        with Live(console=console, screen=True, auto_refresh=False) as live, _pressed() as quits:

            def show() -> None:
                live.update(top.screen(console.height), refresh=True)

            watching = asyncio.ensure_future(top.watch(show))
            await asyncio.wait((watching, quits), return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching
        if quits.done():
            return 0
        await watching  # it only ends by failing
    return 0


@contextmanager
def _pressed() -> Iterator[asyncio.Future[None]]:
    """Done once q is pressed; keys are not echoed meanwhile."""
    loop = asyncio.get_running_loop()
    quits: asyncio.Future[None] = loop.create_future()
    if not sys.stdin.isatty():
        yield quits
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        if b"q" in os.read(keyboard, 64) and not quits.done():
            quits.set_result(None)

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield quits
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


async def _refusal(proxy: str, response: aiohttp.ClientResponse) -> str:
    if response.status == HTTPStatus.UNAUTHORIZED:
        return f"{proxy} does not accept the token: give its own by --admin-token or WARMROUTE_ADMIN_TOKEN"
    if response.status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
        return f"{proxy} has no /admin/live: is it a warmroute, and of this version?"
    try:
        told = msgspec.json.decode(await response.read(), type=dict[str, dict[str, Any]])
        return f"{proxy} says: {plain(told['error']['message'])}"
    except (msgspec.MsgspecError, KeyError):
        return f"{proxy} answered {response.status}"


def _unreachable(proxy: str, error: BaseException) -> str:
    why = str(error) or type(error).__name__
    return f"{proxy} cannot be watched ({plain(why)}): name a running proxy by --url"
