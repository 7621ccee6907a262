"""Whoever is told of requests that have ended, put together: insights, recent ones, the recorder, tracing.

All read the ledger's batches, a few times a second, and none is on a request's path. But for the recent
requests, each is there only if the settings ask for it.
"""

import asyncio
from contextlib import AsyncExitStack

from proxy.config import Settings
from proxy.exchange import Exchanges
from proxy.insights import Insights
from proxy.ledger import Ledger
from proxy.metrics import Metrics
from proxy.recent import Recent
from proxy.recorder import Recorder
from proxy.router import Router


class Observers:
    """Each built once, fed from the ledger."""

    def __init__(
        self, settings: Settings, main: Router, metrics: Metrics, ledger: Ledger, exchanges: Exchanges
    ) -> None:
        self.insights = Insights(settings, main, metrics, ledger, exchanges)
        self._recorder = None
        if settings.record is not None:
            self._recorder = Recorder(settings.record, settings.record_mb << 20)
            ledger.readers.append(self._recorder.read)
            metrics.register(self._recorder)
        self._tracing = None
        if settings.tracing.endpoint is not None:
            from proxy.tracing import Tracing  # noqa: PLC0415 - an extra

            self._tracing = Tracing(settings.tracing.endpoint)
            ledger.readers.append(self._tracing.read)
            metrics.register(self._tracing)
        self.recent = Recent(lambda: self.insights.trials.routers)
        ledger.readers.append(self.recent.read)

    def end(self, last: AsyncExitStack) -> None:
        """Have what they hold written when the stack is unwound."""
        if self._tracing is not None:
            last.push_async_callback(asyncio.to_thread, self._tracing.close)
        if self._recorder is not None:
            last.push_async_callback(asyncio.to_thread, self._recorder.close)
