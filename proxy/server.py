"""What is served at which path: the routed endpoints, what passes through, and what the proxy answers itself.

What controls an engine is never passed on for a client; `/admin` is for that.
"""

from collections.abc import Awaitable, Callable
from time import monotonic
from urllib.parse import unquote

import msgspec
from aiohttp import web

from proxy.admin import CLOSED, Admin
from proxy.answers import SERVER, answer
from proxy.config import Settings
from proxy.connection import HEADERS_TOO_LARGE, ClientConnection
from proxy.dashboard import Dashboard
from proxy.errors import HeadersTooLarge, MethodNotAllowed, NotFound, ProxyError, Unauthorized
from proxy.exchange import Exchanges
from proxy.fleet import Fleet
from proxy.gate import Gate
from proxy.ledger import Ledger
from proxy.pools import Pools
from proxy.prompt.parse import Endpoint
from proxy.replica import Replica
from proxy.request import Request
from proxy.request_head import Fields, forwardable
from proxy.together import Together

PASSED = frozenset(("/tokenize", "/detokenize"))
CONTROL = frozenset(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"))
_ENDPOINTS = {endpoint.value: endpoint for endpoint in Endpoint}
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Server:
    """The table of paths."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        pools: Pools,
        exchanges: Exchanges,
        ledger: Ledger,
        admin: Admin,
        gate: Gate,
        *,
        parts: Callable[[], dict[str, object]],
        together: Together | None = None,
    ) -> None:
        """`parts`: what /ready tells beside models and replicas. `together`: where there are more workers."""
        self._fleet = fleet
        self._pools = pools
        self._exchanges = exchanges
        self._ledger = ledger
        self._admin = admin
        self._together = together
        self._gate = gate
        self._header_bytes = int(settings.limits.header_bytes)
        self._passed = PASSED | frozenset(settings.passthrough)
        self._parts = parts
        self.draining = False
        """Whether the proxy is about to end: it serves on, and every answer is its connection's last."""
        self._local: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics_page,
            "/v1/models": self._models,
        }
        self._dashboard = Dashboard()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        response = await self._answer(request)
        if self.draining and isinstance(response, web.Response):
            response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if sum(len(name) + len(value) for name, value in request.raw_headers) > self._header_bytes:
            return _too_large()
        target = request.raw_path
        if not target.startswith("/"):  # absolute form: the authority is this proxy's, whatever it says
            target = request.rel_url.raw_path_qs
        path = target.partition("?")[0]
        endpoint = _ENDPOINTS.get(path)
        if endpoint is not None:
            if request.method != "POST":
                return answer(MethodNotAllowed(f"{path} takes POST"))
            return await self._exchanges.answer(self._general(request, target), endpoint)
        local = self._local.get(path)
        try:
            if local is not None:
                if request.method not in ("GET", "HEAD"):
                    raise MethodNotAllowed(f"{path} takes GET")
                return await local(request)
            if path.startswith("/admin/"):
                return await (self._together or self._admin).handle(request, path)
            if path == "/ui" or path.startswith("/ui/"):
                return self._page(request, path)
        except ProxyError as error:
            return answer(error)
        if self._may_pass(path):
            return await self._exchanges.answer(self._general(request, target), None)
        return answer(
            NotFound(f"nothing is served here; WARMROUTE_PASSTHROUGH={path} would pass it on"[:200])
        )

    def _general(self, request: web.BaseRequest, target: str) -> Request:
        return general(request, target, keep_alive=request.keep_alive and not self.draining)

    def _may_pass(self, path: str) -> bool:
        if path in self._passed:
            return True
        if "#" in path:  # an engine would cut it there, and see another path than this one
            return False
        plain = unquote(path)
        if any(part in ("", ".", "..") for part in plain.split("/")[1:]) or "\\" in plain:
            return False
        return plain.startswith("/v1/") and plain not in CONTROL

    async def _health(self, _: web.BaseRequest) -> web.Response:
        return _json({"status": "ok"})

    async def _ready(self, _: web.BaseRequest) -> web.Response:
        models = self._pools.state()
        ready = not self.draining and any(state["replicas"] for state in models.values())
        body = {
            "status": "draining" if self.draining else "ready" if ready else "unavailable",
            "models": models,
            "replicas": {replica.name: self._replica(replica) for replica in self._fleet.replicas.values()},
            **self._parts(),
        }
        return _json(body, status=200 if ready else 503)

    def _replica(self, replica: Replica) -> dict[str, object]:
        state: dict[str, object] = {"up": replica.up, "index_mode": self._pools.index_mode(replica)}
        if replica.held:
            state["held"] = sorted(replica.held)
        if replica.caution.suspect:
            state["suspect"] = True
        if replica.breaker.state:
            state["breaker"] = replica.breaker.state.name.lower()
        return state

    async def _metrics_page(self, _: web.BaseRequest) -> web.Response:
        page = self._ledger.page() if self._together is None else await self._together.metrics()
        return web.Response(body=page, headers={"Content-Type": _TEXT, "Server": SERVER})

    def _page(self, request: web.BaseRequest, path: str) -> web.Response:
        """The dashboard, whose every figure comes from /admin."""
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{path} takes GET")
        if self._admin.closed:
            raise Unauthorized(CLOSED)
        return self._dashboard.handle(request, path)

    async def _models(self, request: web.BaseRequest) -> web.Response:
        """The models that the caller may ask for."""
        gate = self._gate
        _, noted = forwardable(request.raw_headers)
        caller = gate.enter(gate.peer(request.transport), noted, monotonic())
        cards = [card for card in self._pools.cards() if caller.may_use(str(card["id"]))]
        return _json({"object": "list", "data": cards})


def general(request: web.BaseRequest, target: str, *, keep_alive: bool) -> Request:
    """A request that aiohttp read; its body is here if it came with the head, as small ones do."""
    client, content = request.protocol, request.content
    assert isinstance(client, ClientConnection)
    whole = content.is_eof() and content.exception() is None and "Expect" not in request.headers
    return Request(
        client,
        request.method,
        target.encode("utf-8", "surrogateescape"),
        Fields(request.raw_headers),
        content.read_nowait() if whole else None,
        keep_alive=keep_alive,
        http10=request.version.minor == 0,
        unread=None if whole else request,
    )


def _too_large() -> web.Response:
    response = answer(HeadersTooLarge(HEADERS_TOO_LARGE))
    response.force_close()
    return response


def _json(body: object, status: int = 200) -> web.Response:
    response = web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers={"Server": SERVER},
    )
    if status == web.HTTPServiceUnavailable.status_code:
        response.headers["Retry-After"] = "1"
    return response
