"""A wire between the proxy and an engine that keeps what both ends wrote, byte for byte."""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.engines.calls import port_of
from tests.support.http import Message, Reader, RequestReader, ResponseReader

PIECE = 64 * 1024


@dataclass
class Talk:
    """One connection: what the proxy wrote and what the engine wrote."""

    asked: bytearray = field(default_factory=bytearray)
    told: bytearray = field(default_factory=bytearray)


class Recorder:
    """Listens in the engine's place and passes everything on; use as an async context manager."""

    def __init__(self, engine: str) -> None:
        self._engine_port = port_of(engine)
        self._talks: list[Talk] = []
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._server.wait_closed()

    def exchange(self, path: str) -> tuple[Message, Message]:
        """The last request to this path, and its answer, as they were on the wire."""
        asked = f"POST {path} ".encode()
        talk = next(talk for talk in reversed(self._talks) if asked in talk.asked)
        return _last(RequestReader, talk.asked, asked), _last(ResponseReader, talk.told, b"HTTP/1.1 ")

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        engine, to_engine = await asyncio.open_connection("127.0.0.1", self._engine_port)
        talk = Talk()
        self._talks.append(talk)
        for source, sink, kept in ((client, to_engine, talk.asked), (engine, to_client, talk.told)):
            pump = asyncio.get_running_loop().create_task(_pump(source, sink, kept))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    try:
        while piece := await source.read(PIECE):
            kept += piece
            sink.write(piece)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


def _last(reader: type[Reader], raw: bytearray, start: bytes) -> Message:
    """The last message on a connection: the one that begins with the last `start`."""
    found = reader("POST") if reader is ResponseReader else reader()  # type: ignore[call-arg]
    assert found.feed(bytes(raw[raw.rindex(start) :]))
    return found.message
