"""What this proxy's index has in common with others': one shared pool a model, and what is heard there.

A model pool is shared as soon as its prompts can be keyed, for keys made otherwise would never match. Without
Redis every pool is a pool of one. Invariants: what others say of a replica counts only while they are
followed; a process of a replica that was seen to end is never believed again, whoever still speaks of it.
"""

from __future__ import annotations  # array[int] is no class before Python 3.12

import secrets
from array import array
from collections import defaultdict, deque
from collections.abc import Callable

from proxy import redis_url
from proxy.config import Settings
from proxy.description import Load
from proxy.fleet import Fleet
from proxy.index.remote import Remote
from proxy.index.truth import TrueIndex
from proxy.logs import logger
from proxy.model_pool import ModelPool
from proxy.rates import Rates
from proxy.shared.base import Alone, Disagreement, Mode, Pool
from proxy.shared.client import Link
from proxy.shared.pool import SharedPool
from proxy.shared.pool import settings as common
from proxy.shared.rates import Leases
from proxy.shared.topology import Topology

OVER = 16
"""Processes of one replica that are remembered to have ended."""


def link_of(settings: Settings, beside: Topology | None) -> Link | None:
    """The way to Redis; None without one. `beside`: where the one is that the supervisor of workers runs."""
    if settings.redis_url == "none":
        return None
    return Link(
        redis_url.parse(settings.redis_url),
        budget=settings.redis_timeout_ms / 1000,
        topology=beside if settings.redis_url == "embedded" else None,
    )


def leases_of(settings: Settings, link: Link, rates: Rates) -> Leases:
    """What callers' rates have in common with other proxies'."""
    return Leases(
        link,
        rates,
        namespace=settings.namespace,
        secret=settings.secret.get_secret_value().encode(),
        origin=secrets.token_hex(8),
    )


class Sharing:
    """The shared pools by model."""

    def __init__(self, settings: Settings, link: Link | None, fleet: Fleet, index: TrueIndex) -> None:
        self.link = link
        self.refused: Disagreement | None = None
        """Why a pool is not shared although it should be."""
        self.emptied: Callable[[str], None] = index.forget
        """Called with a replica that another proxy emptied or removed."""
        self._settings = settings
        self._fleet = fleet
        self._index = index
        self._remote = Remote(index)
        self._private = settings.redis_url == "embedded"
        self._origin = secrets.token_hex(8)
        self._alone = Alone()
        self._pools: dict[str, SharedPool] = {}
        self._heard: dict[str, _Heard] = {}

    def of(self, replica: str) -> Pool:
        """The pool in which a replica's index is shared."""
        return self._shared(replica) or self._alone

    def audience(self, replica: str) -> SharedPool | None:
        """Who is told of placements on a replica; None if nobody, as where nobody shares a private Redis."""
        shared = self._shared(replica)
        return None if self._private and shared is not None and not shared.proxies else shared

    def pools(self) -> dict[str, SharedPool]:
        """Model to what is shared of it."""
        return self._pools

    async def open(self, pool: ModelPool) -> None:
        """Share a pool whose keyer is there, and was not before."""
        if self.link is None or pool.keyer is None:
            return
        heard = _Heard(self._index, self._remote, self._emptied)
        shared = SharedPool(
            self.link,
            heard,
            namespace=self._settings.namespace,
            pool=pool.model,
            origin=self._origin,
            settings=common(
                self._settings.secret.get_secret_value().encode(),
                pool.block_size,
                pool.keyer.fingerprint.hex(),
            ),
            load=lambda: self._loads(pool.model),
        )
        # Before anything is waited for: nobody may follow a replica on its own meanwhile.
        self._pools[pool.model] = shared
        self._heard[pool.model] = heard
        try:
            await shared.start()
        except Disagreement as error:
            self.refused = error
            logger.error("model %s is not shared: %s", pool.model, error)
            del self._pools[pool.model], self._heard[pool.model]
            await shared.close()

    async def leave(self, pool: ModelPool) -> None:
        """Share a pool no longer: its prompts are keyed otherwise from now on."""
        shared = self._pools.pop(pool.model, None)
        heard = self._heard.pop(pool.model, None)
        if shared is not None:
            await shared.close()
        if heard is not None:
            heard.lost_track()

    def restarted(self, replica: str) -> bool:
        """The process that was described has ended: nobody's word on it counts any more.

        True if others tell of the next one already, so that what is believed is true of that.
        """
        known = self._fleet.replicas.get(replica)
        started = None if known is None else known.description.started_at
        later = [heard.ended(replica, started) for heard in self._heard.values()]
        return any(later)

    def forget(self, replica: str) -> None:
        """The replica has left this fleet for good."""
        for heard in self._heard.values():
            heard.forget(replica)

    def look(self) -> None:
        """Take in what other proxies have in flight; what they no longer have is room."""
        changed = False
        for name, replica in self._fleet.replicas.items():
            shared = self._shared(name)
            if shared is not None:
                before = replica.elsewhere
                replica.share(shared.others(name))
                changed |= replica.elsewhere != before
        if changed:
            self._fleet.freed()

    async def close(self) -> None:
        """Leave every pool, then Redis."""
        for shared in self._pools.values():
            await shared.close()
        if self.link is not None:
            await self.link.close()

    def _emptied(self, replica: str) -> None:
        self.emptied(replica)

    def _shared(self, replica: str) -> SharedPool | None:
        known = self._fleet.replicas.get(replica)
        base = None if known is None else known.description.base_model
        return None if base is None else self._pools.get(base)

    def _loads(self, model: str) -> dict[str, Load]:
        return {
            name: replica.load
            for name, replica in self._fleet.replicas.items()
            if replica.description.base_model == model
        }


