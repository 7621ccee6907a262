"""What another policy would have found cached: a fleet of its own that exists on paper only. Told the time.

A shadow is asked about requests after they have ended, in the order in which they began as far as one batch
goes, and touches none. It keeps what a real policy's choices would have made: an index of what replicas would
hold, as large as the real one believes their caches to be, and the load that they would have. Hits follow
from that, as the proxy's own predictions do. What it does not know: blocks of answers, how engines really
evict, and that its queues would have delayed clients. So the policy in use is best shadowed too: what its
shadow says, beside what really happened, tells how far to trust the others.

A shadow may look at a share of prompt starts only, with caches that are smaller by the same share: hits of
such a miniature are those of the whole, but for chance (Waldspurger et al., Efficient MRC Construction with
SHARDS, FAST 2015).

Bounded: the index as the learned index is, by the replicas' caches (times the share); `MOST_IN_FLIGHT`
requests.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import exp
from random import Random

from policies import base
from proxy.fleet import RECENT_SECONDS
from proxy.index.memory import MemoryIndex
from proxy.router import RouteRequest

MOST_IN_FLIGHT = 4096
LONGEST = 600.0
"""Seconds that a request is believed to take at most."""


class Shadow:
    """One policy, and the fleet as it would be under it."""

    def __init__(self, name: str, policy: base.Policy, rng: Random, *, share: float = 1.0) -> None:
        self.name = name
        self.requests = 0
        self.prompt_tokens = 0
        self.available_tokens = 0
        """Of those, the most that any replica would have held."""
        self.routed_tokens = 0
        """Those that the chosen one would have held."""
        self.ttft_seconds = 0.0
        """Sum of the times to first tokens as its queues and hits would have made them."""
        self._policy = policy
        self._rng = rng
        self._share = share
        self._index = MemoryIndex()
        self._views: dict[str, base.Replica] = {}
        self._coming: list[tuple[float, int, str, int, int, bool]] = []
        """(when, number, replica, uncached tokens, sequences, whether it is the end): a heap."""
        self._number = 0
        self._now = 0.0

    def see(
        self,
        request: RouteRequest,
        real: Sequence[base.Replica],
        capacity: Callable[[str], int],
        at: float,
        decode: float,
    ) -> int:
        """Choose for one request; prompt tokens that the chosen replica would have had in its cache.

        `real`: the replicas that could serve it, as they are now. `capacity`: blocks that one is believed to
        hold. `at`: when it began. `decode`: seconds that its answer took from
        its first token to its last.
        """
        self._pass(at)
        views = [self._view(each, capacity(each.name)) for each in real]
        tokens = request.tokens
        cap = int((tokens - 1) // request.block_tokens * request.block_tokens)
        matched: dict[str, int] = {}
        if request.keys and request.cache_read:
            for name, blocks in self._index.match(request.keys).items():
                matched[name] = min(int(blocks * request.block_tokens), cap)
        asked = base.Request(
            tokens, matched, request.affinity, request.session, request.sequences, request.urgency
        )
        view = self._policy.choose(asked, views, self._rng).replica
        hit = matched.get(view.name, 0)
        ttft = view.base_ttft + (view.queued_tokens + tokens - hit) / view.prefill_rate
        if request.keys:
            self._index.predict(view.name, request.keys)
        self._load(view, tokens - hit, request.sequences, ttft, decode)
        self.requests += 1
        self.prompt_tokens += tokens
        self.available_tokens += max((matched.get(each.name, 0) for each in views), default=0)
        self.routed_tokens += hit
        self.ttft_seconds += ttft
        return hit

    def forget(self, name: str) -> None:
        """A replica has left the fleet."""
        self._views.pop(name, None)
        self._index.forget(name)

    @property
    def replicas(self) -> list[str]:
        """Those that it knows."""
        return list(self._views)

    def told(self) -> dict[str, object]:
        """What it says, as an operator reads it."""
        tokens, requests = self.prompt_tokens, self.requests
        return {
            "policy": self.name,
            "requests": requests,
            "prompt_tokens": tokens,
            "hit_rate": round(self.routed_tokens / tokens, 4) if tokens else None,
            "available_rate": round(self.available_tokens / tokens, 4) if tokens else None,
            "modelled_ttft_seconds": round(self.ttft_seconds / requests, 4) if requests else None,
        }

    def _view(self, real: base.Replica, capacity: int) -> base.Replica:
        view = self._views.get(real.name)
        if view is None:
            view = self._views[real.name] = base.Replica(real.name)
        blocks = max(1, int(capacity * self._share))
        if self._index.capacity(real.name) != blocks:
            self._index.resize(real.name, blocks)
        view.prefill_rate, view.base_ttft, view.kv_usage = real.prefill_rate, real.base_ttft, real.kv_usage
        view.slots, view.slot_time = real.slots, real.slot_time
        return view

    def _load(self, view: base.Replica, uncached: int, sequences: int, ttft: float, decode: float) -> None:
        view.in_flight += sequences
        view.queued_tokens += uncached
        view.recent_tokens += uncached
        first = self._now + min(ttft, LONGEST)
        self._number += 1
        heappush(self._coming, (first, self._number, view.name, uncached, sequences, False))
        end = first + min(max(decode, 0.0), LONGEST)
        heappush(self._coming, (end, self._number, view.name, uncached, sequences, True))
        while len(self._coming) > 2 * MOST_IN_FLIGHT:
            self._happen()

    def _pass(self, at: float) -> None:
        """Time goes on: first tokens come, streams end, recent work fades."""
        if at <= self._now:
            return
        fade = exp(-(at - self._now) / RECENT_SECONDS)
        self._now = at
        for view in self._views.values():
            view.recent_tokens *= fade
        while self._coming and self._coming[0][0] <= at:
            self._happen()

    def _happen(self) -> None:
        _, _, name, uncached, sequences, is_end = heappop(self._coming)
        view = self._views.get(name)
        if view is None:
            return
        if is_end:
            view.in_flight = max(0, view.in_flight - sequences)
            view.running = max(0, view.running - sequences)
        else:
            view.queued_tokens = max(0, view.queued_tokens - uncached)
            view.running += sequences
