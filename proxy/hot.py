"""Hot prefixes: which there are, who should hold them, and the one request at a time that spreads them.

A request costs the path of requests one call, which puts it aside; a sample of what was put aside is counted
a few times a second. What is asked for every request is `active`: empty unless a prefix is about to grow or
has shrunk. A prefix that grows has one request sent where it is not held, to the cheapest replica as the
policy finds it; one that has shrunk is no longer credited where it need not be held, so that its blocks there
grow old. All else, and above all how far requests spill in an instant, is the policy's.

Bounded: the sketch, `TRACKED` prefixes, `MOST` requests put aside. Told the time; no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Protocol

from policies import base
from proxy.concurrency import Allowance, has_room
from proxy.fleet import Fleet
from proxy.index.base import PrefixIndex
from proxy.prefix import DEEPER, HELD, Prefix
from proxy.sketch import Shared, Sketch

TRACKED = 32
MOST = 1024
"""Requests put aside between two looks."""
SAMPLES = 24
"""Requests that are looked at each time, about; the others are only counted."""
TICK_SECONDS = 0.25
"""How often to look."""
LEAST_RATE = 0.2
"""Prompts a second below which no prefix is hot."""
COLD_RATE = 0.01
"""Prompts a second below which it does not matter any more who holds one that was hot."""


class Placed(Protocol):
    """A request that was sent, as a lease tells of it."""

    @property
    def request(self) -> Asked:
        """What was asked."""

    @property
    def matched(self) -> int:
        """Its tokens that the replica held."""


class Asked(Protocol):
    """A request, as a route tells of it."""

    model: str
    keys: array[int]
    tokens: int
    block_tokens: float
    sequences: int
    allowed: Allowance


class Hot:
    """The hot prefixes of recent traffic."""

    def __init__(self, fleet: Fleet, index: PrefixIndex, leads: Callable[[], bool] = lambda: True) -> None:
        """`leads` tells whether the policy may be led, as it follows prefixes; else they are only watched."""
        self.active: dict[int, Prefix] = {}
        """By key, those whose requests are to be led."""
        self.grown = self.shrunk = 0
        """Steps so far."""
        self._fleet = fleet
        self._index = index
        self._leads = leads
        self._sketch = Sketch()
        self._tracked: dict[int, Prefix] = {}
        self._depths: list[int] = []
        """Blocks at which keys of tracked prefixes stand, deepest first."""
        self._placed: list[Placed] = []
        self._count = 0
        self._every = self._next = 1
        """Which of the requests to come are looked at."""
        self._looked = fleet.clock()

    def __len__(self) -> int:
        """Prefixes that need more than one replica, or lately did."""
        return sum(prefix.hot for prefix in self._tracked.values())

    def hottest(self) -> list[Prefix]:
        """The prefixes that are tracked, those that save or could save most first."""
        return sorted(self._tracked.values(), key=lambda prefix: prefix.rate * prefix.tokens, reverse=True)

    # On the path of requests

    def note(self, placed: Placed) -> None:
        """A request was sent."""
        self._count += 1
        if self._count >= self._next and len(self._placed) < MOST:
            self._next += self._every
            self._placed.append(placed)

    def lead(
        self,
        request: Asked,
        matched: dict[str, int],
        candidates: list[base.Replica],
        *,
        rehearses: bool = False,
    ) -> tuple[dict[str, int], list[base.Replica]]:
        """What to believe of who holds the prompt, and whom to choose from. Asked only while `active`.

        Where it `rehearses`, no step is taken.
        """
        prefix = self._of(request.keys, self.active)
        if prefix is None:
            return matched, candidates
        least, deep = HELD * prefix.tokens, DEEPER * prefix.tokens
        if prefix.spread and least <= max(matched.values(), default=0) <= deep:
            others = [
                view
                for view in candidates
                if matched.get(view.name, 0) < least
                and view.in_flight < view.soft_limit
                and has_room(view, request.sequences, request.allowed)
                and view.queued_tokens <= prefix.tokens
            ]
            if others and rehearses:
                return matched, others
            if others:
                prefix.grown(self._fleet.clock(), others)
                self.grown += 1
                return matched, others
        released = prefix.released
        if released:
            matched = {
                name: tokens for name, tokens in matched.items() if tokens > deep or name not in released
            }
        return matched, candidates

    # A few times a second

    def tick(self) -> None:
        """Look at what was sent since, and decide."""
        now = self._fleet.clock()
        seconds, self._looked = now - self._looked, now
        self._sketch.fade(seconds)
        sample, count = self._placed, self._count
        self._placed, self._count = [], 0
        self._next = self._every = max(1, count // SAMPLES)
        prompts = count / len(sample) if sample else 0.0
        for each in sample:
            self._sketch.add(each.request.keys, each.request.block_tokens, prompts)
        self._follow(now)
        for each in sample:
            self._look(each, prompts)
        self._judge(now, seconds)

    def _look(self, placed: Placed, prompts: float) -> None:
        asked = placed.request
        prefix = self._of(asked.keys, self._tracked)
        if prefix is not None:
            if not prefix.keys:
                prefix.keys, prefix.model = asked.keys[: 2 * prefix.blocks], asked.model
                prefix.block_tokens = asked.block_tokens
            prefix.sent(asked.keys, asked.tokens, placed.matched, prompts)

    def _judge(self, now: float, seconds: float) -> None:
        share, leads = self._share(), self._leads()
        for prefix in self._tracked.values():
            prefix.fade(seconds)
            views = self._fleet.candidates(prefix.model) if prefix.keys else ()
            if not views:
                continue
            prefix.held(views, self._index.match(prefix.keys[: prefix.depth]))
            if leads:
                released = len(prefix.released)
                prefix.judge(now, views, share)
                self.shrunk += max(0, len(prefix.released) - released)
        self.active = {key: prefix for key, prefix in self._tracked.items() if leads and prefix.led}

    def _follow(self, now: float) -> None:
        """Track the hottest, and those that more replicas hold than need to."""
        shared = sorted(self._sketch.shared(LEAST_RATE), key=_worth, reverse=True)
        busy = {
            key: prefix for key, prefix in self._tracked.items() if prefix.hot and prefix.rate > COLD_RATE
        }
        tracked: dict[int, Prefix] = {}
        for each in shared:
            if len(tracked) >= TRACKED:
                break
            known = self._tracked.get(each.key)
            tracked[each.key] = known or Prefix(each.key, each.blocks, "", array("Q"), 0.0, now)
        for key, prefix in busy.items():
            if len(tracked) >= 2 * TRACKED:
                break
            tracked.setdefault(key, prefix)
        self._tracked = tracked
        self._depths = sorted({prefix.blocks for prefix in tracked.values()}, reverse=True)

    def _share(self) -> float:
        """What this proxy sends of all that is in flight: what it sees of a prefix is that share of it."""
        everywhere = sum(replica.view.in_flight for replica in self._fleet.replicas.values())
        here = sum(replica.load.in_flight for replica in self._fleet.replicas.values())
        return max(here / everywhere, 1 / 16) if everywhere > 0 else 1.0

    def _of(self, keys: array[int], prefixes: Mapping[int, Prefix]) -> Prefix | None:
        """The longest of these prefixes that a prompt has."""
        count = len(keys)
        for blocks in self._depths:
            if blocks <= count and (prefix := prefixes.get(keys[blocks - 1])) is not None:
                return prefix
        return None


def _worth(shared: Shared) -> float:
    return shared.rate * shared.blocks
