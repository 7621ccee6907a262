"""A following of one replica's events, without sockets and Redis.

`Watched` is the real `Following`, and beside it what it should know. `Line` is in the place of its feed: a
wire on which messages wait, and a replay. `Shared` is what Redis holds of the replica, and its log. Nothing
here waits: whoever uses it says what comes when.
"""

from dataclasses import dataclass, field
from typing import Any

from proxy.description import FeedSpec
from proxy.following import Following
from proxy.shared.base import Claim, Resume
from proxy.shared.layout import Record
from tests.support.engine_model import BLOCK, Known, Message, root

REPLICA = "r"
JOINED = None
"""On a wire: the publisher is connected, perhaps another process."""
SPEC = FeedSpec("tcp://127.0.0.1:1", replay="tcp://127.0.0.1:2")


class Line:
    """One following's connection to the publisher, in the place of `Feed`."""

    def __init__(self) -> None:
        self.wire: list[Message | None] = []
        self.asked: int | None = None
        self.answer: list[Message] | None = None
        """What is left of the replay; None while the publisher has not looked."""
        self.open_ = False

    def open(self) -> None:
        self.open_ = True
        self.wire = [JOINED]

    def replay(self, first: int) -> None:
        self.asked, self.answer = first, None

    def close(self) -> None:
        self.open_, self.wire, self.asked = False, [], None

    @property
    def upcoming(self) -> int:
        """How many messages may overtake each other: those of one connection."""
        return self.wire.index(JOINED) if JOINED in self.wire else len(self.wire)


@dataclass
class Row:
    """What Redis holds of the replica."""

    epoch: str
    seq: int = -1
    mode: str = "events"
    blocks: set[int] = field(default_factory=set)
    handles: dict[int, tuple[int, int]] = field(default_factory=dict)
    known: Known | None = None
    """What should be held."""


@dataclass
class Shared:
    row: Row | None = None
    log: list[tuple[str, Record]] = field(default_factory=list)


class Watched(Following):
    """A following, and what it should know."""

    def __init__(self, proxy: Any, claim: Claim) -> None:
        engine = proxy.engine
        started = proxy.started
        super().__init__(
            proxy.around,
            REPLICA,
            SPEC,
            pool=proxy,
            claim=claim,
            epoch=f"?{proxy.number()}" if started is None else repr(started),
            lasting=started is not None,
            root=root,
            block_size=BLOCK,
            copies="counted" if engine.counted else "unknown",
        )
        self.line = self._feed = Line()
        self.proxy = proxy
        self.known = Known(engine.counted)
        self.stale = 0
        """Times that messages were given up."""

    @property
    def standing(self):
        return self._standing

    async def _take_over(self, resume: Resume) -> None:
        self.known = self.proxy.shared.row.known.told()
        await super()._take_over(resume)

    def _apply(self, seq: int, payload: bytes) -> None:
        message = self.proxy.engine.messages[payload]
        assert message.seq == seq
        self.known.hear(message, unseen=self._lasting and message.process > self.proxy.process)
        super()._apply(seq, payload)

    def _lost(self, step) -> None:
        self.stale += 1
        self.known = Known(self.known.counted, whole=False)
        super()._lost(step)

    def _restarted(self) -> None:
        self.known = Known(self.known.counted)
        super()._restarted()

    def _begin_again(self) -> None:
        self.known = Known(self.known.counted)
        super()._begin_again()

    def flushed(self) -> None:
        self.known.forget()
        super().flushed()
