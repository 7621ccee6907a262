"""A simulated replica's KV events from its cache to its feed, and where it says that the feed is.

vLLM tells that its cache was cleared with the next batch that has anything else to tell, so an idle engine
says nothing of it; SGLang tells at once.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import zmq.asyncio

from bench.engine_events import Change, Dialect, Encoder
from bench.engine_feed import BUFFER_STEPS, HWM, Faults, Feed

ROWS = 50
"""Rows of ports that are tried where any will do."""


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How a replica publishes its KV events. Port 0 is a free one."""

    dialect: Dialect = "vllm"
    bytes_hashes: bool = False
    port: int = 0
    replay_port: int = 0
    buffer_steps: int = BUFFER_STEPS
    replay_topic: bool | None = None
    """Whether replayed batches carry the topic; None is what the dialect's engine does."""
    faults: Faults | None = None


class Publisher:
    """Lives as long as its replica; `open` it before the replica computes anything."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        options: EventOptions,
        *,
        host: str,
        topic: str,
        block_size: int,
        rank: int = 0,
    ) -> None:
        self._encoder = Encoder(options.dialect, block_size, bytes_hashes=options.bytes_hashes, rank=rank)
        with_topic = options.dialect == "vllm" if options.replay_topic is None else options.replay_topic
        self.feed = Feed(
            context,
            host,
            topic,
            port=options.port,
            replay_port=options.replay_port,
            buffer_steps=options.buffer_steps,
            replay_topic=with_topic,
            faults=options.faults,
        )
        self.dialect = options.dialect
        self._block_size = block_size
        self._cleared = False

    @property
    def sglang(self) -> bool:
        """Whether the engine is one of SGLang's."""
        return self._encoder.sglang

    def changed(self, changes: Sequence[Change]) -> None:
        """Publish what a step did."""
        cleared, self._cleared = self._cleared, False
        self.feed.publish(self._encoder.batch(time.time(), changes, cleared=cleared))

    def cleared(self) -> None:
        """The cache was emptied on request."""
        self._cleared = True
        if self.sglang:
            self.changed(())

    async def open(self) -> None:
        """Bind the feed."""
        await self.feed.open()

    async def close(self) -> None:
        """Unbind it; what was not told yet is never told."""
        self._cleared = False
        self._encoder.forget()
        await self.feed.close()

    # ---- where it is -------------------------------------------------------------------------------------

    def config(self) -> dict[str, Any]:
        """The engine's `--kv-events-config` with what it was left to choose filled in."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.feed.port}",
            "replay_endpoint": f"tcp://*:{self.feed.replay_port}",
            "buffer_steps": self.feed.buffer_steps,
            "hwm": HWM,
            "max_queue_size": HWM,
            "topic": self.feed.topic,
        }

    def sglang_fields(self, ranks: int) -> dict[str, Any]:
        """What SGLang's /server_info has of it: how it was configured, and what a router needs to subscribe.

        Of the first of so many ranks. Only the former names the replay endpoint.
        """
        config = self.config()
        del config["enable_kv_cache_events"]
        return {
            "kv_events_config": json.dumps(config),
            "kv_events": {
                "publisher": "zmq",
                "endpoint_host": "*",
                "endpoint_port_base": self.feed.port,
                "topic": self.feed.topic,
                "block_size": self._block_size,
                "dp_size": ranks,
            },
        }


async def open_in_a_row(publishers: Sequence[Publisher]) -> None:
    """Open the feeds of an engine's ranks: the ports of rank r are r above the first's.

    Free ports (0) are chosen so that there are as many in a row. Raises OSError.
    """
    first = publishers[0].feed
    chosen = first.port, first.replay_port
    for left in reversed(range(ROWS)):
        try:
            await publishers[0].open()
            for rank, each in enumerate(publishers[1:], 1):
                each.feed.port, each.feed.replay_port = first.port + rank, first.replay_port + rank
                await each.feed.open(patience=5.0 if all(chosen) else 0.0)
        except OSError:
            for each in publishers:
                await each.close()
            if all(chosen) or not left:
                raise
            first.port, first.replay_port = chosen
        else:
            return
