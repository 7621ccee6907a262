"""Asks each replica how it is, every few seconds, and tells the fleet.

The proxy's own calls carry its own key, keep no cookies and follow no redirects. A replica is down after a
few misses in a row, since a busy engine answers late; a refused connection is down at once. From the first
miss on it is suspect and given less; and while it answers requests, a late probe is no miss. What the index
knows of a replica outlives a pause and ends with its process: that is another one when its start time has
changed, or, for an engine that tells none, when nobody had listened meanwhile.
"""

import asyncio
import ssl
from collections.abc import Callable

import aiohttp

from proxy import describe
from proxy.config import Settings
from proxy.description import Description
from proxy.fleet import Fleet
from proxy.logs import logger
from proxy.names import Names, Resolver
from proxy.replica import Replica
from proxy.spec import ReplicaSpec
from proxy.tasks import Tasks

LONGEST = 16 << 20
"""Bytes of an answer to the proxy's own questions."""


def session(settings: Settings, names: Names, tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """The client for the proxy's own calls; `tls` is for replicas with https."""
    key = settings.upstream_api_key
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"},
        timeout=aiohttp.ClientTimeout(total=settings.probes.timeout),
        connector=aiohttp.TCPConnector(
            ssl=tls,
            resolver=Resolver(names),
            use_dns_cache=False,
            keepalive_timeout=settings.probes.interval / 2,  # or a probe would follow no name that moves
        ),
    )


