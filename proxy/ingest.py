"""The replicas' events: each replica that publishes is followed by one of the proxies that share the index.

Told what becomes of replicas, synchronously; what must wait runs in a task for each replica. It never
deregisters a replica for its silence, and never keeps a request waiting.
"""

import asyncio
from collections.abc import Callable, Coroutine
from time import monotonic, perf_counter
from typing import Any, Literal

import zmq

from proxy.fleet import Fleet
from proxy.following import Following
from proxy.index.feed import Turns
from proxy.index.truth import TrueIndex
from proxy.standing import COOLDOWN_SECONDS, SILENT_SECONDS, Counts, Surroundings
from proxy.tasks import Tasks
from proxy.watch import CLAIM_SECONDS, Home, Watch

CLOSE_SECONDS = 2.0


class Ingest:
    """All feeds of one proxy."""

    def __init__(
        self,
        fleet: Fleet,
        index: TrueIndex,
        tasks: Tasks,
        *,
        home: Callable[[str], Home | None],
        look: Callable[[str], Coroutine[Any, Any, bool]],
        forget: Callable[[str], None],
        silent_seconds: float = SILENT_SECONDS,
        cooldown_seconds: float = COOLDOWN_SECONDS,
        claim_seconds: float = CLAIM_SECONDS,
    ) -> None:
        """`home`: where a replica of this name belongs, None if it is unknown yet. `look`: `Probes.look`.

        `forget`: forgets all that the index believes of a replica, but for its size.
        """
        self.counts = Counts()
        self._fleet = fleet
        self._index = index
        self._tasks = tasks
        self._home = home
        self._claim_seconds = claim_seconds
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._around = Surroundings(
            index=index,
            context=self._context,
            turns=Turns(perf_counter),
            counts=self.counts,
            clock=monotonic,
            look=look,
            forget=forget,
            start=tasks.start,
            silent_seconds=silent_seconds,
            cooldown_seconds=cooldown_seconds,
        )
        self._watches: dict[str, Watch] = {}

    def described(self, name: str) -> None:
        """A replica has said what it is: follow its feed, if it has one."""
        description = self._fleet.replicas[name].description
        watch = self._watches.get(name)
        if watch is None and description.feed is not None:
            watch = self._watches[name] = Watch(name, self._around, self._home, self._claim_seconds)
            self._tasks.start(f"events of {name}", watch.run())
        if watch is not None:
            watch.described(description)

    def restarted(self, name: str) -> None:
        """The replica is another process: nothing that the one before has said is applied any more.

        `described` follows, once the new one has said what it is.
        """
        if (watch := self._watches.get(name)) is not None:
            watch.described(None)

    def removed(self, name: str) -> None:
        """The replica is no more of the fleet: what is shared of it goes as well."""
        home = self._home(name)
        if (watch := self._watches.pop(name, None)) is not None:
            watch.stop()
        if home is not None:
            home.shared.forgotten(name)

    def served(self, name: str, tokens: int) -> None:
        """A replica has answered, and computed so many tokens: of the prompt uncached, and the answer's."""
        if (watch := self._watches.get(name)) is not None:
            watch.served(tokens)

    def flushed(self, name: str) -> None:
        """The engine has dropped its cache."""
        following = self.following(name)
        if following is not None:
            following.flushed()
            return
        mode = self._index.mode(name)
        self._around.forget(name)
        self._index.set_mode(name, mode)

    def resync(self, name: str, why: str) -> None:
        """What is known of the replica does not agree with what it reports."""
        if (following := self.following(name)) is not None:
            following.resync(why)

    def following(self, name: str) -> Following | None:
        """The following of this replica in this proxy; None if another proxy follows it, or nobody."""
        watch = self._watches.get(name)
        following = watch.following if watch is not None else None
        return None if following is None or following.closed else following

    def mode(self, name: str) -> Literal["learned", "events", "stale", "bytes"]:
        """What is believed of a replica's cache; `bytes` where prompts have no tokens to compare."""
        home = self._home(name)
        return "bytes" if home is not None and home.model.mode == "bytes" else self._index.mode(name)

    async def close(self) -> None:
        """Stop following, and let others go on at once."""
        watches = list(self._watches.values())
        for watch in watches:
            watch.stop()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for watch in watches:
                    await watch.ended.wait()
        except TimeoutError:
            pass
        self._context.destroy(linger=0)
