"""The seam between one proxy's index and whatever other proxies share of theirs, one model pool at a time.

`Pool` is what a proxy tells the others and how it becomes the one that follows a replica's event feed;
`Listener` is what it is told. Both are used on the event loop; what a request calls is synchronous and only
queues. A proxy without Redis uses `Alone`, of the same shape.

Whoever ingests a replica's events, in order:

    claim = await pool.claim(replica)             # None: another proxy does, or Redis is away; ask again soon
    resume = await pool.resume(claim)             # where the last one stopped, or None: start from nothing
    claim.whole = lambda: Whole(epoch, seq, ...)  # optional: what to write when Redis has lost the replica
    pool.commit(claim, epoch, seq, delta)         # every batch, in order, after it was applied at home
    await claim.lost.wait()                       # another proxy has taken over: stop, it is told to us again

Invariants: what Redis holds of a replica is what its feed said up to the committed sequence number, or a part
of that; never a block that the feed had said was gone by then. Nothing raised by Redis leaves a `Pool`.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import asyncio
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from proxy.description import NOTHING, Load
from proxy.index.handles import Delta

Mode = Literal["events", "stale", "learned"]


class Disagreement(Exception):
    """Another proxy uses this namespace with another secret, block size, tokenizer or layout."""

    def __init__(self, what: str, ours: str, theirs: str) -> None:
        super().__init__(
            f"the namespace in Redis is used with another {what} ({theirs}; this proxy has {ours}): "
            f"give every proxy the same, or this one another WARMROUTE_NAMESPACE"
        )
        self.what = what
        self.ours = ours
        self.theirs = theirs


@dataclass(slots=True, frozen=True)
class Whole:
    """All that an ingester knows of its replica, as one delta that starts from nothing."""

    epoch: str
    seq: int
    delta: Delta


@dataclass(slots=True, eq=False)
class Claim:
    """The right to ingest one replica's feed. Kept alive by the pool that granted it."""

    replica: str
    token: str
    """Grows with each claim, and names who made it."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once, when commits of this claim are refused from now on."""
    whole: Callable[[], Whole | None] | None = None
    """Called on the event loop when Redis has lost what it held of this replica (restarted empty, evicted,
    full, or too many commits waited). What it returns replaces it; without it, or with None, the claim is
    lost instead."""


@dataclass(slots=True, frozen=True)
class Resume:
    """Where the last ingester of this replica stopped."""

    epoch: str
    seq: int
    handles: Iterable[tuple[int, int, int]]
    """(engine hash, our key, copies), each hash once."""


@dataclass(slots=True)
class Counts:
    """What has happened since the start, for metrics."""

    commits: int = 0
    """Batches of events written."""
    changes: int = 0
    """Block changes in them, after those that cancel out within one write."""
    commits_dropped: int = 0
    """Batches that never reached Redis; the replica was written anew, or its claim is lost."""
    commits_refused: int = 0
    """Batches of a claim that is lost, or of an epoch that is over."""
    rewrites: int = 0
    """Replicas written anew from what their ingester knows."""
    published: int = 0
    """Placements, and what was learned of them, told to the other proxies."""
    publications_dropped: int = 0
    received: int = 0
    """Messages of other proxies."""
    broken: int = 0
    """Log entries that could not be read."""
    gaps: int = 0
    """Times that entries of the log were missed, so that everything was read anew."""
    snapshots: int = 0
    """Replicas read whole."""
    full: int = 0
    """Writes refused because Redis is out of memory."""
    failures: int = 0
    """Calls that failed otherwise."""