class _Heard:
    """A `Listener`: what others say of one pool's replicas, taken in by the index."""

    def __init__(self, index: TrueIndex, remote: Remote, emptied: Callable[[str], None]) -> None:
        self._index = index
        self._emptied = emptied
        self._epochs: dict[str, str] = {}
        """The process of each replica that others follow."""
        self._over: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=OVER))
        """The processes of each replica that were seen to end; whoever follows it may be behind."""
        self.predicted = remote.predicted
        self.retracted = remote.retracted
        self.reported = remote.reported

    def ended(self, replica: str, started: float | None) -> bool:
        """The process that began at `started` has ended; True if it is a later one that is spoken of."""
        epoch = self._epochs.get(replica)
        if started is not None and epoch is not None and (_started(epoch) or 0.0) > started:
            self._over[replica].append(repr(started))
            return True
        over = self._epochs.pop(replica, None) if started is None else repr(started)
        if over is not None:
            self._over[replica].append(_process(over))
            self._epochs.pop(replica, None)
        return False

    def forget(self, replica: str) -> None:
        """Nothing of it is kept."""
        self._epochs.pop(replica, None)
        self._over.pop(replica, None)

    def mode(self, replica: str, epoch: str, mode: Mode) -> None:
        """See `Listener.mode`."""
        if epoch and _process(epoch) in self._over.get(replica, ()):
            return
        if mode == "learned":
            self._epochs.pop(replica, None)
        else:
            self._epochs[replica] = epoch
        self._index.set_mode(replica, mode)

    def changed(
        self,
        replica: str,
        epoch: str,
        cleared: bool,  # noqa: FBT001 - the signature is the pool's
        removed: array[int],
        stored: array[int],
    ) -> None:
        """See `Listener.changed`."""
        if self._epochs.get(replica) == epoch:
            self._index.apply(replica, cleared=cleared, removed=removed, stored=stored)

    def snapshot(self, replica: str, epoch: str, keys: array[int], *, first: bool) -> None:
        """See `Listener.snapshot`."""
        if self._epochs.get(replica) == epoch:
            self._index.apply(replica, cleared=first, removed=(), stored=keys)

    def forgotten(self, replica: str) -> None:
        """See `Listener.forgotten`."""
        self._epochs.pop(replica, None)
        self._emptied(replica)

    def lost_track(self) -> None:
        """See `Listener.lost_track`."""
        for replica in self._epochs:
            self._index.set_mode(replica, "stale")
        self._epochs.clear()


def _process(epoch: str) -> str:
    """The process that an epoch is of: its numbers may have begun anew, which follows a plus."""
    return epoch.partition("+")[0]


def _started(epoch: str) -> float | None:
    """When the process of an epoch began; None if it does not tell."""
    try:
        return float(_process(epoch))
    except ValueError:
        return None
