"""What the process says on stderr: one structured line a request, and the rest through `logging`.

Must never hold a prompt, an answer, a credential, or a name that only a client made up.
"""

import logging
import sys
import time
from typing import TextIO

import msgspec

from proxy.record import Record

logger = logging.getLogger("warmroute")


def configure(*, json: bool, level: str) -> None:
    """Send the process's log to stderr in the chosen form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine() if json else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logger.setLevel(level.upper())


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class RequestLog:
    """Writes one line for each request that has ended; a line is built only if it is written."""

    def __init__(self, *, json: bool, stream: TextIO | None = None) -> None:
        self._json = json
        self._stream = stream or sys.stderr

    def write(self, record: Record) -> None:
        """Write the line of one request."""
        if not logger.isEnabledFor(logging.INFO):
            return
        fields = {
            "request": record.id,
            "endpoint": record.endpoint,
            "model": record.model,
            "group": record.group,
            "priority": record.priority,
            "status": record.status,
            "outcome": record.outcome,
            "reason": record.reason,
            "replica": record.replica,
            "decision": record.decision,
            "attempts": record.attempts,
            "stream": record.stream,
            "prompt_tokens": record.prompt_tokens,
            "available_tokens": record.available_tokens,
            "routed_tokens": record.routed_tokens,
            "reported_prompt_tokens": record.reported_prompt,
            "reported_cached_tokens": record.reported_cached,
            "output_tokens": record.output_tokens,
            "queue_ms": _ms(record.queue),
            "overhead_ms": _ms(record.overhead),
            "ttft_ms": _ms(record.ttft),
            "tpot_ms": _ms(record.tpot),
            "e2e_ms": _ms(record.e2e),
        }
        if self._json:
            head = {"time": time.time(), "level": "info", "message": "request"}
            self._stream.write(msgspec.json.encode(head | fields).decode() + "\n")
            return
        words = " ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
        self._stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} INFO {words}\n")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
