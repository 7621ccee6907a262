"""How far each replica's reports lie from what was predicted: the check on everything the index believes.

Pure; counts requests, not time. A window that has drifted says so once, and the next one begins.
"""

from dataclasses import dataclass

WINDOW = 200
"""Requests that are judged together."""
TOLERATED = 0.1
"""Share of the tokens at stake, those predicted or reported, that may have been misjudged."""


@dataclass(slots=True)
class _Window:
    requests: int = 0
    stake: int = 0
    misjudged: int = 0
    last: float = 0.0
    """The share misjudged in the last whole window."""


class Drift:
    """Predicted against reported tokens, by replica."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def observe(self, replica: str, predicted: int, reported: int, tolerance: int) -> bool:
        """Take in one request: tokens predicted before dispatch, reported after. True if that is too far.

        A difference up to `tolerance` tokens, a block, is none: where a block ends is known to one.
        """
        window = self._windows.get(replica)
        if window is None:
            window = self._windows[replica] = _Window()
        window.requests += 1
        window.stake += max(predicted, reported)
        difference = abs(predicted - reported)
        if difference > tolerance:
            window.misjudged += difference
        if window.requests < WINDOW:
            return False
        window.last = window.misjudged / window.stake if window.stake else 0.0
        window.requests = window.stake = window.misjudged = 0
        return window.last > TOLERATED

    def share(self, replica: str) -> float:
        """Share of the tokens at stake that was misjudged in the last whole window."""
        window = self._windows.get(replica)
        return window.last if window else 0.0

    def shares(self) -> dict[str, float]:
        """Replica name to its share."""
        return {name: window.last for name, window in self._windows.items()}

    def forget(self, replica: str) -> None:
        """The replica is gone, or is another process."""
        self._windows.pop(replica, None)
