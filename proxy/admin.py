"""What an operator may see and do at run time, under /admin.

Open only to whoever shows the admin token. Where none is set, a proxy that listens on loopback alone answers
callers on this machine, but no web page other than its own: a browser says where a page came from, and which
name it asked for. Never reached by what a client sends to a model.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import aiohttp
import msgspec
from aiohttp import web
from pydantic import ValidationError

from proxy import bodies
from proxy.config import Settings
from proxy.errors import BadRequest, MethodNotAllowed, NotFound, Unauthorized, UpstreamFailed
from proxy.fleet import Fleet
from proxy.found import Found
from proxy.live import Live
from proxy.overview import Overview
from proxy.roster import Member, Roster
from proxy.spec import ReplicaSpec

ENGINE_SECONDS = 60.0
SPEC_BYTES = 64 * 1024
CLOSED = "/admin is closed: set WARMROUTE_ADMIN_TOKEN, or listen on loopback only"
_ENGINE_HEADERS = ("content-type",)


class Admin:
    """The /admin endpoints."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        roster: Roster,
        overview: Overview,
        live: Live,
        http: aiohttp.ClientSession,
        *,
        flushed: Callable[[str], None],
        forget: Callable[[str], None],
    ) -> None:
        token = settings.admin_token
        self._token = None if token is None else token.get_secret_value().encode()
        self._loopback = _is_loopback(settings.host)
        self._settings = settings
        self._fleet = fleet
        self._roster = roster
        self._overview = overview
        self._http = http
        self._flushed = flushed
        """Told that an engine's cache is empty."""
        self._forget = forget
        """Told to begin anew with what is known of a replica's cache."""
        self._paths: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("GET", "/admin/replicas"): self._replicas,
            ("POST", "/admin/replicas"): self._add,
            ("DELETE", "/admin/replicas"): self._remove_named,
            ("POST", "/admin/flush"): self._flush,
            ("GET", "/admin/live"): live.stream,
            ("GET", "/admin/overview"): self._frame,
        }

    def serve(
        self, method: str, path: str, act: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> None:
        """Answer /admin/NAME, or, where `path` ends in a slash, all below it. `act` may raise ProxyError."""
        self._paths[method, path] = act

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer one request under /admin. Raises ProxyError."""
        self.authorize(request)
        below = "/".join(path.split("/", 3)[:3]) + "/"
        act = self._paths.get((request.method, path)) or self._paths.get((request.method, below))
        if act is not None:
            return await act(request)
        if any(known in (path, below) for _, known in self._paths):
            raise MethodNotAllowed(f"{path} does not take {request.method}")
        named, slash, rest = path.removeprefix("/admin/replicas/").partition("/")
        if not path.startswith("/admin/replicas/"):
            raise NotFound("nothing is served here; /admin/replicas lists the replicas")
        name = unquote(named)
        member = self._roster.member(name)  # raises NotFound
        if not slash:
            return self._one(request, name)
        if rest == "drain":
            return self._drain(request, name)
        return await self._engine(request, member, rest)

    @property
    def closed(self) -> bool:
        """Whether nobody at all is let in."""
        return self._token is None and not self._loopback

    def authorize(self, request: web.BaseRequest) -> None:
        """Raise Unauthorized unless whoever asks may."""
        if self._token is None:
            if self._loopback and _is_own(request):
                return
            raise Unauthorized(CLOSED)
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            shown.strip().encode("utf-8", "surrogateescape"), self._token
        ):
            raise Unauthorized("/admin needs the header Authorization: Bearer <WARMROUTE_ADMIN_TOKEN>")

    def own_fields(self) -> list[tuple[bytes, bytes]]:
        """The header fields with which a worker of this proxy asks another."""
        token = [] if self._token is None else [(b"Authorization", b"Bearer " + self._token)]
        return [(b"Host", b"localhost"), *token]

    async def _frame(self, _: web.BaseRequest) -> web.Response:
        return _json(self._overview.frame())

    async def _replicas(self, _: web.BaseRequest) -> web.Response:
        return _json({"replicas": self._overview.replicas()})

    async def _add(self, request: web.BaseRequest) -> web.Response:
        """Take in a replica, written as in WARMROUTE_REPLICAS: an object, or a URL in quotes."""
        try:
            told = msgspec.json.decode(
                await bodies.read(request, SPEC_BYTES, self._settings.timeouts.request)
            )
            spec = ReplicaSpec.model_validate({"url": told} if isinstance(told, str) else told)
        except msgspec.DecodeError:
            raise BadRequest('the body should be a replica as JSON: {"url": "http://host:port"}') from None
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the body"
            raise BadRequest(f"{where}: {fault['msg'].removeprefix('Value error, ')}", param=where) from None
        return _json(self._overview.replica(self._roster.add(Found(spec), "admin")), status=201)

    async def _remove_named(self, request: web.BaseRequest) -> web.Response:
        name = request.rel_url.query.get("name")
        if name is None:
            raise BadRequest("say which: DELETE /admin/replicas/NAME, or ?name=NAME", param="name")
        self._roster.remove(name)
        return web.Response(status=204)

    def _one(self, request: web.BaseRequest, name: str) -> web.Response:
        if request.method == "DELETE":
            self._roster.remove(name)
            return web.Response(status=204)
        if request.method != "GET":
            raise MethodNotAllowed("/admin/replicas/NAME takes GET and DELETE")
        return _json(self._named(name))

    def _drain(self, request: web.BaseRequest, name: str) -> web.Response:
        if request.method == "POST":
            self._roster.drain(name)
        elif request.method == "DELETE":
            self._roster.undrain(name)
        else:
            raise MethodNotAllowed("/admin/replicas/NAME/drain takes POST, and DELETE to end it")
        return _json(self._named(name))

    def _named(self, name: str) -> dict[str, object]:
        """What there is to say of a replica; of an engine with ranks, of each of them."""
        replica = self._fleet.replicas.get(name)
        if replica is not None:
            return self._overview.replica(replica)
        member = self._roster.member(name)
        there = [self._overview.replica(each) for each in member.replicas]
        return {"name": name, "url": member.found.spec.url, "source": member.source, "ranks": there}

    async def _flush(self, _: web.BaseRequest) -> web.Response:
        """Forget what every replica holds, but for what its events say; what engines hold stays."""
        for name in self._fleet.replicas:
            self._forget(name)
        return _json({"flushed": sorted(self._fleet.replicas)})

    async def _engine(self, request: web.BaseRequest, member: Member, rest: str) -> web.Response:
        """Pass a call that controls the engine to it, with the proxy's own key; it is for all its ranks."""
        spec = member.found.spec
        body = await bodies.read(
            request, int(self._settings.limits.body_bytes), self._settings.timeouts.request
        )
        _, _, query = request.raw_path.partition("?")
        url = f"{spec.url}/{rest}" + (f"?{query}" if query else "")
        headers = {name: request.headers[name] for name in _ENGINE_HEADERS if name in request.headers}
        try:
            async with self._http.request(
                request.method,
                url,
                data=body or None,
                headers=headers,
                allow_redirects=False,
                server_hostname=spec.server_name,
                timeout=aiohttp.ClientTimeout(total=ENGINE_SECONDS),
            ) as reply:
                content = await reply.read()
                kind = reply.headers.get("Content-Type", "application/octet-stream")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamFailed(f"replica {spec.name} did not answer ({type(error).__name__})") from error
        if reply.ok and request.method == "POST" and rest in ("reset_prefix_cache", "flush_cache", "sleep"):
            for replica in member.replicas:
                if not replica.gone:
                    self._flushed(replica.name)
        return web.Response(status=reply.status, body=content, headers={"Content-Type": kind})


def _is_own(request: web.BaseRequest) -> bool:
    """Whether it comes from this machine's user: by no browser, or by the page that this proxy serves."""
    origin = request.headers.get("Origin")
    return (
        _is_loopback(_name(request.host))
        and (origin is None or origin.partition("://")[2] == request.host)
        and request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    )


def _name(host: str) -> str:
    """The name in a Host field, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", status=status)
