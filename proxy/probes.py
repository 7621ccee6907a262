"""Asks each engine how it is, every few seconds, and tells the fleet.

An engine is one replica, or as many as it has data-parallel ranks: they share its address, its process and
its health. What is kept here is kept by engine.

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

from proxy import describe, ranks
from proxy.config import Settings
from proxy.description import Description, FeedSpec
from proxy.fleet import Fleet
from proxy.logs import logger
from proxy.names import Names, Resolver
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
        divided: Callable[[str, int], None],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._http = http
        self._tasks = tasks
        self._described = described
        """Told when a replica has said what it is, before it takes traffic."""
        self._restarted = restarted
        """Told when a replica's process is another one than before."""
        self._divided = divided
        """Told when an engine has so many ranks, and had another number of them before."""
        self._misses: dict[str, int] = {}
        self._hits: dict[str, int] = {}
        self._late: set[str] = set()
        """Engines whose last probe was not answered in time, and not otherwise than in time."""
        self._answers: dict[str, int] = {}
        """Signs of life in each engine's answers to requests, until its last probe."""
        self._first: dict[str, asyncio.Event] = {}
        self._specs: dict[str, ReplicaSpec] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._refused: set[str] = set()
        """Engines at which nobody listened, until they have been described again."""
        self._replicas: dict[str, tuple[str, ...]] = {}
        """The replicas that each engine is, by rank."""
        self._engines: dict[str, str] = {}
        """The engine of each replica."""
        self._rounds: dict[str, asyncio.Task[None]] = {}

    def watch(self, spec: ReplicaSpec) -> None:
        """Begin to watch an engine, which is one replica as far as is known."""
        self._specs[spec.name] = spec
        self._is(spec.name, (spec.name,))
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
        """An engine is no more of the fleet: what is being asked of it tells nothing any more."""
        self._is(name, ())
        del self._replicas[name]
        self._rounds.pop(name).cancel()
        self._first.pop(name).set()
        for known in (self._specs, self._asking, self._misses, self._hits, self._answers):
            known.pop(name, None)
        self._refused.discard(name)
        self._late.discard(name)

    def moved(self, name: str) -> None:
        """An engine's name stands for another address: another process, unless its start time says no."""
        self._refused.add(name)

    async def first_round(self) -> None:
        """Wait until each replica has been asked once."""
        await asyncio.gather(*(event.wait() for event in self._first.values()))

    async def look(self, name: str) -> bool:
        """Ask a replica at once: something about it looks like a restart.

        When this returns, a restart has been told of; False if the replica could not be asked.
        """
        spec = self._specs.get(self._engines.get(name, ""))
        return spec is not None and await self._ask(spec)

    def refused(self, name: str) -> None:
        """A request to a replica found nobody listening."""
        engine = self._engines[name]
        self._hits[engine] = 0
        self._refused.add(engine)
        if self._mark(engine, up=False):
            logger.warning("replica %s refuses connections: out of rotation until it answers /health", engine)

    def _is(self, engine: str, replicas: tuple[str, ...]) -> None:
        """An engine is these replicas from now on."""
        for name in self._replicas.get(engine, ()):
            del self._engines[name]
        self._replicas[engine] = replicas
        self._engines.update(dict.fromkeys(replicas, engine))

    def _mark(self, engine: str, *, up: bool) -> bool:
        return sum(self._fleet.mark(name, up=up) for name in self._replicas[engine]) > 0  # of all of them

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
            try:
                async with self._get(spec, "/health") as response:
                    alive = response.status < 500
                if alive:
                    await self._look(spec)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                if self._specs.get(spec.name) is not spec:
                    return False
                known = self._fleet.replicas[self._replicas[spec.name][0]].description
                if not known.models and not self._misses.get(spec.name):
                    logger.warning(
                        "replica %s cannot be used yet, and is asked again: %s; %s",
                        *(spec.name, error, remedy(error)),
                    )
                logger.debug("probe of %s: %r", spec.name, error)
                if isinstance(error, TimeoutError):
                    self._late.add(spec.name)
                if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
                    error.os_error, ConnectionRefusedError
                ):
                    self.refused(self._replicas[spec.name][0])
                return False
            return alive

    def _count(self, engine: str, *, alive: bool) -> None:
        names = self._replicas[engine]
        answers = sum(self._fleet.replicas[name].answers for name in names)
        served, self._answers[engine] = answers != self._answers.get(engine, 0), answers
        tell = self._fleet.answered if alive else self._fleet.missed
        for name in names:
            tell(name)
        if not alive and served and engine in self._late:
            logger.debug("replica %s is late to answer probes, but answers requests", engine)
            self._misses[engine] = 0
            return
        self._hits[engine] = self._hits.get(engine, 0) + 1 if alive else 0
        self._misses[engine] = 0 if alive else self._misses.get(engine, 0) + 1
        probes = self._settings.probes
        if alive and self._hits[engine] >= probes.recoveries and self._mark(engine, up=True):
            logger.info("replica %s is up", engine)
        elif self._misses[engine] >= probes.misses and self._mark(engine, up=False):
            logger.warning("replica %s is down: %d probes in a row failed", engine, self._misses[engine])

    async def _look(self, spec: ReplicaSpec) -> None:
        """See whether it is the process that it was, and how full its caches are."""
        page = await self._text(spec, "/metrics")
        if self._specs.get(spec.name) is not spec:
            return
        replicas = [self._fleet.replicas[name] for name in self._replicas[spec.name]]
        if page is not None:
            for rank, replica in enumerate(replicas):
                replica.view.kv_usage = describe.kv_usage(page, rank if len(replicas) > 1 else None)
        started = None if page is None else describe.started_at(page)
        known, refused = replicas[0].description, spec.name in self._refused
        same = not refused if started is None else started == known.started_at
        if known.models and same:
            self._refused.discard(spec.name)
            return
        if known.models and (known.started_at is not None or refused):
            logger.warning("replica %s has restarted: its cache is forgotten", spec.name)
            for replica in replicas:
                self._restarted(replica.name)
        descriptions = await self._describe(spec, page)
        if self._specs.get(spec.name) is not spec:
            return
        self._refused.discard(spec.name)
        self._divide(spec.name, len(descriptions))
        for name, description in zip(self._replicas[spec.name], descriptions, strict=True):
            self._fleet.describe(name, description)
            self._described(name)

    def _divide(self, engine: str, count: int) -> None:
        """See that the fleet has a replica for each of an engine's ranks."""
        before = self._replicas[engine]
        if len(before) == count:
            return
        logger.info("replica %s has %d data-parallel ranks, each a replica of its own", engine, count)
        up = any(self._fleet.replicas[name].up for name in before)
        self._is(engine, ranks.names(engine, count))
        self._divided(engine, count)
        self._answers.pop(engine, None)
        if up:
            self._mark(engine, up=True)

    async def _describe(self, spec: ReplicaSpec, page: str | None) -> list[Description]:
        """What it says of itself, of each of its ranks."""
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
        feeds: dict[int, FeedSpec] = {}
        if description.engine == "vllm" and (told := await self._text(spec, "/kv_event_sources")) is not None:
            feeds = describe.read_kv_event_sources(told.encode())
        if description.engine == "llama_cpp" and (told := await self._text(spec, "/props")) is not None:
            describe.read_props(told.encode(), description)
        if spec.model is not None:
            description.models = {spec.model: None, **description.models}
        return describe.by_rank(spec, description, feeds, page)

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


def remedy(error: Exception) -> str:
    """What a person does about a replica that could not be asked."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "name who signs its certificate in WARMROUTE_TLS__UPSTREAM_CA, or its server_name"
    if isinstance(error, aiohttp.ClientSSLError):
        return "correct http or https in WARMROUTE_REPLICAS"
    return "start it, or correct its URL in WARMROUTE_REPLICAS"
