"""Clients that ask, and ask again, for as long as a test lets them; and what became of each request."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from tests.support import dialect
from tests.support.client import Client
from tests.support.eventually import eventually
from tests.support.http import Response, request

CHAT = "/v1/chat/completions"
TOKENS = 20
MOST_SECONDS = 60.0
"""How long one answer may take before a test is broken."""


@dataclass(slots=True)
class Asked:
    """One request."""

    number: int
    proxy: int
    """The port it was sent to."""
    response: Response | None = None
    """None if the connection ended without a word."""

    @property
    def id(self) -> str:
        """As the proxy is told."""
        return f"chaos-{self.number}"

    @property
    def begun(self) -> bool:
        """Whether a replica's answer has begun."""
        return self.response is not None and self.response.status == 200

    @property
    def whole(self) -> bool:
        """Whether every token came, once and in order, and the end."""
        return self.begun and self.text == "".join(f"{number} " for number in range(TOKENS))

    @property
    def replica(self) -> str:
        assert self.response is not None
        return (self.response.one("x-warmroute-replica") or b"").decode()

    @property
    def text(self) -> str:
        """What the stream said up to its end; with a mark where it had none."""
        assert self.response is not None
        lines = [line[6:] for line in bytes(self.response.body).split(b"\n\n") if line.startswith(b"data: ")]
        said = "".join(
            choice["delta"].get("content", "")
            for line in lines
            if line != b"[DONE]" and line.endswith(b"}")
            for choice in json.loads(line)["choices"]
        )
        return said if lines and lines[-1] == b"[DONE]" and self.response.complete else f"{said}…"

    def __repr__(self) -> str:
        if self.response is None:
            return f"<{self.id}: nothing>"
        return f"<{self.id}: {self.response.status} {bytes(self.response.body)[-200:]!r}>"


class Crowd:
    """`async with Crowd(...)`: inside, they ask; at the end each waits for its last answer."""

    def __init__(self, ports: Callable[[], Sequence[int]], clients: int, *, prompts: int = 12) -> None:
        """`ports`: the proxies that are asked, in turns. Half of the prompts are of `prompts`, half new."""
        self.asked: list[Asked] = []
        """In the order in which they ended."""
        self.sent = 0
        """Requests begun; the number of the next."""
        self.whole = 0
        """Requests answered whole."""
        self._ports = ports
        self._clients = clients
        self._prompts = prompts
        self._over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._visit()) for _ in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    async def answers(self, more: int) -> None:
        """Wait until so many more requests have been answered whole."""
        before = self.whole
        await eventually(lambda: self.whole >= before + more, f"{more} more answers", within=MOST_SECONDS)

    def lost(self) -> list[Asked]:
        """Those whose answer had not begun and never came."""
        return [each for each in self.asked if not each.begun]

    def broken(self) -> list[Asked]:
        """Those whose answer began and did not end, or is not what was said."""
        return [each for each in self.asked if each.begun and not each.whole]

    async def _visit(self) -> None:
        client, connected = None, 0
        while not self._over:
            number = self.sent
            self.sent += 1
            ports = self._ports()
            port = ports[number % len(ports)]
            asked = Asked(number, port)
            words = f"prompt {number if number % 2 else number % self._prompts} " * 40
            body = dialect.body(messages=[{"role": "user", "content": words}], stream=True, max_tokens=TOKENS)
            try:
                if client is None or connected != port or client.gone.is_set():
                    client, connected = await Client.connect(port), port
                await client.send(request("POST", CHAT, body, [("X-Request-Id", asked.id)]))
                asked.response = await client.response("POST", within=MOST_SECONDS)
            except (AssertionError, OSError):  # it was cut without a word
                client = None
            else:
                if asked.response.closes or not asked.response.complete:
                    client = None
                if asked.response.status >= 500:
                    await asyncio.sleep(0.05)  # as a client that is told to come again
            self.asked.append(asked)
            self.whole += asked.whole
        if client is not None:
            client.finish()
