"""Which requests the break finder looks at, and when: few, and never for long. Told the time.

Only requests of whose prompt the replica was believed to lack more than a few tokens, at most `per_second` of
them, and one at a time between other work. Time is spent from a budget of `SHARE` of one core: a prompt that
took long is paid for by pauses. What is not looked at is counted, and those that are stand for it.

Bounded: bodies of at most `MOST_BYTES`, for a second or two, `per_second` of them.
"""

from collections import deque
from collections.abc import Callable

from proxy.breaks.finder import LEAST_TOKENS, Finder
from proxy.breaks.outline import MOST_BYTES, outline

SHARE = 0.01


class Sampler:
    """Feeds a finder."""

    def __init__(
        self, finder: Finder, clock: Callable[[], float], *, per_second: float, spent: Callable[[], float]
    ) -> None:
        """`spent`: seconds of work, as the budget counts them."""
        self.finder = finder
        self.offered = 0
        """Requests that missed."""
        self._clock = clock
        self._spent = spent
        self._room = max(1, int(per_second))
        self.interval = 1 / per_second
        """Seconds between two calls of `step`."""
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._unseen = 0
        """Requests that missed and were not taken since one was looked at."""
        self._free_at = 0.0

    def offer(self, body: bytes, missed: int) -> None:
        """A request has ended: its body, and how many of its prompt's tokens no cache had."""
        if missed < LEAST_TOKENS:
            return
        self.offered += 1
        if len(self._waiting) >= self._room or len(body) > MOST_BYTES:
            self._unseen += 1
        else:
            self._waiting.append((body, missed))

    def step(self) -> None:
        """Look at one request, if there is one and time for it."""
        now = self._clock()
        if not self._waiting or now < self._free_at:
            return
        body, missed = self._waiting.popleft()
        weight, self._unseen = 1.0 + self._unseen, 0
        began = self._spent()
        self.finder.look(outline(body), now, missed=missed, weight=weight)
        self._free_at = now + (self._spent() - began) / SHARE
