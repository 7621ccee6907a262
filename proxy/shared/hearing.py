"""What the records of a pool's log do to a listener. Synchronous, no I/O.

It knows which epoch of each replica the listener has heard of, and which replicas must be read whole before
what changes in them can be told. Invariants: a replica that this proxy ingests is never touched by what
others say of it; changes of an epoch that is over are not told; of a replica that nobody follows nothing is
relied upon before its next snapshot or new beginning.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import cast

from proxy.shared.base import Counts, Listener, Mode
from proxy.shared.layout import Changed, Followed, Forgotten, Predicted, Record, Reported, Retracted
from proxy.shared.snapshot import Held


class Hearing:
    """One listener, and what it has heard of."""

    def __init__(
        self,
        listener: Listener,
        counts: Counts,
        *,
        ours: Callable[[str], bool],
        removed: Callable[[str], None],
    ) -> None:
        """`ours`: whether this proxy ingests a replica. `removed`: called when another says that one was."""
        self.listener = listener
        self.ours = ours
        self.epochs: dict[str, str] = {}
        self.again: set[str] = set()
        """Replicas to be read whole."""
        self._counts = counts
        self._removed = removed
        self._unread: set[str] = set()
        """Replicas whose listener was told that nobody follows them."""

    def lost(self) -> None:
        """Nothing is known any more."""
        self.epochs.clear()
        self.listener.lost_track()

    def unknown(self, replica: str) -> None:
        """Nothing is shared of it."""
        self._unread.discard(replica)
        self.listener.mode(replica, "", "learned")

    def reading(self, held: Held) -> None:
        """It is about to be read whole."""
        self.epochs[held.replica] = held.epoch
        self.listener.mode(held.replica, held.epoch, "stale")

    def read(self, held: Held) -> None:
        """All of it was told."""
        self._unread.discard(held.replica)
        if held.mode == "learned":
            self._unread.add(held.replica)
        self.listener.mode(held.replica, held.epoch, held.mode)
        self._counts.snapshots += 1

    def heard(self, origin: str, record: Record) -> None:
        """Another proxy says this now."""
        listener = self.listener
        self._counts.received += 1
        match record:
            case Changed():
                self._changed(record)
            case Followed():
                self._mode(record)
            case Forgotten(replica):
                self.epochs.pop(replica, None)
                self.again.discard(replica)
                self._unread.discard(replica)
                listener.forgotten(replica)
                self._removed(replica)
            case _:
                self._placed(origin, record)

    def _placed(self, origin: str, record: Record) -> None:
        match record:
            case Predicted(number, replica, keys):
                self.listener.predicted(origin, number, replica, keys)
            case Retracted(number):
                self.listener.retracted(origin, number)
            case Reported(number, predicted, reported):
                self.listener.reported(origin, number, predicted, reported)
            case _:
                pass

    def recalled(self, origin: str, record: Record, followed: AbstractSet[str]) -> None:
        """Another proxy said this some time ago, and of the replicas `followed` better is known."""
        if isinstance(record, Predicted | Forgotten) and record.replica in followed:
            return
        if isinstance(record, Forgotten):
            self.listener.forgotten(record.replica)
        self._placed(origin, record)

    def _mode(self, record: Followed) -> None:
        replica, epoch, mode = record.replica, record.epoch, cast("Mode", record.mode)
        if self.epochs.get(replica) != epoch or self.ours(replica):
            return
        if replica in self._unread and mode != "learned":
            self.again.add(replica)  # what changed while nobody followed it was not taken in
            return
        if mode == "learned":
            self._unread.add(replica)
        self.listener.mode(replica, epoch, mode)

    def _changed(self, record: Changed) -> None:
        replica, epoch, listener = record.replica, record.epoch, self.listener
        if self.ours(replica):
            return
        known = self.epochs.get(replica)
        if record.cleared:
            self.epochs[replica] = epoch
            self._unread.discard(replica)
            listener.mode(replica, epoch, "events")
        elif known is None:
            self.again.add(replica)  # it was being written when it was looked for
            return
        elif known != epoch:
            return
        listener.changed(replica, epoch, record.cleared, record.removed, record.stored)
