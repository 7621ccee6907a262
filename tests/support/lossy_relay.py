"""A TCP relay over a line that loses packets, as both ends' programs see it: late, never out of order.

TCP makes good what is lost: a segment that did not come is sent again after a time-out, which doubles each
time, and what follows waits behind it. So a loss is a delay of at least `TIMEOUT`, in that direction of that
connection. That is the worst of it: a sender in full flow is told of a loss sooner.
"""

import asyncio
from random import Random

from tests.support.tcp_relay import Relay

SEGMENT = 1460
"""Bytes of a segment on Ethernet, of IPv4."""
TIMEOUT = 0.2
"""Seconds until the first retransmission: Linux' least."""


class LossyRelay(Relay):
    """Loses this share of the segments, each transmission by itself, under a seed."""

    def __init__(self, target: int, *, loss: float = 0.0, seed: int = 0) -> None:
        super().__init__(target)
        self.loss = loss
        self.lost = 0
        """Transmissions lost so far."""
        self._random = Random(seed)

    async def _pump(self, reader: asyncio.StreamReader, write) -> None:
        while segment := await reader.read(SEGMENT):
            timeout = TIMEOUT
            while self._random.random() < self.loss:
                self.lost += 1
                await asyncio.sleep(timeout)
                timeout *= 2
            write(segment)
