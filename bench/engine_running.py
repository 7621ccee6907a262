"""A simulated replica that listens, and can lose its listener, its connections and its feed, and regain them.

`restart` is what a router sees of a process that ended and came back on the same ports: connections reset, an
empty cache, another start time in /metrics, counters and event sequence numbers from zero.

It may have data-parallel ranks, as an engine has them: one port, and for each rank a cache of its own and a
feed on the ports so far above the first's.
"""

import asyncio
import socket
from dataclasses import replace
from typing import Any

import zmq.asyncio
from aiohttp import web

from bench.engine_app import application
from bench.engine_controls import Controls
from bench.engine_feed import Feed
from bench.engine_prompt import EnginePrompt
from bench.engine_publisher import EventOptions, Publisher, open_in_a_row
from bench.engine_replica import Identity, Replica
from bench.profiles import EngineSpec


class RunningReplica:
    """One replica on one port, from `start` to `close`."""

    def __init__(
        self,
        spec: EngineSpec,
        prompt: EnginePrompt,
        identity: Identity,
        *,
        host: str,
        port: int,
        events: EventOptions | None = None,
        context: zmq.asyncio.Context | None = None,
        ranks: int = 1,
    ) -> None:
        """Take the port (0 is a free one), but answer nothing yet. `events` need a `context`."""
        self._host = host
        self._listener: socket.socket | None = socket.create_server((host, port), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.ranks: list[Replica] = []
        for rank in range(ranks):
            publisher = None
            if events is not None and context is not None:
                publisher = Publisher(
                    context,
                    replace(events, faults=events.faults and replace(events.faults)),
                    host=host,
                    topic=f"kv@{host}:{self.port}@{identity.model}",
                    block_size=spec.block_size,
                    rank=rank,
                )
            self.ranks.append(Replica(spec, prompt, identity, publisher))
            self.ranks[rank].ranks = self.ranks
        self.replica = self.ranks[0]
        """The first rank, which stands for all where there is only one."""
        app = application(self.replica)
        app.add_routes(Controls(self).routes)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        self._site: web.SockSite | None = None
        self._restarts: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self._host}:{self.port}"

    @property
    def publisher(self) -> Publisher | None:
        """Of its KV events."""
        return self.replica.publisher

    @property
    def publishers(self) -> list[Publisher]:
        """Those of all its ranks."""
        return [rank.publisher for rank in self.ranks if rank.publisher is not None]

    @property
    def feed(self) -> Feed:
        """Its event feed; AttributeError if it publishes nothing."""
        if self.publisher is None:
            raise AttributeError("this replica publishes no KV events")
        return self.publisher.feed

    async def start(self) -> None:
        """Bind the feed and answer requests."""
        await self._runner.setup()
        await self._listen()

    async def stop(self, *, spare: asyncio.BaseProtocol | None = None) -> None:
        """As a killed process: nothing listens or publishes, every connection but `spare` is reset."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        if self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection is not spare and connection.transport is not None:
                    connection.transport.abort()
        await self._hush()

    async def _hush(self) -> None:
        """Nothing goes on, and nothing is published."""
        for rank in self.ranks:
            rank.close()
        for publisher in self.publishers:
            await publisher.close()

    async def restart(self, down_s: float = 0.0, *, spare: asyncio.BaseProtocol | None = None) -> None:
        """End, be away for `down_s` seconds, and begin anew on the same ports."""
        await self.stop(spare=spare)
        await asyncio.sleep(down_s)
        for rank in self.ranks:
            rank.begin()
            rank.started = self.replica.started
        self._listener = await self._same_port()
        await self._listen()

    def restart_soon(self, down_s: float, *, spare: asyncio.BaseProtocol | None = None) -> None:
        """Begin a restart that does not end with who asked for it."""
        task = asyncio.get_running_loop().create_task(self.restart(down_s, spare=spare))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def close(self) -> None:
        """Free everything."""
        for task in list(self._restarts):
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        await self._runner.cleanup()
        await self._hush()
        if self._listener is not None:
            self._listener.close()

    async def _same_port(self, patience: float = 5.0) -> socket.socket:
        """Listen where it did; the event loop closes the old listener only in one of its next turns."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            try:
                return socket.create_server((self._host, self.port), backlog=1024)
            except OSError:
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(0.01)

    async def _listen(self) -> None:
        assert self._listener is not None
        if self.publishers:
            await open_in_a_row(self.publishers)
        listener, self._listener = self._listener, None
        self._site = web.SockSite(self._runner, listener)
        await self._site.start()

    def describe_events(self) -> dict[str, Any] | None:
        """The dialect and the endpoints of its events, for people."""
        if self.publisher is None:
            return None
        host, feed = self._host, self.feed
        return {
            "dialect": self.publisher.dialect,
            "live": f"tcp://{host}:{feed.port}",
            "replay": f"tcp://{host}:{feed.replay_port}",
        }
