"""Requests that have ended, told together a few times a second.

Booking and formatting a hundred records in a row costs a fraction of doing it between the steps of other
requests, whose code it pushes out of the caches. Who asks for the metrics is told of all before, so
only the log is late.

A reader that fails must never cost another reader a record, or a request its answer.
"""

from collections.abc import Callable, Sequence

from proxy.logs import RequestLog, logger
from proxy.metrics import Metrics
from proxy.record import Record

FLUSH_SECONDS = 0.1
MOST = 256
"""Records that wait before they are told without being asked."""


class Ledger:
    """Takes records, and tells metrics and log of them."""

    def __init__(self, metrics: Metrics, log: RequestLog) -> None:
        self._metrics = metrics
        self._log = log
        self._records: list[Record] = []
        self.readers: list[Callable[[Sequence[Record]], None]] = []
        """Told of the same records; they may keep them, but not their leases."""

    def add(self, record: Record) -> None:
        """A request has ended; its record does not change any more."""
        self._records.append(record)
        if len(self._records) >= MOST:
            self.flush()

    def flush(self) -> None:
        """Tell what waits."""
        records, self._records = self._records, []
        for record in records:
            self._metrics.book(record)
        self._log.write(records)
        for read in self.readers:
            try:
                read(records)
            except Exception:  # noqa: BLE001 - whatever it was, it is the reader's alone
                logger.exception("requests that ended could not be taken in by %r", read)
        for record in records:
            record.lease = None

    def page(self) -> bytes:
        """The metrics, with every request that has ended."""
        self.flush()
        return self._metrics.page()
