"""Hides the usage chunk that the proxy asked for from a client that did not.

A client that did not ask for usage indexes `choices[0]` of every event, so an event whose `choices` is empty
must not reach it. Everything else passes byte for byte and at once: bytes are held back only while they are
the start of an event that may still turn out to be that chunk. Pure; the relay owns the timer.
"""

import re

import msgspec

HOLD_SECONDS = 0.02
"""How long the start of an event may be held before a finish reason was seen: engines write the usage chunk
after it and in one piece, so a held start is otherwise a token on its way."""

_EMPTY = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_FILLED = re.compile(rb'"choices"\s*:\s*\[\s*[^\]\s]')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LONGEST_END = 4
MAX_HELD = 65536
"""Bytes of one event that are held at most: a usage chunk has a few hundred."""
_FINISH_BYTES = 32
"""Enough of what was sent to find a finish reason that was cut in two."""
_DATA = re.compile(rb"^data:(.*)$", re.MULTILINE)


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: msgspec.Raw


_decode = msgspec.json.Decoder(_Chunk).decode


class UsageFilter:
    """Takes a stream of events in, gives it out without the usage-only one."""

    __slots__ = ("_finished", "_held", "_passing", "_sent", "_tail")

    def __init__(self) -> None:
        self._held = b""  # the undecided start of an event
        self._passing = False  # the rest of this event passes
        self._tail = b""  # its last bytes, in case the end of the event is cut in two
        self._finished = False
        self._sent = b""  # the last bytes sent, until a finish reason was seen

    @property
    def holding(self) -> bool:
        """Whether bytes are held that a timer should release."""
        return bool(self._held) and not self._finished

    def feed(self, payload: bytes) -> bytes:
        """Take in payload bytes; give those that may be sent now."""
        if not self._held and not self._passing and payload.endswith(b"\n\n") and not _EMPTY.search(payload):
            self._look_for_finish(payload)
            return payload  # the usual case: whole events, and none of them the usage chunk
        return self._feed(payload)

    def release(self) -> bytes:
        """Give what is held: the stream ends here, or has waited long enough."""
        held, self._held = self._held, b""
        if held:
            self._passing, self._tail = True, held[1 - _LONGEST_END :]
            self._look_for_finish(held)
        return held

    def _look_for_finish(self, sent: bytes) -> None:
        if not self._finished:
            seen = self._sent + sent
            self._finished = _FINISH.search(seen) is not None
            self._sent = seen[-_FINISH_BYTES:]

    def _feed(self, payload: bytes) -> bytes:
        out: list[bytes] = []
        rest = payload
        while rest:
            if self._passing:
                carried = len(self._tail)
                end = _END.search(self._tail + rest)
                if end is None:
                    out.append(rest)
                    self._tail = (self._tail + rest)[1 - _LONGEST_END :]
                    break
                cut = end.end() - carried
                out.append(rest[:cut])
                rest, self._tail, self._passing = rest[cut:], b"", False
                continue
            event, self._held = self._held + rest, b""
            end = _END.search(event)
            if end is not None:
                event, rest = event[: end.end()], event[end.end() :]
                if not _is_usage_only(event):
                    out.append(event)
                continue
            if len(event) <= MAX_HELD and _may_be_usage(event):
                self._held = event
            else:
                out.append(event)
                self._passing, self._tail = True, event[1 - _LONGEST_END :]
            break
        sent = b"".join(out)
        self._look_for_finish(sent)
        return sent


def _may_be_usage(start: bytes) -> bool:
    """Whether an event that begins so may be the usage chunk: no comment, and its choices not seen filled."""
    return not start.startswith(b":") and _FILLED.search(start) is None


def _is_usage_only(event: bytes) -> bool:
    if _EMPTY.search(event) is None:
        return False
    try:
        chunk = _decode(b"\n".join(_DATA.findall(event)))
    except (msgspec.MsgspecError, RecursionError):
        return False
    return not chunk.choices and bytes(chunk.usage) != b"null"
