"""Replicas behind a Kubernetes service, followed through the API server by list and watch.

Everything is listed anew whenever a watch ends, for whatever reason, and every so often anyway: a watch that
lost something, or was told that it is too old, has no say. Needs the rights to list and watch endpointslices.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from os import environ
from pathlib import Path
from random import uniform
from time import monotonic
from typing import Any, cast

import aiohttp
import msgspec
from kubernetes_asyncio import client, config
from kubernetes_asyncio.config import ConfigException

from proxy.discovery.slices import Event, Slice, SliceList, Status, Unusable, replicas
from proxy.discovery.source import Tell
from proxy.found import Kubernetes
from proxy.logs import logger

ANSWER_SECONDS = 10.0
"""How long the API server may take to list, or to begin a watch."""
SLACK_SECONDS = 5.0
"""How much longer than it was asked to a watch may last before its connection counts as dead."""
FIRST_DELAY, LAST_DELAY = 0.2, 10.0
"""Seconds until the next try after a failure, or after a watch that ended at once: doubled, and scattered."""
STEADY_SECONDS = 1.0
"""A watch that lasts so long has worked."""
LARGEST_EVENT = 16 << 20
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ApiFailed(Exception):
    """The API server did not do what it was asked; says why."""


class Outdated(Exception):
    """The API server no longer has what the watch was to go on from."""


class KubernetesSource:
    """A `Source`."""

    kind = "kubernetes"

    def __init__(self, settings: Kubernetes) -> None:
        self.why: str | None = "the service has not been listed yet"
        self._settings = settings
        self._slices: dict[str, Slice] = {}
        self._delay = FIRST_DELAY
        self._said = ""

    def wake(self) -> None:
        """See `Source.wake`: what changes is told anyway."""

    async def look(self, tell: Tell) -> None:
        """See `Source.look`: list and watch, again and again while the API server answers."""
        try:
            async with self._api() as (api, namespace):
                while True:
                    began = monotonic()
                    try:
                        await self._cycle(api, namespace, tell)
                    except Outdated:
                        pass
                    if monotonic() - began < STEADY_SECONDS:
                        await self._pause()
                    else:
                        self._delay = FIRST_DELAY
        except (ApiFailed, ConfigException, aiohttp.ClientError, OSError, ValueError) as error:
            self._failed(str(error) or type(error).__name__)
        await self._pause()

    async def _cycle(self, api: client.DiscoveryV1Api, namespace: str, tell: Tell) -> None:
        """List, then watch until that is over."""
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await self._ask(api, namespace)
            body = await answer.read()
        _expect(answer.status, body, namespace)
        listed = msgspec.json.decode(body, type=SliceList)
        self._slices = {each.metadata.name: each for each in listed.items or ()}
        self._tell(tell)
        async with asyncio.timeout(ANSWER_SECONDS):
            watch = await self._ask(
                api,
                namespace,
                watch=True,
                resource_version=listed.metadata.resource_version,
                timeout_seconds=max(1, round(self._settings.resync)),
            )
        try:
            async with asyncio.timeout(self._settings.resync + SLACK_SECONDS):
                if watch.status != HTTPStatus.OK:
                    _expect(watch.status, await watch.read(), namespace)
                await self._read(watch.content, tell)
        except TimeoutError:
            pass  # a connection that is dead without saying so; the next list goes over another one
        finally:
            watch.close()

    async def _ask(self, api: client.DiscoveryV1Api, namespace: str, **more: Any) -> aiohttp.ClientResponse:
        """The answer as it comes: the client's models refuse what a server may well send."""
        selector = f"kubernetes.io/service-name={self._settings.service}"
        answer: Any = await api.list_namespaced_endpoint_slice(
            namespace, label_selector=selector, _preload_content=False, **more
        )
        return cast(aiohttp.ClientResponse, answer)

    async def _read(self, content: aiohttp.StreamReader, tell: Tell) -> None:
        """Take in events, a line each, until the watch ends."""
        unread = b""
        async for chunk in content.iter_any():
            *lines, unread = (unread + chunk).split(b"\n")
            if len(unread) > LARGEST_EVENT:
                raise ApiFailed("an event of the watch is too large")
            for line in lines:
                if line.strip():
                    self._take(line)
            if lines:
                self._tell(tell)

    def _take(self, line: bytes) -> None:
        event = msgspec.json.decode(line, type=Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            if status.code == HTTPStatus.GONE:
                raise Outdated
            raise ApiFailed(f"the watch failed: {status.message or status.code}")
        if event.type == "BOOKMARK":
            return
        one = msgspec.json.decode(event.object, type=Slice)
        if event.type == "DELETED":
            self._slices.pop(one.metadata.name, None)
        else:
            self._slices[one.metadata.name] = one

    def _tell(self, tell: Tell) -> None:
        try:
            found = replicas(self._slices.values(), self._settings)
        except Unusable as error:
            self._failed(str(error))
            return
        if self._said:
            logger.info("discovery by kubernetes works again")
        self.why, self._said = None, ""
        tell(found)

    def _failed(self, why: str) -> None:
        self.why = why
        if why != self._said:
            logger.warning("discovery by kubernetes: %s; what was found before is kept", why)
            self._said = why

    async def _pause(self) -> None:
        await asyncio.sleep(self._delay * uniform(0.5, 1.0))
        self._delay = min(2 * self._delay, LAST_DELAY)

    @asynccontextmanager
    async def _api(self) -> AsyncIterator[tuple[client.DiscoveryV1Api, str]]:
        """The API as the pod's service account or a kubeconfig reaches it, and the service's namespace."""
        settings, configuration = self._settings, client.Configuration()
        if settings.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in environ:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            namespace = await asyncio.to_thread(OWN_NAMESPACE.read_text, "utf-8")
        else:
            path = None if settings.kubeconfig is None else str(settings.kubeconfig.expanduser())
            await config.load_kube_config(config_file=path, client_configuration=configuration)
            _, active = config.list_kube_config_contexts(config_file=path)
            namespace = active["context"].get("namespace", "default") if active else "default"
        async with client.ApiClient(configuration) as api:
            yield client.DiscoveryV1Api(api), settings.namespace or namespace.strip()


def _expect(status: int, body: bytes, namespace: str) -> None:
    if status == HTTPStatus.OK:
        return
    if status == HTTPStatus.GONE:
        raise Outdated
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise ApiFailed(
            f"the API server refuses ({status}): grant list and watch of endpointslices in the API group "
            f"discovery.k8s.io, in namespace {namespace}"
        )
    try:
        message = msgspec.json.decode(body, type=Status).message
    except msgspec.MsgspecError:
        message = ""
    raise ApiFailed(f"the API server answered {status}{message and ': ' + message}")
