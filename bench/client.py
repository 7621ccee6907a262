"""A streaming client for measuring: sends a prepared body, notes when tokens come, keeps no text.

Never parses what it does not need: chunks are searched for a token and for the usage at the end, nothing is
decoded. Times are seconds of `time.monotonic`; the event loop's own clock is too coarse to measure with.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

CONNECT_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 300.0

_TOKEN = re.compile(rb'"(?:content|reasoning_content|reasoning|text|arguments)":\s*"(?!")')
_USAGE = re.compile(rb'"usage":\s*\{')


class Usage(msgspec.Struct):
    """What a replica said it read and wrote."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None

    @property
    def cached_tokens(self) -> int | None:
        """None if it did not say."""
        cached = (self.prompt_tokens_details or {}).get("cached_tokens")
        return cached if isinstance(cached, int) else None


class _Chunk(msgspec.Struct):
    usage: Usage | None = None


@dataclass(slots=True)
class Reply:
    """How one request went. Times are None where it did not get that far."""

    status: int | None = None
    error: str | None = None
    first_token: float | None = None
    last_token: float | None = None
    end: float | None = None
    gaps: list[float] = field(default_factory=list)
    """Seconds from each token to the next; tokens that came in one read are 0 apart."""
    usage: Usage | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Client:
    """A pool of connections without a limit. Use as an async context manager."""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=IDLE_TIMEOUT_S)
        self.session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    async def stream(
        self, url: str, body: bytes, headers: Mapping[str, str], *, timeout: float | None = None
    ) -> Reply:
        """POST `body` and read the stream to its end. Failures are part of the reply, never raised.

        `timeout`: seconds for all of it.
        """
        reply = Reply()
        try:
            async with (
                asyncio.timeout(timeout),
                self.session.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                reply.status, reply.headers = response.status, response.headers
                if response.status != 200:
                    text = await response.text(errors="replace")
                    reply.error = f"status {response.status}: {text[:200]}"
                    return reply
                await self._read(response, reply)
        except TimeoutError as error:
            reply.error = f"timeout: {str(error) or f'no whole answer within {timeout or 0:g} s'}"
        except (aiohttp.ClientError, OSError) as error:
            reply.error = f"{type(error).__name__}: {error}"
        return reply

    async def _read(self, response: aiohttp.ClientResponse, reply: Reply) -> None:
        tail = rest = b""
        async for data in response.content.iter_any():
            now = monotonic()
            whole, line_end, after = (rest + data).rpartition(b"\n")  # an event may come in two reads
            rest = after[-65536:] if line_end else rest + data
            if tokens := len(_TOKEN.findall(whole)):
                if reply.last_token is None:
                    reply.first_token = now
                else:
                    reply.gaps.append(now - reply.last_token)
                reply.gaps.extend([0.0] * (tokens - 1))
                reply.last_token = now
            tail = (tail + data)[-4096:]
        reply.end = monotonic()
        if b"[DONE]" not in tail:
            reply.error = "the stream ended without [DONE]"
        reply.usage = _last_usage(tail)
        if reply.first_token is None and reply.error is None:
            reply.error = "the stream had no token"


def _last_usage(tail: bytes) -> Usage | None:
    found = list(_USAGE.finditer(tail))
    if not found:
        return None
    at = found[-1].start()
    start = tail.rfind(b"data: ", 0, at)
    end = tail.find(b"\n", at)
    if start < 0 or end < 0:
        return None
    try:
        return msgspec.json.decode(tail[start + 6 : end], type=_Chunk).usage
    except msgspec.DecodeError:
        return None


async def until(condition: Callable[[], Any], *, timeout: float, what: str, every: float = 0.05) -> None:
    """Poll an async condition until it holds; TimeoutError with `what` if it does not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not await condition():
        if loop.time() > deadline:
            raise TimeoutError(f"{what} within {timeout:g} s")
        await asyncio.sleep(every)