class Listener(Protocol):
    """What a proxy is told by the others; synchronous, on the event loop. Its own words do not come back."""

    def changed(
        self,
        replica: str,
        epoch: str,
        cleared: bool,  # noqa: FBT001 - passed by name
        removed: array[int],
        stored: array[int],
    ) -> None:
        """The replica's engine said so: first everything is gone (if `cleared`), then these, then stored."""

    def snapshot(self, replica: str, epoch: str, keys: array[int], *, first: bool) -> None:
        """Part of what a replica holds; `first`: forget what was known before. Parts may overlap."""

    def predicted(self, origin: str, number: int, replica: str, keys: array[int]) -> None:
        """Proxy `origin` has placed a prompt; `number` is its own name for that."""

    def retracted(self, origin: str, number: int) -> None:
        """That placement came to nothing."""

    def reported(self, origin: str, number: int, predicted: int, reported: int) -> None:
        """The engine found more or fewer blocks cached than predicted for that placement."""

    def forgotten(self, replica: str) -> None:
        """The replica was removed."""

    def mode(self, replica: str, epoch: str, mode: Mode) -> None:
        """How well the replica's feed is followed by whoever ingests it; `learned` if by nobody.

        Said before anything else of an epoch, then whenever it changes: `stale` before a snapshot, what it is
        after the last part.
        """

    def lost_track(self) -> None:
        """Entries were missed: what others said is unknown until the snapshots that follow by themselves."""


class Pool(Protocol):
    """What one proxy shares with the others of one model pool."""

    counts: Counts

    @property
    def up(self) -> bool:
        """Whether what is said here reaches the others at present."""

    @property
    def lag(self) -> float:
        """Seconds from saying something to its being readable by the others, of late; 0.0 when unknown."""

    async def agree(self) -> None:
        """Compare this proxy's settings with the namespace's; raises `Disagreement`."""

    async def start(self) -> None:
        """Read what is shared, in the background, and follow it. Raises `Disagreement`."""

    async def close(self) -> None:
        """Send what waits (briefly), release every claim, stop."""

    async def claim(self, replica: str) -> Claim | None:
        """The right to ingest this replica's feed, or None: ask again in a second or so."""

    async def release(self, claim: Claim) -> None:
        """Give it up at once, for another proxy to take."""

    async def resume(self, claim: Claim) -> Resume | None:
        """What the last ingester left, or None: nothing, or nothing that can be continued."""

    def commit(self, claim: Claim, epoch: str, seq: int, delta: Delta) -> None:
        """One batch of the feed, up to sequence number `seq`. Another epoch than before ends the old one."""

    def announce(self, claim: Claim, epoch: str, mode: Mode) -> None:
        """Tell how well the feed is followed."""

    def predicted(self, number: int, replica: str, keys: array[int]) -> None:
        """A prompt was placed. `keys` must not change afterwards."""

    def retracted(self, number: int) -> None:
        """That placement came to nothing."""

    def reported(self, number: int, predicted: int, reported: int) -> None:
        """The engine found more or fewer blocks cached than predicted."""

    def forgotten(self, replica: str) -> None:
        """The replica was removed: whatever is shared of it goes, and whoever ingests it must stop."""

    def others(self, replica: str) -> Load:
        """What the other proxies that live have under way there, a few tenths of a second ago.

        Zero while that is not known.
        """


class Alone:
    """A pool of one: every claim is granted, and what is said goes nowhere."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._granted = 0

    @property
    def up(self) -> bool:
        """Nobody is there to be reached."""
        return False

    @property
    def lag(self) -> float:
        """Unknown."""
        return 0.0

    async def agree(self) -> None:
        """Nobody is there to disagree."""

    async def start(self) -> None:
        """Nothing is shared."""

    async def close(self) -> None:
        """Nothing runs."""

    async def claim(self, replica: str) -> Claim:
        """Granted."""
        self._granted += 1
        return Claim(replica, f"{self._granted}:alone")

    async def release(self, claim: Claim) -> None:
        """Nobody waits for it."""

    async def resume(self, claim: Claim) -> None:
        """Nobody was before."""

    def commit(self, claim: Claim, epoch: str, seq: int, delta: Delta) -> None:
        """Known at home already."""

    def announce(self, claim: Claim, epoch: str, mode: Mode) -> None:
        """Nobody listens."""

    def predicted(self, number: int, replica: str, keys: array[int]) -> None:
        """Nobody listens."""

    def retracted(self, number: int) -> None:
        """Nobody listens."""

    def reported(self, number: int, predicted: int, reported: int) -> None:
        """Nobody listens."""

    def forgotten(self, replica: str) -> None:
        """Nobody listens."""

    def others(self, replica: str) -> Load:  # noqa: ARG002 - of the protocol
        """There are none."""
        return NOTHING
