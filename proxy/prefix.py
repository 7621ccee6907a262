"""One hot prefix: how deep it is, what it asks of the fleet, and how many replicas should hold it.

Told what was sent, the time and who holds it; decides one step at a time. After each growth the next waits
until the new copy should be computed and has shown its worth; shrinking waits `SHRINK_SECONDS` after a step
of any kind, and while its replicas are behind by more than computing the prefix takes nothing shrinks. Pure.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, exp, inf

from policies import base
from policies.scoring import rendezvous
from proxy.sketch import FADE_SECONDS

GROW_AT, SHRINK_AT = 0.15, 0.02
"""Share of a replica's time that a prefix may take before one more should hold it, and below which fewer do.
Far below full use: a replica more costs one prefill and room for the prefix, waiting costs everyone."""
SHRINK_SECONDS = 10.0
MOST_GROW_SECONDS = 5.0
HELD = 0.75
"""Whoever holds this share of it holds it."""
DEEPER = 1.25
"""A replica that holds so many times the prefix's tokens of a prompt is wanted for what comes after it."""


@dataclass(slots=True)
class Holder:
    """A replica that holds it, as deep as it goes or nearly."""

    view: base.Replica
    tokens: int


@dataclass(slots=True, eq=False)
class Prefix:
    """A prefix that many prompts share."""

    key: int
    blocks: int
    """At which depth `key` stands; `depth` is at least that."""
    model: str
    keys: array[int]
    """Of one of its prompts, to twice `blocks` at most."""
    block_tokens: float
    since: float
    depth: int = 0
    """Blocks that its prompts share."""
    holders: list[Holder] = field(default_factory=list)
    """Those that should go on to hold it, the most wanted first."""
    released: set[str] = field(default_factory=set)
    """Those that hold it still and need not."""
    wanted: int = 1
    """How many replicas should hold it."""
    hot: bool = False
    """Whether it has needed more than one replica, and more than needed still hold it, or do need to."""
    spread: bool = False
    """Whether its next request should go where it is not held."""
    saved: float = 0.0
    """Prompt tokens that were not computed again, since it was noticed."""
    _prompts: float = 0.0
    _bound: float = 0.0
    _spent: float = 0.0
    _saved: float = 0.0
    _common: int = 0
    _age: float = 0.0
    _grow_at: float = 0.0
    _shrink_at: float = 0.0
    _pace: float = inf
    """Of a replica, when it was last judged to need more of them."""

    def __post_init__(self) -> None:
        self.depth = self.blocks
        self._shrink_at = self.since + SHRINK_SECONDS

    @property
    def tokens(self) -> int:
        """Its length."""
        return int(self.depth * self.block_tokens)

    @property
    def rate(self) -> float:
        """Prompts a second."""
        return self._prompts / self._span

    @property
    def saving(self) -> float:
        """Prompt tokens a second that are not computed again."""
        return self._saved / self._span

    @property
    def _span(self) -> float:
        """What fading sums stand for: so many seconds of the present."""
        return max(FADE_SECONDS * (1.0 - exp(-self._age / FADE_SECONDS)), 1.0)

    @property
    def led(self) -> bool:
        """Whether its requests are told where to go, or what not to count on."""
        return self.spread or bool(self.released)

    @property
    def state(self) -> str:
        """`growing`, `steady` or `shrinking`."""
        if self.wanted > len(self.holders):
            return "growing"
        return "shrinking" if self.released or self.wanted < len(self.holders) else "steady"

    def sent(self, keys: array[int], tokens: int, matched: int, prompts: float) -> None:
        """Such a prompt went where `matched` of its tokens were held; it stands for several."""
        length = self.tokens
        held, rest = min(matched, length), tokens - max(matched, length)
        self._prompts += prompts
        if rest <= length:  # what is mostly something else goes anywhere
            self._bound += prompts
            self._spent += prompts * max(0, rest)
        self._saved += prompts * held
        self.saved += prompts * held
        common = _common(self.keys, keys, self.depth)
        if not self._common or common < self._common:
            self._common = common

    def fade(self, seconds: float) -> None:
        """So much time has passed."""
        kept = exp(-seconds / FADE_SECONDS)
        self._prompts *= kept
        self._bound *= kept
        self._spent *= kept
        self._saved *= kept
        self._age += seconds
        if self._common:
            self.depth, self._common = max(self._common, self.blocks), 0

    def held(self, views: Sequence[base.Replica], blocks: dict[str, int]) -> None:
        """Who holds how many blocks of it now, among the replicas that serve its model."""
        least = HELD * self.depth
        found = [view for view in views if blocks.get(view.name, 0) >= least]
        self.released &= {view.name for view in found}
        found.sort(
            key=lambda view: rendezvous(self.key, view), reverse=True
        )  # all proxies keep the same ones
        self.holders = [
            Holder(view, int(min(blocks[view.name], self.depth) * self.block_tokens))
            for view in found
            if view.name not in self.released
        ]

    def judge(self, now: float, views: Sequence[base.Replica], share: float) -> None:
        """Decide how many should hold it, and take one step there. `share` is this proxy's of all requests.

        A prefix that never needed a second replica is left to the policy, whoever holds it.
        """
        pace = sum(view.prefill_rate for view in views) / len(views)
        demand, here = self.demand(views, pace) / share, len(self.holders)
        if (need := ceil(demand / GROW_AT)) > self.wanted:
            self.wanted, self._pace = min(need, len(views)), pace
        self.wanted = min(self.wanted, len(views))
        self.hot = self.wanted > 1 or (self.hot and (here > 1 or bool(self.released)))
        if not self.hot:
            return
        if self.wanted > here and self.released:  # they hold it still: that costs nothing
            back = max((view for view in views if view.name in self.released), key=self._weight)
            self.released.discard(back.name)
            self.holders.append(Holder(back, self.tokens))
            here += 1
        self.spread = 0 < here < self.wanted and now >= self._grow_at
        if here and all(holder.view.queued_tokens > self.tokens for holder in self.holders):
            self._shrink_at = now + SHRINK_SECONDS
        elif now >= self._shrink_at:
            # At the pace it was judged by: one that is learned from prompts of one length drifts upwards.
            demand = self.demand(views, min(pace, self._pace)) / share
            self.wanted = min(self.wanted, max(1, ceil(demand / SHRINK_AT)))
            if here > self.wanted:
                self.released.add(self.holders.pop().view.name)
                self._shrink_at = now + SHRINK_SECONDS

    def grown(self, now: float, views: Sequence[base.Replica]) -> None:
        """A request of it goes to one of these, where it is not held."""
        self.spread = False
        rate = sum(view.prefill_rate for view in views) / len(views)
        self._grow_at = now + min(self.tokens / rate, MOST_GROW_SECONDS)
        self._shrink_at = now + SHRINK_SECONDS

    def demand(self, views: Sequence[base.Replica], pace: float) -> float:
        """How many replicas' time its requests take where it is held: of prefill or of slots, the greater.

        `pace` is the prompt tokens a second that one of them computes.
        """
        prefill = self._spent / self._span / pace
        slots = [view.slots for view in views if view.slots]
        times = [view.slot_time for view in views if view.slot_time is not None]
        if not slots or not times:
            return prefill
        running = self._bound / self._span * sum(times) / len(times)
        return max(prefill, running * len(slots) / sum(slots))

    def _weight(self, view: base.Replica) -> int:
        return rendezvous(self.key, view)


def _common(known: array[int], keys: array[int], guess: int) -> int:
    """How many of their first keys are equal: as keys are chained, those before one equal pair are too."""
    ends = min(len(known), len(keys))
    if guess < ends and known[guess] != keys[guess] and known[guess - 1] == keys[guess - 1]:
        return guess
    return bisect_left(range(ends), 1, key=lambda at: int(known[at] != keys[at]))
