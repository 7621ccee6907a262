"""A replica whose every byte a test decides.

It answers what the proxy asks of a vLLM by itself (`/v1/models`, `/metrics`, `/health`) and a chat or
completion with a small JSON answer that reports usage. A test replaces any of that with a coroutine
function of one `Exchange`, and reads afterwards what arrived. A request that a strict server would refuse
is kept in `violations`, which the fixture requires to be empty.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from tests.support.eventually import eventually, turns
from tests.support.http import MalformedError, Request, RequestReader, chunked, head
from tests.support.wire import Wire

Behaviour = Callable[["Exchange"], Awaitable[None]]

INTERNAL = {
    "/v1/models",
    "/metrics",
    "/health",
    "/version",
    "/load",
    "/props",
    "/server_info",
    "/kv_event_sources",
}
"""What only the proxy itself asks for; everything else counts as a client's request."""

TEXT = ("Content-Type", "text/plain; version=0.0.4")
METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="4096"} 1.0
"""


def usage(prompt: int = 32, cached: int | None = 16, completion: int = 2) -> dict[str, Any]:
    """Usage as vLLM reports it; `cached` None is a report without details."""
    details = None if cached is None else {"cached_tokens": cached}
    total = prompt + completion
    return {
        "prompt_tokens": prompt,
        "total_tokens": total,
        "completion_tokens": completion,
        "prompt_tokens_details": details,
    }


class Exchange:
    """One request, and the pen for its answer."""

    def __init__(self, request: Request, wire: Wire) -> None:
        self.request = request
        self.wire = wire

    @property
    def gone(self) -> asyncio.Event:
        """Set when the proxy has left."""
        return self.wire.gone

    async def send(self, *cuts: bytes) -> None:
        """Write each cut so that it arrives in a read of its own."""
        for cut in cuts:
            await self.wire.send(cut)
            await turns()

    async def head(self, status: str = "200 OK", headers: Sequence[tuple[str, str | int]] = ()) -> None:
        await self.send(head(f"HTTP/1.1 {status}", headers))

    async def answer(
        self, body: bytes, status: str = "200 OK", headers: Sequence[tuple[str, str | int]] = ()
    ) -> None:
        """A whole answer, framed by Content-Length."""
        await self.send(head(f"HTTP/1.1 {status}", [*headers, ("Content-Length", len(body))]) + body)

    async def json(self, value: Any, status: str = "200 OK") -> None:
        await self.answer(json.dumps(value).encode(), status, [("Content-Type", "application/json")])

    async def open_stream(self, *headers: tuple[str, str | int]) -> None:
        """The head of a chunked event stream."""
        kind = ("Content-Type", "text/event-stream; charset=utf-8")
        await self.head(headers=[kind, *headers, ("Transfer-Encoding", "chunked")])

    async def event(self, *events: bytes) -> None:
        """Each in a chunk and a read of its own."""
        await self.send(*(chunked(event, end=b"") for event in events))

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def stream(self, *events: bytes) -> None:
        """A whole event stream."""
        await self.open_stream()
        await self.event(*events)
        await self.end_stream()

    def reset(self) -> None:
        self.wire.reset()

    def finish(self) -> None:
        self.wire.finish()

    async def hang(self) -> None:
        """Say no more until the proxy leaves."""
        await self.wire.gone.wait()


class _Connection(Wire):
    def __init__(self, upstream: "Upstream") -> None:
        super().__init__()
        self.upstream = upstream
        self.number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.number = len(self.upstream.connections)
        self.upstream.connections.append(self)
        self.upstream._spawn(self._serve())

    async def _serve(self) -> None:
        start = 0
        try:
            while (request := await self._next(start)) is not None:
                start += len(request.raw)
                await self.upstream._answer(Exchange(request, self))
        except MalformedError as error:
            self.upstream.violations.append(f"{error}: {bytes(self.received[start:][:300])!r}")
            self.transport.abort()

    async def _next(self, start: int) -> Request | None:
        reader, read = RequestReader(), start
        while reader.used is None:
            if read < len(self.received):
                fresh = bytes(self.received[read:])
                read += len(fresh)
                reader.feed(fresh)
                hasty = reader.begun and reader.message.path not in INTERNAL
                if self.upstream.on_head is not None and hasty:
                    self.upstream.requests.append(reader.message)
                    reader.message.connection = self.number
                    await self.upstream.on_head(Exchange(reader.message, self))
                    return None
            elif self.gone.is_set():
                return None
            else:
                await self.arrival(within=3600)
        request = reader.message
        request.raw = bytes(self.received[start : start + reader.used])
        request.connection = self.number
        return request


class Upstream:
    """A listening replica on a loopback address; `async with` it."""

    def __init__(
        self,
        *,
        model: str = "m",
        host: str | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`host` is what its URL says, the address unless given."""
        self.tls = tls
        self.model = model
        self.address = address
        self.host = host or address
        self.port = port
        self.requests: list[Request] = []
        """Clients' requests, in order; those the proxy makes for itself are in `internal`."""
        self.internal: list[Request] = []
        self.connections: list[_Connection] = []
        self.violations: list[str] = []
        self.faults: list[BaseException] = []
        self.keep_alive = True
        """False closes each connection after its answer, so that each request comes on a fresh one."""
        self.behaviour: Behaviour = type(self).reply
        self.on_head: Behaviour | None = None
        """Answers a client's request when only its head is there; nothing answers it after that."""
        self.paths: dict[str, Behaviour] = {
            "/v1/models": self._models,
            "/metrics": lambda exchange: exchange.answer(METRICS.encode(), "200 OK", [TEXT]),
            "/health": lambda exchange: exchange.answer(b""),
            "/kv_event_sources": lambda exchange: exchange.answer(b"", "404 Not Found"),
        }
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self.connections:
            connection.transport.abort()
        await turns()

    async def listen(self) -> None:
        """Listen, on the port it had before if it had one."""
        loop = asyncio.get_running_loop()
        listening = socket.create_server((self.address, self.port))
        self.port = listening.getsockname()[1]
        self._server = await loop.create_server(lambda: _Connection(self), sock=listening, ssl=self.tls)

    async def stop_listening(self) -> None:
        """Refuse new connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def die(self) -> None:
        """As a killed process: nothing listens any more, and every connection is reset."""
        await self.stop_listening()
        for connection in self.connections:
            if not connection.gone.is_set():
                connection.reset()

    async def arrived(self, count: int = 1) -> Request:
        """Wait for that many client requests; the last of them."""
        await eventually(lambda: len(self.requests) >= count, f"{count} requests at {self.url}")
        return self.requests[count - 1]

    @property
    def last(self) -> Request:
        return self.requests[-1]

    @staticmethod
    async def reply(exchange: Exchange) -> None:
        """A chat or text completion of two tokens, streamed where the request asks for it."""
        await exchange.json(
            {
                "id": "cmpl-1",
                "object": "chat.completion",
                "model": "m",
                "choices": [
                    {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
                ],
                "usage": usage(),
            }
        )

    async def _models(self, exchange: Exchange) -> None:
        card = {"id": self.model, "object": "model", "owned_by": "vllm", "root": self.model, "parent": None}
        await exchange.json({"object": "list", "data": [{**card, "created": 1, "max_model_len": 131072}]})

    async def _answer(self, exchange: Exchange) -> None:
        path = exchange.request.path
        (self.internal if path in INTERNAL else self.requests).append(exchange.request)
        try:
            await self.paths.get(path, self.behaviour)(exchange)
        except Exception as fault:
            self.faults.append(fault)
            exchange.reset()
        if not self.keep_alive:
            exchange.finish()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
