"""The link to Redis: what everything of this proxy that talks to Redis calls, and the only thing that does.

No request ever waits for it (`budget` is there for whatever might one day). It fails at once while Redis is
away, and comes back by itself: one background task looks for the primary, checks that it answers and is a
primary, and checks again every `PULSE` seconds. Nothing that was sent is ever sent again, but for what the
server itself said it did not do (NOSCRIPT, MOVED, ASK).

Every failure is a `redis.exceptions.RedisError`: `LinkDown` for what was never sent, `TimeoutError` and
`ConnectionError` for what may or may not have been done, `ResponseError` for what Redis refused.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from redis import exceptions

from proxy.logs import logger
from proxy.redis_url import Address, RedisURL, spell
from proxy.shared.embedded import Embedded
from proxy.shared.script import Script
from proxy.shared.servers import Servers
from proxy.shared.topology import Cluster, Sentinel, Single, Topology
from proxy.shared.wire import CONNECT, Argument, Command, Reply
from proxy.tasks import Tasks

DEADLINE = 1.0
"""Seconds that a command in the background may take; one that takes longer takes the link down."""
PULSE = 1.0
"""Seconds between two looks at a Redis that answers."""
FIRST_DELAY, LAST_DELAY = 0.02, 2.0
"""Seconds between two attempts to reach a Redis that is away: doubled each time, and scattered."""
STEADY = 5.0
"""Seconds that Redis must stay before the delays begin anew."""
_DEMOTED = ("READONLY", "UNBLOCKED", "MASTERDOWN", "CLUSTERDOWN")
"""In the error reply of a server that is no longer, or not yet, the one to ask."""


class LinkDown(exceptions.ConnectionError):
    """Redis is away, and nothing was sent."""


class Link:
    """One Redis, as one proxy sees it. Its counters only grow."""

    def __init__(self, url: RedisURL, *, budget: float = 0.002, topology: Topology | None = None) -> None:
        """`topology` finds the server in place of what the URL says."""
        if url.kind == "none":
            raise ValueError("redis_url is none: there is nothing to link to")
        self.budget = budget
        """Seconds: `timeout` where a request waits."""
        self.up = False
        self.since = time.monotonic()
        """When `up` last changed."""
        self.why = "it has not been reached yet"
        """Why it is not up, for logs and /ready; nothing secret is in it."""
        self.commands = 0
        """Sent, each command of a pipeline counted."""
        self.failures = 0
        """Sent, and refused or not answered in time."""
        self.drops = 0
        """Not sent, since the link was down."""
        self.reconnects = 0
        """Times that it came up after it had been up before."""
        self._url = url
        self._servers = Servers(url)
        self._topology = topology or self._choose()
        self._primaries: frozenset[Address] = frozenset()
        self._generation = 0
        self._was_up = False
        self._told: set[str] = set()
        self._callbacks: list[Callable[[], None]] = []
        self._risen = asyncio.Event()
        self._tried = asyncio.Event()
        self._wake = asyncio.Event()
        self._tasks = Tasks()

    @property
    def addresses(self) -> frozenset[Address]:
        """The primaries, as they were found last."""
        return self._primaries

    async def start(self) -> None:
        """Begin to look for Redis; returns after the first attempt, or after `DEADLINE` seconds."""
        self._tasks.start("redis link", self._keep())
        try:
            async with asyncio.timeout(DEADLINE):
                await self._tried.wait()
        except TimeoutError:
            pass

    async def close(self) -> None:
        """End it: what is in flight fails, and an embedded server ends."""
        await self._tasks.close()
        self._wake.set()
        self.up = False
        self.why = "it was closed"
        self._risen.clear()
        self._servers.keep(frozenset())
        await self._topology.close()

    def on_up(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever Redis is there again, perhaps empty or behind; at once if it is there.

        What is given back ends that.
        """
        self._callbacks.append(callback)
        if self.up:
            callback()
        return lambda: self._callbacks.remove(callback)

    async def wait_up(self) -> None:
        """Return when Redis is there."""
        await self._risen.wait()

    async def call(self, *command: Argument, timeout: float = DEADLINE) -> Reply:
        """Run one command; its reply as Redis sent it, strings as bytes.

        A `timeout` below `DEADLINE` is the caller's impatience and not held against Redis.
        """
        return _checked(await self._run([command], timeout))

    async def pipeline(self, commands: Sequence[Command], *, timeout: float = DEADLINE) -> list[Reply]:
        """Run commands in one go on one connection; a refused one is a `ResponseError` in its place.

        In a cluster all of them go to the node of the first key. No transaction, unless MULTI and EXEC are
        among them.
        """
        return await self._run(commands, timeout) if commands else []

    async def script(
        self,
        script: Script,
        keys: Sequence[Argument] = (),
        args: Sequence[Argument] = (),
        *,
        timeout: float = DEADLINE,
    ) -> Reply:
        """Run a script."""
        rest = (len(keys), *keys, *args)
        (reply,) = await self._run([("EVALSHA", script.sha, *rest)], timeout)
        if isinstance(reply, exceptions.NoScriptError):
            (reply,) = await self._run([("EVAL", script.text, *rest)], timeout)
        return _checked([reply])

    async def blocking(self, *command: Argument, seconds: float) -> Reply:
        """Run a command that may block for `seconds` at the server, on a connection of its own."""
        return _checked(await self._run([command], seconds + DEADLINE, blocking=True))

    async def _run(
        self, commands: Sequence[Command], seconds: float, *, blocking: bool = False
    ) -> list[Reply]:
        if not self.up:
            self.drops += len(commands)
            raise LinkDown(f"Redis is away: {self.why}")
        self.commands += len(commands)
        generation = self._generation
        try:
            async with asyncio.timeout(seconds):
                replies = await self._exchange(commands, blocking=blocking)
        except exceptions.DataError:
            raise  # an argument that cannot be sent: the caller's fault
        except TimeoutError:
            self.failures += len(commands)
            why = f"it did not answer within {seconds:g} s"
            if seconds >= DEADLINE:
                self._lower(why, generation)
            raise exceptions.TimeoutError(f"Redis: {why}") from None
        except (exceptions.RedisError, OSError) as error:
            self.failures += len(commands)
            self._lower(_reason(error), generation)
            if isinstance(error, exceptions.RedisError):
                raise
            raise exceptions.ConnectionError(str(error)) from error
        for reply in replies:
            if isinstance(reply, exceptions.ResponseError) and not isinstance(
                reply, exceptions.NoScriptError
            ):
                self.failures += 1
                self._judge(reply, generation)
        return replies

    async def _exchange(self, commands: Sequence[Command], *, blocking: bool) -> list[Reply]:
        address = self._topology.node(commands)
        pool_of = self._servers.blocking if blocking else self._servers.commands
        replies = await pool_of(address).exchange(commands)
        sent_on = [reply for reply in replies if isinstance(reply, exceptions.AskError)]
        if len(sent_on) < len(commands):
            return replies
        # Every command was refused because its slot is elsewhere: none was done, so all may be sent there.
        first = sent_on[0]
        pool = pool_of((first.host or address[0], first.port))
        if isinstance(first, exceptions.MovedError):
            self._wake.set()
            return await pool.exchange(commands)
        asking = [each for command in commands for each in (("ASKING",), command)]
        return (await pool.exchange(asking))[1::2]

    def _judge(self, refusal: exceptions.ResponseError, generation: int) -> None:
        """Look elsewhere if the server says that it is not the one to ask."""
        if isinstance(refusal, (exceptions.ReadOnlyError, exceptions.ClusterDownError)) or any(
            word in str(refusal) for word in _DEMOTED
        ):
            self._lower(f"it is not the primary now ({refusal})", generation)
        elif isinstance(refusal, exceptions.AskError):
            self._wake.set()

    async def _keep(self) -> None:
        """Look for Redis for as long as this lives."""
        delay = FIRST_DELAY
        while True:
            self._wake.clear()
            try:
                primaries = await self._look()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next look may succeed
                self._lower(_reason(error), self._generation)
            else:
                self._rise(primaries)
                self._tried.set()
                try:
                    async with asyncio.timeout(PULSE):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                if time.monotonic() - self.since > STEADY:
                    delay = FIRST_DELAY
            self._tried.set()
            if not self.up:
                await asyncio.sleep(delay * random.uniform(0.5, 1))
                delay = min(2 * delay, LAST_DELAY)

    async def _look(self) -> frozenset[Address]:
        """Find the primaries and check each."""
        primaries = await self._topology.find()
        for address in primaries:
            try:
                async with asyncio.timeout(CONNECT):
                    pong, role = await self._servers.blocking(address).exchange([("PING",), ("ROLE",)])
            except TimeoutError:
                raise exceptions.TimeoutError(f"{spell(address)} does not answer") from None
            _checked([pong])
            if isinstance(role, list) and role[0] == b"slave":  # one that may not ask is not told
                raise exceptions.ReadOnlyError(f"{spell(address)} is a replica")
        return primaries

    def _rise(self, primaries: frozenset[Address]) -> None:
        if self.up and primaries != self._primaries:
            self._lower("the primary has changed", self._generation)
        self._primaries = primaries
        self._servers.keep(primaries.union(self._url.addresses))
        if self.up:
            return
        away = time.monotonic() - self.since
        self.up, self.since, self.why = True, time.monotonic(), ""
        self._risen.set()
        self._told.clear()
        self.reconnects += self._was_up
        logger.info("Redis (%s) is there%s", self._url, f" again after {away:.1f} s" if self._was_up else "")
        self._was_up = True
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - one that fails must not keep Redis from the others
                logger.exception("what waited for Redis failed")

    def _lower(self, why: str, generation: int) -> None:
        """Take the link down, unless what failed was begun before it last came up."""
        if generation != self._generation:
            return
        if self.up:
            self.up, self.since = False, time.monotonic()
            self._generation += 1
            self._risen.clear()
            self._wake.set()
        # Nothing may stay connected to a server that was demoted, or behind a name that now is another's.
        self._servers.reset()
        self.why = why
        if why not in self._told:
            self._told.add(why)
            logger.warning("Redis (%s) is away, requests go on without it: %s", self._url, why)

    def _choose(self) -> Topology:
        url = self._url
        if url.kind == "embedded":
            return Embedded(lambda: self._lower("the embedded server ended", self._generation))
        if url.kind == "sentinel":
            return Sentinel(url.addresses, url.service, self._servers.sentinel)
        if url.kind == "cluster":
            return Cluster(url.addresses, self._servers.blocking)
        return Single(url.addresses[0])


def _checked(replies: list[Reply]) -> Reply:
    (reply,) = replies
    if isinstance(reply, exceptions.ResponseError):
        raise reply
    return reply


def _reason(error: BaseException) -> str:
    """Say what is wrong, and the fix where there is one."""
    text = str(error) or type(error).__name__
    if isinstance(error, exceptions.AuthenticationError):
        return f"it refuses the credentials ({text}): correct user and password in redis_url"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"{text}: name who signed it, redis_url=rediss://...?ssl_ca_certs=FILE"
    if " connecting to " in text:
        return f"{text.rstrip('.')}: start it, or correct redis_url"
    return text
