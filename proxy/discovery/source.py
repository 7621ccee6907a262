"""What a source of replicas is, and the loop that keeps one going.

A source tells the whole set each time, never a change, so that nothing it missed can stay missed. While it
cannot look, what it told last stands: an outage of DNS or of an API server takes no replica out.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.found import Found
from proxy.logs import logger

Tell = Callable[[Sequence[Found]], None]
AGAIN_SECONDS = 5.0
"""Until a source that failed in a way it did not expect is tried again."""


class Source(Protocol):
    """Knows which replicas there are."""

    kind: str
    """`dns` or `kubernetes`."""
    why: str | None
    """Why what it told last may be old; None while it is sure. Nothing secret is in it."""

    async def look(self, tell: Tell) -> None:
        """Look once, tell, and wait until it is worth looking again. Changes meanwhile are told at once."""

    def wake(self) -> None:
        """Something suggests that there are others by now: look soon."""


async def follow(source: Source, tell: Tell) -> None:
    """Look again and again, for ever."""
    while True:
        try:
            await source.look(tell)
        except Exception:  # noqa: BLE001 - a fault must not end discovery for good
            logger.exception("discovery by %s failed", source.kind)
            source.why = "it failed; the log says why"
            await asyncio.sleep(AGAIN_SECONDS)


class SourceMetrics(Collector):
    """Read when they are scraped; absent where nothing is discovered."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        up = GaugeMetricFamily(
            "warmroute_discovery_up", "1 while replicas can be looked for.", labels=["source"]
        )
        up.add_metric([self._source.kind], int(self._source.why is None))
        yield up
