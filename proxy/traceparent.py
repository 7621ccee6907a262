"""W3C's `traceparent`: whose trace a request belongs to. Pure.

Source: W3C Trace Context (Recommendation, 23 November 2021), section 3.2: version, trace id, parent id and
flags, in lower-case hexadecimal; of later versions the same four fields are read, whatever follows them.
"""

import re

SAMPLED = 1
"""The only flag there is: whoever sent it records the trace."""
_FIELD = re.compile(
    rb"(?:00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    rb"|(?!00|ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?)"
)


def is_valid(field: bytes) -> bool:
    """Whether a field is to be kept as it is; if not, the trace begins anew."""
    return _FIELD.fullmatch(field) is not None


def ids(field: bytes) -> tuple[int, int]:
    """Trace id and parent id of a valid field."""
    return int(field[3:35], 16), int(field[36:52], 16)


def is_sampled(field: bytes) -> bool:
    """Whether the trace of a valid field is recorded."""
    return bool(int(field[53:55], 16) & SAMPLED)


def make(trace: str, share: int = 0) -> bytes:
    """A field for a new trace of this id: 32 random hexadecimal digits, no half of them all 0.

    It is sampled if the lower half of the id is below `share`, out of 2**64, as in OpenTelemetry's
    TraceIdRatioBased, so that all who sample by it agree. The upper half is the parent id.
    """
    flag = "01" if share and int(trace[16:], 16) < share else "00"
    return f"00-{trace}-{trace[:16]}-{flag}".encode()
