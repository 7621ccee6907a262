"""What a caller may use a minute: requests, and tokens of prompts and answers together.

A bucket holds a minute's worth and no more, so a caller that has been quiet may use a minute's worth at once.
It is enough that something is left: what a request costs may overdraw the bucket, and is paid off before the
next one. So a prompt larger than a minute's worth is let in once the bucket has refilled, not never, and what
is known only at the end (the answer) is charged then.

Alone, a proxy refills its buckets itself. Where proxies share a Redis they share a minute's worth: each holds
a lease, which is what it may spend until the next round (`proxy.shared.rates`), and no request waits for it.
Together they let in at most, above what is allowed and before it is paid off again,

- a tenth of a minute's worth (ten requests at least) for each proxy that had not seen this caller of late;
- what one proxy held, if Redis fails before it says whether a round was done; and, while Redis is away, what
  each proxy refills as its part of the rate, the proxies counted as when last heard of;
- the last request of each proxy, which may overdraw.

Pure: told the time, in seconds of one clock that never goes back. Bounded: callers that are quiet are
forgotten once their bucket is full or given back.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from proxy.errors import RateLimited
from proxy.keys_file import Caller

MINUTE: Final = 60.0
FIRST, AT_LEAST = 0.1, 10.0
"""Part of a minute's worth, and the least, that a proxy spends on a caller before Redis has said a word."""
QUIET: Final = 10.0
"""Seconds after which a caller that asks for nothing holds nothing any more."""
MOST_CALLERS: Final = 10_000
"""Callers that are kept; above that, whoever came first is forgotten."""

REQUESTS, TOKENS = "requests", "tokens"


class Offer(NamedTuple):
    """What a proxy gives back of a bucket at a round, to be told how much of the rest is its own."""

    caller: str
    kind: str
    per_minute: float
    back: float
    """What is left of its lease; below zero what was spent beyond it."""
    stays: bool
    """Whether it wants another lease."""


class Lease(NamedTuple):
    """What a round gave."""

    share: float
    left: float
    """What nobody holds; below zero what is still to be paid off."""
    proxies: int
    """That hold a lease for this caller, this one among them."""


class _Bucket:
    """One caller's, of one kind."""

    __slots__ = ("at", "debt", "held", "level", "low", "most", "owed", "proxies", "used_at")

    def __init__(self, per_minute: float, level: float, now: float) -> None:
        self.most = per_minute
        self.level = level
        self.held = 0.0
        """The lease: what Redis has taken off for this proxy."""
        self.owed = 0.0
        """What was spent and Redis has not been told, less what was refilled here."""
        self.low = 0.0
        """Below it, a round would be welcome."""
        self.debt = 0.0
        """What all proxies together still have to pay off; never above zero."""
        self.proxies = 1
        self.at = self.used_at = now

    def refill(self, now: float) -> None:
        gain, self.at = (now - self.at) * self._rate, now
        self.level = min(self.most, self.level + gain)
        if self.owed > 0.0:
            self.owed = max(0.0, self.owed - gain)

    def spend(self, cost: float) -> None:
        self.level -= cost
        self.owed += cost

    def seconds(self) -> float:
        """Until something is left."""
        return max(0.0, (1.0 - self.level - self.debt) / self._rate)

    @property
    def _rate(self) -> float:
        return self.most / MINUTE / self.proxies


class Rates:
    """The buckets of all callers that have a limit."""

    def __init__(self) -> None:
        self.leased = False
        """Whether what may be spent is settled with Redis, for now."""
        self.hungry: Callable[[], None] = _nothing
        """Called when a round would be welcome."""
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def request(self, caller: Caller, now: float) -> None:
        """Count a request. Raises RateLimited."""
        per_minute = caller.requests_per_minute
        if per_minute is not None:
            self._take(caller, REQUESTS, per_minute, 1.0, now)

    def prompt(self, caller: Caller, tokens: float, now: float) -> None:
        """Count a prompt. Raises RateLimited."""
        per_minute = caller.tokens_per_minute
        if per_minute is not None:
            self._take(caller, TOKENS, per_minute, tokens, now)

    def spent(self, caller: Caller, tokens: float, now: float) -> None:
        """Charge what was known only afterwards: an answer; below zero, give back what was charged."""
        per_minute = caller.tokens_per_minute
        if per_minute is not None:
            bucket = self._bucket(caller.name, TOKENS, per_minute, now)
            bucket.spend(max(tokens, bucket.level - bucket.most))

    def _take(self, caller: Caller, kind: str, per_minute: float, cost: float, now: float) -> None:
        bucket = self._bucket(caller.name, kind, per_minute, now)
        bucket.used_at = now
        if not self.leased:
            bucket.refill(now)
        if bucket.level < 1.0:
            self.hungry()
            seconds = bucket.seconds()
            raise RateLimited(
                kind,
                f"the limit of {per_minute:g} {kind} a minute is reached; try again in {seconds:.1f} s",
                retry_after=seconds,
            )
        bucket.spend(cost)
        if bucket.level < bucket.low:
            self.hungry()

    def _bucket(self, caller: str, kind: str, per_minute: float, now: float) -> _Bucket:
        bucket = self._buckets.get((caller, kind))
        if bucket is None:
            if len(self._buckets) >= MOST_CALLERS:
                del self._buckets[next(iter(self._buckets))]
            level = per_minute
            if self.leased:
                level = min(level, max(AT_LEAST, FIRST * level))
            bucket = self._buckets[caller, kind] = _Bucket(per_minute, level, now)
            self.hungry()
        elif bucket.most != per_minute:  # the file of keys has changed
            bucket.most = per_minute
            bucket.level = min(bucket.level, per_minute)
        return bucket

    def alone(self, now: float) -> None:
        """Redis is away: each bucket refills itself from now on, with its part of the rate."""
        if self.leased:
            self.leased = False
            for bucket in self._buckets.values():
                bucket.at = now
                bucket.low = 0.0
                bucket.level += bucket.debt / bucket.proxies
                bucket.debt = 0.0

    def forget(self, now: float) -> None:
        """Forget, while alone, whose bucket is full."""
        if self.leased:
            return
        for key, bucket in list(self._buckets.items()):
            bucket.refill(now)
            if bucket.used_at < now - QUIET and bucket.level >= bucket.most:
                del self._buckets[key]

    def offers(self, now: float) -> Iterator[Offer]:
        """What this proxy has to settle at a round."""
        for (caller, kind), bucket in self._buckets.items():
            if not self.leased:
                bucket.refill(now)
            stays = bucket.used_at >= now - QUIET
            yield Offer(caller, kind, bucket.most, bucket.held - bucket.owed, stays)

    def settle(self, offer: Offer, lease: Lease, now: float) -> None:
        """Take in what the round gave for an offer; what was spent meanwhile is spent of that."""
        bucket = self._buckets.get((offer.caller, offer.kind))
        if bucket is None:
            return
        spent = bucket.owed - (bucket.held - offer.back)
        bucket.held = lease.share
        bucket.owed = spent
        bucket.level = lease.share - spent
        bucket.low = lease.share / 4
        bucket.debt = min(0.0, lease.left)
        bucket.proxies = max(1, lease.proxies)
        bucket.at = now
        if not offer.stays and not spent:
            del self._buckets[offer.caller, offer.kind]


def _nothing() -> None:
    """Nobody is to be told."""
