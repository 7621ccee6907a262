"""An API server that serves EndpointSlices: list and watch over HTTP, in the wire format of Kubernetes.

The test holds the slices and decides what a watch is told: a change can be kept from it, its stream cut, its
version called too old. `kubeconfig` writes the file that leads there.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from tests.support.eventually import eventually

TOKEN = "the-token-of-a-test"


def pod(name: str, address: str | None, *, uid: str = "", **conditions: bool) -> dict[str, Any]:
    """An endpoint; ready unless told otherwise."""
    return {
        "addresses": None if address is None else [address],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
        "targetRef": {"kind": "Pod", "namespace": "serving", "name": name, "uid": uid or f"uid-of-{name}"},
        "nodeName": "node-1",
    }


class ApiServer:
    """Listens on a free port of 127.0.0.1; `async with` it."""

    def __init__(self, *, namespace: str = "serving", service: str = "vllm") -> None:
        self.namespace = namespace
        self.service = service
        self.slices: dict[str, dict[str, Any]] = {}
        self.lists = 0
        """Lists answered."""
        self.watches: list[asyncio.Queue[bytes | None]] = []
        """The open watches, each with the lines that it is still to be told; None ends it."""
        self.versions: list[str | None] = []
        """From which each watch was to go on."""
        self.refuse: int | None = None
        """Status that everything is answered with."""
        self.gone = False
        """True: a watch is told that its version is too old, as its first event."""
        self.faults: list[str] = []
        self._version = 100
        self._past: list[tuple[int, bytes]] = []
        """(version, line) of what watches were told, for one that begins with an older version."""

    async def __aenter__(self) -> Self:
        app = web.Application()
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices"
        app.router.add_get(path, self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await self._site.start()
        self.port = self._site._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await self._runner.cleanup()
        assert not self.faults

    def kubeconfig(self, directory: Path) -> Path:
        """A file that leads here."""
        path = directory / "kubeconfig"
        context = {"cluster": "test", "user": "test", "namespace": self.namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": context}],
        }
        path.write_text(json.dumps(config))
        return path

    def put(
        self,
        *endpoints: dict[str, Any],
        port: int = 8000,
        name: str = "vllm-1",
        ports: Sequence[dict[str, Any]] | None = None,
        kind: str = "IPv4",
        tell: bool = True,
        **metadata: Any,
    ) -> None:
        """A slice is as given now; `tell` False keeps that from the watches."""
        self._version += 1
        known = name in self.slices
        self.slices[name] = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "resourceVersion": str(self._version),
                "labels": {"kubernetes.io/service-name": self.service},
                **metadata,
            },
            "addressType": kind,
            "endpoints": list(endpoints) or None,
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}] if ports is None else list(ports),
        }
        if tell:
            self._tell("MODIFIED" if known else "ADDED", self.slices[name])

    def delete(self, name: str = "vllm-1", *, tell: bool = True) -> None:
        """A slice is gone."""
        self._version += 1
        one = self.slices.pop(name)
        if tell:
            self._tell("DELETED", one)

    def cut(self) -> None:
        """Every watch ends, as when a load balancer drops its connection."""
        for watch in self.watches:
            watch.put_nowait(None)
        self.watches.clear()

    async def watched(self, count: int = 1) -> None:
        """Wait until that many watches have begun in all."""
        await eventually(lambda: len(self.versions) >= count, f"{count} watches")

    def _tell(self, kind: str, one: dict[str, Any]) -> None:
        self._past.append((self._version, _line(kind, one)))
        for watch in self.watches:
            watch.put_nowait(_line(kind, one))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.faults.append(f"credentials {request.headers.get('Authorization')}")
        if request.query.get("labelSelector") != f"kubernetes.io/service-name={self.service}":
            self.faults.append(f"selector {request.query.get('labelSelector')}")
        if self.refuse is not None:
            return web.json_response(_status(self.refuse, "not for you"), status=self.refuse)
        if request.query.get("watch", "").lower() != "true":
            self.lists += 1
            return web.json_response(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSliceList",
                    "metadata": {"resourceVersion": str(self._version)},
                    "items": list(self.slices.values()),
                }
            )
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watches.append(lines)
        self.versions.append(request.query.get("resourceVersion"))
        if self.gone:
            await response.write(_line("ERROR", _status(410, "too old resource version")))
            return response
        for version, line in self._past:
            if version > int(request.query["resourceVersion"]):
                lines.put_nowait(line)
        while (line := await lines.get()) is not None:
            await response.write(line[:20])  # an event may come in pieces
            await response.write(line[20:])
        return response


def _line(kind: str, one: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode() + b"\n"


def _status(code: int, message: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": code}
