"""What the process says on stderr: one structured line a request, and the rest through `logging`.

Must never hold a prompt, an answer, a credential, or a name that only a client made up.
"""

import logging
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TextIO

import msgspec

from proxy.record import Record

logger = logging.getLogger("warmroute")
AT_ONCE = 4000
"""Characters, of which few need two bytes: what fits into 4096 a pipe takes whole (Linux' PIPE_BUF)."""


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
    """One line for each request that has ended."""

    def __init__(self, *, json: bool, stream: TextIO | None = None, shared: bool = False) -> None:
        """`shared`: other processes write to the same stream, and no line may be torn by theirs."""
        self._line = _json_line if json else _text_line
        self._stream = stream or sys.stderr
        self._most = AT_ONCE if shared else sys.maxsize

    def write(self, records: Sequence[Record]) -> None:
        """Write the lines of some requests, in one go where that may be."""
        if not records or not logger.isEnabledFor(logging.INFO):
            return
        lines: list[str] = []
        size = 0
        for line in map(self._line, records):
            size += len(line)
            if size > self._most and lines:
                self._flush(lines)
                lines, size = [], len(line)
            lines.append(line)
        self._flush(lines)

    def _flush(self, lines: list[str]) -> None:
        self._stream.write("".join(lines))
        self._stream.flush()


def _text_line(record: Record) -> str:
    r = record
    return (
        f"{_clock(int(r.ended))} INFO request={r.id} endpoint={r.endpoint} "
        f"model={r.model or '-'} group={r.group} priority={r.priority} status={r.status} "
        f"outcome={r.outcome} reason={r.reason or '-'} replica={r.replica or '-'} "
        f"decision={r.decision or '-'} attempts={r.attempts} stream={r.stream} "
        f"prompt_tokens={r.prompt_tokens} available_tokens={r.available_tokens} "
        f"routed_tokens={r.routed_tokens} reported_prompt_tokens={_or_dash(r.reported_prompt)} "
        f"reported_cached_tokens={_or_dash(r.reported_cached)} output_tokens={_or_dash(r.output_tokens)} "
        f"queue_ms={r.queue * 1000:.3f} overhead_ms={_ms(r.overhead)} ttft_ms={_ms(r.ttft)} "
        f"tpot_ms={_ms(r.tpot)} e2e_ms={r.e2e * 1000:.3f}\n"
    )


@lru_cache(maxsize=1)
def _clock(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))


def _or_dash(value: int | None) -> int | str:
    return "-" if value is None else value


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3f}"


def _json_line(record: Record) -> str:
    r = record
    fields = {
        "time": r.ended,
        "level": "info",
        "message": "request",
        "request": r.id,
        "endpoint": r.endpoint,
        "model": r.model,
        "group": r.group,
        "priority": r.priority,
        "status": r.status,
        "outcome": r.outcome,
        "reason": r.reason,
        "replica": r.replica,
        "decision": r.decision,
        "attempts": r.attempts,
        "stream": r.stream,
        "prompt_tokens": r.prompt_tokens,
        "available_tokens": r.available_tokens,
        "routed_tokens": r.routed_tokens,
        "reported_prompt_tokens": r.reported_prompt,
        "reported_cached_tokens": r.reported_cached,
        "output_tokens": r.output_tokens,
        "queue_ms": _rounded(r.queue),
        "overhead_ms": _rounded(r.overhead),
        "ttft_ms": _rounded(r.ttft),
        "tpot_ms": _rounded(r.tpot),
        "e2e_ms": _rounded(r.e2e),
    }
    return msgspec.json.encode(fields).decode() + "\n"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
