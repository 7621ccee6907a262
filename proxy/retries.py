"""How much retrying the fleet can bear, beside what is saved from dead replicas. Pure; told the time."""

from collections import deque

WINDOW_SECONDS = 10.0
FLOOR = 10
"""Retries that are always allowed in a window, so that a quiet proxy can save a request too."""


class RetryBudget:
    """Retries are at most a share of the requests of the last seconds, so an outage is no storm."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._requests: deque[tuple[float, int]] = deque()  # (second, requests in it)
        self._total = 0
        self._second = 0.0
        self._now = 0
        self._retries: deque[float] = deque()

    def request(self, now: float) -> None:
        """A request has come."""
        if now - self._second >= 1.0:
            self._requests.append((self._second, self._now))
            self._second, self._now = now, 0
            self._expire(now)
        self._total += 1
        self._now += 1

    def take(self, now: float) -> bool:
        """Take one retry, if there is one."""
        self._expire(now)
        if len(self._retries) >= max(FLOOR, self._share * self._total):
            return False
        self._retries.append(now)
        return True

    def _expire(self, now: float) -> None:
        oldest = now - WINDOW_SECONDS
        while self._requests and self._requests[0][0] < oldest - 1:
            self._total -= self._requests.popleft()[1]
        while self._retries and self._retries[0] < oldest:
            self._retries.popleft()
