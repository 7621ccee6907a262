"""The index that routing asks: for each replica the best that is known of it.

It composes three parts and keeps no block itself: what was learned from placements (`MemoryIndex`), what the
replicas' events said (`Confirmed`), and what was predicted and not said yet (`Overlay`). Which of them speaks
for a replica is its mode:

- *learned*: it publishes no events. The learned index alone; nothing is confirmed. Every replica begins here.
- *events*: its feed is whole. Confirmed blocks, continued by predicted ones. Nothing is learned: that would
  cost a request as much again, for an answer nobody asks for.
- *stale*: its feed is not whole: just found and not read yet, a gap, silence. Whichever is greater: what is
  confirmed, or a capped share of what is learned. Requests are learned from again.

A server that keeps one prompt a slot is *learned* in its own way, by `Slots`, and in no other.

Between modes no claim is kept that nobody will take back, and not everything is lost: on leaving *events* the
latest prompts placed, as far as they are confirmed, are handed to the learned index, whose capacity and
corrections apply from then on. Only prompts can be handed over: a set of blocks does not tell their order.
What was only predicted is not: the request that fails could not take it back. Entering *events* empties the
learned index, entering *learned* forgets what is confirmed.

It must never believe the late events of a replica that was forgotten: `apply` counts only after `set_mode`
said that there is a feed. Synchronous, for one thread, without I/O; told the time by the clock it is given.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Literal

from proxy.index.base import Placement
from proxy.index.confirmed import Confirmed
from proxy.index.memory import MemoryIndex
from proxy.index.overlay import Overlay, Prediction
from proxy.index.slots import SlotPlacement, Slots

Mode = Literal["learned", "events", "stale"]

STALE_SHARE = 0.5
"""Of a learned depth, the share believed in *stale*, where the events that would bear it out did not come."""
STALE_MISSES = 2
"""Shortfalls in a row that end the belief in what a stale feed once confirmed. One may be chance."""
LEAST_S, MOST_S = 2.0, 10.0
"""Seconds after the first token within which a feed that is alive says what was computed."""
HANDED_BLOCKS = 65_536
"""Blocks of the latest prompts that are remembered per replica, for when its events end."""
HANDED_PROMPTS = 256


class _Feed:
    """A replica whose events are, or should be, heard."""

    __slots__ = ("blocks", "incarnation", "misses", "mode", "prompts")

    def __init__(self, mode: Mode, incarnation: int) -> None:
        self.mode = mode
        self.incarnation = incarnation
        self.misses = 0
        self.prompts: deque[array[int]] = deque()
        """The latest prompts placed, oldest first."""
        self.blocks = 0
        """Blocks in them."""

    def remember(self, keys: array[int]) -> None:
        self.prompts.append(keys)
        self.blocks += len(keys)
        while self.blocks > HANDED_BLOCKS or len(self.prompts) > HANDED_PROMPTS:
            self.blocks -= len(self.prompts.popleft())


class TrueIndex:
    """A `PrefixIndex` that believes each replica's events, where there are any."""

    def __init__(self, learned: MemoryIndex, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self.late = 0
        """Batches that came for a replica without a feed, and were not believed."""
        self._learned = learned
        self._clock = clock
        self._confirmed = Confirmed()
        self._overlay = Overlay()
        self._feeds: dict[str, _Feed] = {}
        """Every replica that is not in *learned*."""
        self._slots: dict[str, Slots] = {}
        self._ticks = 0

    # What routing asks

    def match(self, keys: array[int]) -> dict[str, int]:
        """See `PrefixIndex.match`."""
        feeds, learned = self._feeds, self._learned
        if self._slots:
            return self._match_slots(keys)
        if not feeds:
            return learned.match(keys)
        return self._match_feeds(keys)

    def _match_slots(self, keys: array[int]) -> dict[str, int]:
        held = self._match_feeds(keys) if self._feeds else self._learned.match(keys)
        for name, slots in self._slots.items():
            if depth := slots.depth(keys):
                held[name] = depth
        return held

    def _match_feeds(self, keys: array[int]) -> dict[str, int]:
        feeds, learned = self._feeds, self._learned
        held = self._confirmed.match(keys).copy()
        if learned.size():
            for name, depth in learned.match(keys).items():
                if name not in feeds:
                    held[name] = depth
                elif (share := -int(-depth * STALE_SHARE // 1)) > held.get(name, 0):
                    held[name] = share
        if self._overlay:
            self._overlay.extend(held, keys, self._confirmed.holds)
        return held

    def predict(self, replica: str, keys: array[int], *, after: Placement | None = None) -> Placement:
        """See `PrefixIndex.predict`. In *events*, blocks of an answer have their time from now on."""
        feed = self._feeds.get(replica)
        if feed is None or feed.mode != "events":
            if self._slots and (slots := self._slots.get(replica)) is not None:
                return self._seat(slots, replica, keys, after)
            return self._learned.predict(replica, keys, after=after)
        if after is not None and not self._learned.bears(after):
            return after
        start = self._confirmed.match(keys).get(replica, 0)
        before = self._overlay.depth(replica, keys, start, self._confirmed.holds)
        feed.remember(keys)
        self._ticks += 1
        prediction = Prediction(
            replica, keys, before, feed.incarnation, self._ticks, (), False, start, len(keys)
        )
        if start < len(keys):
            self._overlay.add(prediction, self._learned.capacity(replica))
            if after is not None:
                self.expire(prediction, LEAST_S)
        if after is not None:
            self.expire(after, LEAST_S)
        return prediction

    def first_token(self, placement: Placement, expected: float = 0.0) -> None:
        """See `PrefixIndex.first_token`: only now, for a queue may be long, a prediction's time begins."""
        if isinstance(placement, SlotPlacement):
            placement.slots.first_token(placement)
            return
        self.expire(placement, min(max(2 * expected + 2, LEAST_S), MOST_S))

    def expire(self, placement: Placement, seconds: float) -> None:
        """Unless events confirm it, a prediction of a replica that publishes is dropped so long from now."""
        if isinstance(placement, Prediction):
            self._overlay.expire(placement, self._clock() + seconds)

    def confirm(self, placement: Placement, predicted: int, reported: int) -> None:
        """See `PrefixIndex.confirm`. In *events* the feed says it better: nothing is concluded here.

        In *stale* what was confirmed is given up after some shortfalls, as nothing else may ever correct it.
        """
        if isinstance(placement, Prediction):
            return
        if isinstance(placement, SlotPlacement):
            placement.slots.confirm(placement, reported)
            return
        self._learned.confirm(placement, predicted, reported)
        feed = self._feeds.get(placement.replica)
        if feed is not None and feed.mode == "stale" and predicted:
            feed.misses = feed.misses + 1 if reported + 1 < predicted else 0
            if feed.misses >= STALE_MISSES:
                feed.misses = 0
                self._confirmed.forget(placement.replica)

    def retract(self, placement: Placement) -> None:
        """See `PrefixIndex.retract`."""
        if isinstance(placement, Prediction):
            self._overlay.drop(placement)
        elif isinstance(placement, SlotPlacement):
            placement.slots.retract(placement)
        else:
            self._learned.retract(placement)

    def forget(self, replica: str) -> None:
        """See `PrefixIndex.forget`. Its mode is *learned* again: what its feed still says is not believed."""
        if self._feeds.pop(replica, None) is not None:
            self._confirmed.forget(replica)
            self._overlay.forget(replica)
        self._slots.pop(replica, None)
        self._learned.forget(replica)

    def resize(self, replica: str, blocks: int) -> None:
        """See `PrefixIndex.resize`. In *events* it bounds what may be predicted, not what is confirmed."""
        self._learned.resize(replica, blocks)

    def blocks(self, replica: str) -> int:
        """See `PrefixIndex.blocks`. In *stale*, the greater of confirmed and learned."""
        feed = self._feeds.get(replica)
        if feed is None:
            slots = self._slots.get(replica)
            return self._learned.blocks(replica) if slots is None else slots.blocks
        holds = self._confirmed.holds
        pending = sum(not holds(replica, key) for key in self._overlay.pending(replica))
        return max(self._confirmed.blocks(replica) + pending, self._learned.blocks(replica))

    def capacity(self, replica: str) -> int:
        """See `PrefixIndex.capacity`."""
        return self._learned.capacity(replica)

    def size(self) -> int:
        """Distinct blocks learned, and distinct blocks confirmed or pending; with what is not swept yet."""
        pending = {key for name in self._feeds for key in self._overlay.pending(name)}
        unconfirmed = sum(key not in self._confirmed for key in pending)
        kept = sum(slots.blocks for slots in self._slots.values())
        return self._learned.size() + self._confirmed.size() + unconfirmed + kept

    def keep_slots(self, replica: str, count: int | None) -> None:
        """This replica keeps one prompt in each of `count` slots; None if it does not work that way."""
        slots = self._slots.get(replica)
        if count is None:
            self._slots.pop(replica, None)
        elif slots is None or len(slots) != count:
            self._learned.clear(replica)
            self._slots[replica] = Slots(count)

    def slots(self, replica: str) -> Slots | None:
        """The slots of a replica that keeps one prompt in each."""
        return self._slots.get(replica)

    def _seat(self, slots: Slots, replica: str, keys: array[int], after: Placement | None) -> Placement:
        if after is not None:
            if isinstance(after, SlotPlacement):
                after.slots.extend(after, keys)
            return after
        self._ticks += 1
        return slots.place(replica, keys, self._ticks)

    # What the feeds say

    def mode(self, replica: str) -> Mode:
        """Who speaks for this replica; *learned* for a name unknown."""
        feed = self._feeds.get(replica)
        return feed.mode if feed else "learned"

    def set_mode(self, replica: str, mode: Mode) -> None:
        """Say how good this replica's feed is. See the head of this file for what is kept."""
        feed = self._feeds.get(replica)
        if mode == self.mode(replica):
            return
        if feed is not None and feed.mode == "events":
            self._hand_over(replica, feed)
        if mode == "learned":
            del self._feeds[replica]
            self._confirmed.forget(replica)
            return
        if feed is None:
            feed = self._feeds[replica] = _Feed(mode, self._learned.incarnation(replica))
        feed.mode = mode
        feed.misses = 0
        if mode == "events":
            self._learned.clear(replica)

    def apply(self, replica: str, *, cleared: bool, removed: Iterable[int], stored: Iterable[int]) -> None:
        """What a feed said, in this order. It also settles what was predicted of these blocks.

        Not believed of a replica in *learned*: it has no feed, or was forgotten while this was on its way.
        """
        if replica not in self._feeds:
            self.late += 1
            return
        if cleared:
            self._confirmed.forget(replica)
            self._overlay.forget(replica)
        self._confirmed.apply(replica, removed, stored)
        if self._overlay:
            self._overlay.settle(replica, removed)
            self._overlay.settle(replica, stored)

    def confirmed(self, keys: array[int]) -> dict[str, int]:
        """Of what `match` tells, the blocks that the replicas' own events bear out."""
        return self._confirmed.match(keys).copy()

    def confirmed_blocks(self, replica: str) -> int:
        """Blocks that this replica's events said it holds."""
        return self._confirmed.blocks(replica)

    def tick(self) -> bool:
        """Drop predictions whose time is up, and sweep a little. True if there is more to sweep."""
        self._overlay.tick(self._clock())
        return self._confirmed.tick()

    def _hand_over(self, replica: str, feed: _Feed) -> None:
        """Teach the learned index the latest prompts, as far as they are confirmed."""
        self._overlay.forget(replica)
        for keys in feed.prompts:
            depth = self._confirmed.match(keys).get(replica, 0)
            if depth:
                self._learned.predict(replica, keys[:depth])
        feed.prompts.clear()
        feed.blocks = 0
