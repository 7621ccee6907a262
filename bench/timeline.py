"""Simulated engines on one virtual clock: what they do, and what was put off, in order of time.

Discrete events: time goes from one to the next, never back. What an engine does and what was put off for the
same moment happens in that order: the latter first.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count

from bench.engine_model import EngineModel, EngineSpec

NEVER = float("inf")


class Timeline:
    """The clock, the engines, and what is to happen later."""

    def __init__(self, spec: EngineSpec, names: Iterable[str]) -> None:
        self.now = 0.0
        """Seconds since the start."""
        self.engines = {name: EngineModel(spec, every_token=False) for name in names}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def happened(self, request: str, time: float, kind: str, cached: int) -> None:
        """An engine has done something for a request: `first` token, or `done`; so much was cached."""
        raise NotImplementedError

    def poll(self, now: float) -> None:
        """Time is about to go on to `now`."""

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something in so many seconds."""
        heappush(self._later, (self.now + seconds, next(self._order), what))

    def advance(self, until: float) -> None:
        """Let everything happen that comes before `until`; until nothing comes any more if that is NEVER."""
        while True:
            at, first = NEVER, None
            for engine in self.engines.values():
                due = engine.next_event()
                if due is not None and due < at:
                    at, first = due, engine
            if self._later and self._later[0][0] <= min(at, until):
                self.now = max(self.now, self._later[0][0])
                heappop(self._later)[2]()
                continue
            if first is None or at > until:
                break
            self.poll(at)
            self.now = max(self.now, at)
            for event in first.advance(at):
                self.happened(*event)
        if until < NEVER:
            self.poll(until)
            self.now = until