class Probes:
    """Watches the replicas."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        http: aiohttp.ClientSession,
        tasks: Tasks,
        *,
        described: Callable[[str], None],
        restarted: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._http = http
        self._tasks = tasks
        self._described = described
        """Told when a replica has said what it is, before it takes traffic."""
        self._restarted = restarted
        """Told when a replica's process is another one than before."""
        self._misses: dict[str, int] = {}
        self._hits: dict[str, int] = {}
        self._late: set[str] = set()
        """Replicas whose last probe was not answered in time, and not otherwise than in time."""
        self._answers: dict[str, int] = {}
        """Signs of life in each replica's answers to requests, until its last probe."""
        self._first: dict[str, asyncio.Event] = {}
        self._specs: dict[str, ReplicaSpec] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._refused: set[str] = set()
        """Replicas at which nobody listened, until they have been described again."""
        self._rounds: dict[str, asyncio.Task[None]] = {}

    def watch(self, spec: ReplicaSpec) -> None:
        """Begin to watch a replica."""
        self._specs[spec.name] = spec
        self._asking[spec.name] = asyncio.Lock()
        first = self._first[spec.name] = asyncio.Event()

        async def step() -> None:
            try:
                await self._probe(spec)
            finally:
                first.set()

        self._rounds[spec.name] = self._tasks.every(
            f"probe of {spec.name}", self._settings.probes.interval, step
        )

    def forget(self, name: str) -> None:
        """A replica is no more of the fleet: what is being asked of it tells nothing any more."""
        self._rounds.pop(name).cancel()
        self._first.pop(name).set()
        for known in (self._specs, self._asking, self._misses, self._hits, self._answers):
            known.pop(name, None)
        self._refused.discard(name)
        self._late.discard(name)

    def moved(self, name: str) -> None:
        """A replica's name stands for another address: another process, unless its start time says no."""
        self._refused.add(name)

    async def first_round(self) -> None:
        """Wait until each replica has been asked once."""
        await asyncio.gather(*(event.wait() for event in self._first.values()))

    async def look(self, name: str) -> bool:
        """Ask a replica at once: something about it looks like a restart.

        When this returns, a restart has been told of; False if the replica could not be asked.
        """
        spec = self._specs.get(name)
        return spec is not None and await self._ask(spec)

    def refused(self, name: str) -> None:
        """A request found nobody listening."""
        self._hits[name] = 0
        self._refused.add(name)
        if self._fleet.mark(name, up=False):
            logger.warning("replica %s refuses connections: out of rotation until it answers /health", name)

    async def _probe(self, spec: ReplicaSpec) -> None:
        alive = await self._ask(spec)
        if self._specs.get(spec.name) is spec:
            self._count(spec.name, alive=alive)

    async def _ask(self, spec: ReplicaSpec) -> bool:
        """Whether it is alive; what it says is told on the way."""
        self._late.discard(spec.name)
        async with self._asking[spec.name]:
            if self._specs.get(spec.name) is not spec:
                return False
            replica = self._fleet.replicas[spec.name]
            try:
                async with self._get(spec, "/health") as response:
                    alive = response.status < 500
                if alive:
                    await self._look(spec, replica)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                if replica.gone:
                    return False
                if not replica.description.models and not self._misses.get(spec.name):
                    logger.warning("replica %s cannot be used yet, and is asked again: %s", spec.name, error)
                logger.debug("probe of %s: %r", spec.name, error)
                if isinstance(error, TimeoutError):
                    self._late.add(spec.name)
                if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
                    error.os_error, ConnectionRefusedError
                ):
                    self.refused(spec.name)
                return False
            return alive

    def _count(self, name: str, *, alive: bool) -> None:
        answers = self._fleet.replicas[name].answers
        served, self._answers[name] = answers != self._answers.get(name, 0), answers
        if alive:
            self._fleet.answered(name)
        else:
            self._fleet.missed(name)
            if served and name in self._late:
                logger.debug("replica %s is late to answer probes, but answers requests", name)
                self._misses[name] = 0
                return
        self._hits[name] = self._hits.get(name, 0) + 1 if alive else 0
        self._misses[name] = 0 if alive else self._misses.get(name, 0) + 1
        probes = self._settings.probes
        if alive and self._hits[name] >= probes.recoveries and self._fleet.mark(name, up=True):
            logger.info("replica %s is up", name)
        elif self._misses[name] >= probes.misses and self._fleet.mark(name, up=False):
            logger.warning("replica %s is down: %d probes in a row failed", name, self._misses[name])

    async def _look(self, spec: ReplicaSpec, replica: Replica) -> None:
        """See whether it is the process that it was, and how full its cache is."""
        page = await self._text(spec, "/metrics")
        if replica.gone:
            return
        if page is not None:
            replica.view.kv_usage = describe.kv_usage(page)
        started = None if page is None else describe.started_at(page)
        known, refused = replica.description, spec.name in self._refused
        same = not refused if started is None else started == known.started_at
        if known.models and same:
            self._refused.discard(spec.name)
            return
        if known.models and (known.started_at is not None or refused):
            logger.warning("replica %s has restarted: its cache is forgotten", spec.name)
            self._restarted(spec.name)
        description = await self._describe(spec, page)
        if self._specs.get(spec.name) is not spec:
            return
        self._refused.discard(spec.name)
        self._fleet.describe(spec.name, description)
        self._described(spec.name)

    async def _describe(self, spec: ReplicaSpec, page: str | None) -> Description:
        async with self._get(spec, "/v1/models") as response:
            if response.status == 200:
                server = response.headers.get("Server", "")
                description = describe.read_models(await _whole(response), server)
            elif spec.model is not None:
                description = Description()
            else:
                raise ValueError(
                    f"/v1/models answered {response.status}; give the replica's model in the settings"
                )
        if spec.engine is not None:
            description.engine = spec.engine
        if page is not None:
            describe.read_metrics(page, description)
        if description.engine == "sglang" and (told := await self._text(spec, "/server_info")) is not None:
            describe.read_server_info(told.encode(), description)
        if description.engine == "vllm" and (told := await self._text(spec, "/kv_event_sources")) is not None:
            description.feed = describe.read_kv_event_sources(told.encode())
        if description.engine == "llama_cpp" and (told := await self._text(spec, "/props")) is not None:
            describe.read_props(told.encode(), description)
        description.feed = describe.feed(spec, description.feed)
        if spec.model is not None:
            description.models = {spec.model: None, **description.models}
        description.block_size = spec.block_size or description.block_size
        description.cache_blocks = spec.capacity or description.cache_blocks
        description.max_seqs = spec.max_seqs or description.max_seqs
        return description

    def _get(self, spec: ReplicaSpec, path: str) -> "aiohttp.client._RequestContextManager":
        return self._http.get(spec.url + path, allow_redirects=False, server_hostname=spec.server_name)

    async def _text(self, spec: ReplicaSpec, path: str) -> str | None:
        async with self._get(spec, path) as response:
            return (await _whole(response)).decode(errors="replace") if response.status == 200 else None


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The body. Raises ValueError where it is longer than anything an engine has to say."""
    whole = bytearray()
    async for chunk in response.content.iter_any():
        whole += chunk
        if len(whole) > LONGEST:
            raise ValueError(f"{response.url.path} answered more than {LONGEST >> 20} MiB")
    return bytes(whole)
