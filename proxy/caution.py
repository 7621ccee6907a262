"""Why a replica is given less new work than it could take. Pure; told the time.

Three reasons, one measure: a number of sequences from which on the router sends it more only where no other
replica has room. So every policy heeds it, no replica is idled by it while there is work for all, and the
index keeps what it knows of the replica's cache.

Suspect: a probe was answered late or not at all, which a busy engine does; it is given half of what it had,
and half of that after the next. New: its caches are cold and its kernels not compiled; what it may have
doubles each second. Pressed: it has just answered that it is full.
"""

from math import exp2, inf

RAMP_SECONDS = 8.0
"""How long a replica counts as new; by then it may have had 512 sequences."""
FIRST = 2.0
"""Sequences that it may have at once when it comes."""
PRESSED_SECONDS = 1.0
"""How long an answer that a replica is full keeps others away; the next one tells again."""


class Caution:
    """Of one replica, in one proxy."""

    __slots__ = ("_came", "_press", "_pressed_until", "_suspected", "suspect")

    def __init__(self) -> None:
        self.suspect = False
        self._suspected = inf
        """Sequences while it is suspect."""
        self._came: float | None = None
        """When it came, while it is new."""
        self._press = inf
        self._pressed_until = 0.0

    @property
    def active(self) -> bool:
        """Whether time may change `limit`."""
        return self._came is not None or self._press < inf

    def missed(self, in_flight: int) -> None:
        """A probe was not answered in time, with so many sequences in flight."""
        had = min(in_flight, self._suspected) if self.suspect else in_flight
        self.suspect, self._suspected = True, max(1.0, had // 2)

    def answered(self) -> None:
        """A probe was answered in time."""
        self.suspect, self._suspected = False, inf

    def came(self, now: float) -> None:
        """It begins to take traffic."""
        self._came = now

    def pressed(self, in_flight: int, now: float) -> None:
        """It said that it is full, with so many sequences besides the one it turned away."""
        self._press, self._pressed_until = float(in_flight), now + PRESSED_SECONDS

    def limit(self, now: float) -> float:
        """Sequences from which on others are preferred."""
        if self._press < inf and now >= self._pressed_until:
            self._press = inf
        limit = min(self._suspected, self._press)
        if self._came is not None:
            age = now - self._came
            if age < RAMP_SECONDS:
                return min(limit, FIRST * exp2(age))
            self._came = None
        return limit
