"""A replica with a fault: all is passed on to a healthy one, and some answers are changed on the way."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import aiohttp
from aiohttp import web

Patch = Callable[[int, bytes, Mapping[str, Any]], tuple[int, bytes]]
"""Status, body, and the request's own body, to the status and the body that are sent."""


class Patched:
    """`async with` it: inside, it listens at `url`."""

    def __init__(self, url: str, patches: Mapping[str, Patch], headers: Mapping[str, str]) -> None:
        self.url = ""
        self._to = url
        self._patches = patches
        self._headers = headers

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession()
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _pass(self, request: web.Request) -> web.Response:
        sent = await request.read()
        kind = {"Content-Type": "application/json"} if sent else {}
        async with self._http.request(
            request.method, self._to + request.path_qs, data=sent or None, headers=kind
        ) as reply:
            status, body = reply.status, await reply.read()
            headers = {"Content-Type": reply.headers.get("Content-Type", "text/plain")} | dict(self._headers)
        patch = self._patches.get(request.path)
        if patch is not None:
            status, body = patch(status, body, json.loads(sent) if sent else {})
        return web.Response(status=status, body=body, headers=headers)


def gone(_status: int, _body: bytes, _sent: Mapping[str, Any]) -> tuple[int, bytes]:
    return 404, b'{"detail": "Not Found"}'


def refuses(status: int, message: str) -> Patch:
    return lambda *_: (status, json.dumps({"error": {"message": message}}).encode())


def replacing(pattern: bytes, by: bytes) -> Patch:
    """Every match in the body replaced; there must be one."""

    def patch(status: int, body: bytes, _sent: Mapping[str, Any]) -> tuple[int, bytes]:
        changed, count = re.subn(pattern, by, body)
        assert count, (pattern, body[:2000])
        return status, changed

    return patch


def only_where(said: Callable[[Mapping[str, Any]], bool], patch: Patch) -> Patch:
    return lambda status, body, sent: patch(status, body, sent) if said(sent) else (status, body)
