"""How well one replica's feed is followed, and who is told: the index here, and the other proxies.

*learned* until the feed has said a word and while it is silent, *stale* where not all of the replica's blocks
are known, *events* where they are. Told what has happened and the time; it never looks at a feed itself.
"""

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import zmq

from proxy.description import FeedSpec
from proxy.index.feed import Turns
from proxy.index.handles import Delta
from proxy.index.truth import TrueIndex
from proxy.logs import logger
from proxy.shared.base import Claim, Mode, Pool

SILENT_SECONDS = 60.0
"""How long replies may come that should have stored blocks, and no event of them, before a feed is silent."""
COOLDOWN_SECONDS = 30.0
"""How long a feed that has lost messages for good is *stale*, from the last sign that blocks which the engine
stored before are still in use."""
FLAG = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}\''
)


@dataclass(slots=True)
class Counts:
    """What has come of all feeds since the start, for metrics."""

    events: Counter[str] = field(default_factory=Counter)
    """Events by kind: `Stored`, `Removed`, `Cleared`."""
    batches: int = 0
    gaps: int = 0
    """Times that messages were missing and had to be asked for."""
    lost: int = 0
    """Times that they could not be had: what was known of that replica was forgotten."""
    restarts: int = 0
    """Times that the numbers of a feed began anew."""
    skipped: int = 0
    """Events that were not understood, and messages that could not be read."""
    unkeyed: int = 0
    """Blocks stored that have no key here."""
    silent: int = 0
    """Times that a replica had to be given up as silent."""
    lag: float = 0.0
    """Seconds from the engine's writing of the latest live batch to its being applied, by two clocks."""


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What all followings share."""

    index: TrueIndex
    context: zmq.Context[zmq.Socket[bytes]]
    turns: Turns
    counts: Counts
    clock: Callable[[], float]
    look: Callable[[str], Coroutine[Any, Any, bool]]
    """Asks a replica for its start time at once; False if it could not be asked."""
    forget: Callable[[str], None]
    """Forgets all that is believed of a replica's cache."""
    start: Callable[[str, Coroutine[Any, Any, None]], None]
    """Starts a background task."""
    silent_seconds: float = SILENT_SECONDS
    cooldown_seconds: float = COOLDOWN_SECONDS


class Standing:
    """The standing of one replica's feed under one claim."""

    def __init__(
        self,
        replica: str,
        spec: FeedSpec,
        around: Surroundings,
        pool: Pool,
        claim: Claim,
        epoch: str,
    ) -> None:
        self.epoch = epoch
        """The process whose blocks are told of."""
        self.applied = -1
        """Sequence of the latest batch told of."""
        self.mode: Mode = "learned"
        self.silent = False
        """Given up as silent; its next message begins it anew."""
        self._replica = replica
        self._spec = spec
        self._around = around
        self._index = around.index
        self._pool = pool
        self._claim = claim
        self._stale_until: float | None = None
        self._unanswered: float | None = None
        """Since when a reply has been without an event."""

    def begin(self) -> None:
        """Nothing is known of this process: what is known of another goes, here and everywhere."""
        self._index.set_mode(self._replica, "learned")
        self.commit(Delta(cleared=True))
        self._pool.announce(self._claim, self.epoch, "learned")

    def resumed(self) -> None:
        """What another has told of is gone on with; it is not whole before what is missing was read."""
        self.mode = "stale"
        self._pool.announce(self._claim, self.epoch, "stale")

    def set(self, mode: Mode) -> None:
        """Tell everybody, if that is a change."""
        if self._index.mode(self._replica) != mode:
            self._index.set_mode(self._replica, mode)
        if mode != self.mode:
            self.mode = mode
            self._pool.announce(self._claim, self.epoch, mode)

    def tell(self, delta: Delta) -> None:
        """What a batch has changed."""
        if first := self.mode == "learned":
            self._index.set_mode(self._replica, "stale")  # it believes no feed of which it was not told
            delta.cleared = True  # nor does any other proxy's, from the middle
        self._index.apply(self._replica, cleared=delta.cleared, removed=delta.removed, stored=delta.stored)
        self.commit(delta)
        if first:
            self.set("stale")
        if delta.unkeyed and self._stale_until is not None:
            self._cool_down()

    def commit(self, delta: Delta) -> None:
        """Tell the other proxies only."""
        self._pool.commit(self._claim, self.epoch, self.applied, delta)

    def settle(self) -> None:
        """All that has come is applied, and nothing is missing but what was lost for good."""
        if self._stale_until is not None and self._around.clock() >= self._stale_until:
            self._stale_until = None
            logger.info("replica %s: its KV events are relied upon again", self._replica)
        self.set("events" if self._stale_until is None else "stale")

    def lost(self, why: str) -> None:
        """Messages are lost for good."""
        if self._stale_until is None:
            fix = "" if self._spec.replay else "; give the engine a replay_endpoint in its --kv-events-config"
            logger.warning(
                "replica %s: some of its KV events are lost, and its cache is partly guessed for now: %s%s",
                self._replica,
                why,
                fix,
            )
        self.set("stale")  # before it is forgotten, so that the learned index is handed what was confirmed
        self._cool_down()

    def whole(self) -> None:
        """What was lost does not matter any more: everything begins anew."""
        self._stale_until = None
        self._unanswered = None
        self.silent = False

    def heard(self) -> None:
        """A live message has come."""
        self._unanswered = None

    def served(self) -> bool:
        """The replica has answered, and should have stored a block: True if that makes it silent."""
        now = self._around.clock()
        if self._unanswered is None:
            self._unanswered = now
        if self.silent or now - self._unanswered < self._around.silent_seconds:
            return False
        logger.warning(
            "replica %s should publish KV events at %s, and has not in %.0f s of traffic, so its cache is "
            "guessed from what was routed. Start the engine with %s and let this proxy reach that port",
            self._replica,
            self._spec.endpoint,
            self._around.silent_seconds,
            FLAG,
        )
        self.silent = True
        self.set("learned")
        return True

    def _cool_down(self) -> None:
        self._stale_until = self._around.clock() + self._around.cooldown_seconds
