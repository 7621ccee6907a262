"""/admin of one worker among several: what an operator orders or asks is ordered or asked of all of them.

Invariant: what came by way of the supervisor goes no further.
"""

from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from proxy import bodies
from proxy.admin import SPEC_BYTES, Admin
from proxy.figures import Frame, merged
from proxy.workers.lists import LISTS, Listed
from proxy.workers.orders import Answer, Order, order
from proxy.workers.siblings import Siblings

_CHANGES = ("POST", "PUT", "PATCH", "DELETE")
_REPLICAS = "/admin/replicas/"
_REQUEST = "/admin/requests/"
_OVERVIEW = "/admin/overview"


class Together:
    """Stands before a worker's own `Admin`."""

    def __init__(self, admin: Admin, siblings: Siblings, *, seconds: float) -> None:
        """`seconds`: that a request may take to arrive."""
        self._admin = admin
        self._siblings = siblings
        self._seconds = seconds

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """Answer one request under /admin. Raises ProxyError."""
        if request.transport is None or not isinstance(request.transport.get_extra_info("peername"), tuple):
            return await self._admin.handle(request, path)
        self._admin.authorize(request)
        if request.method in _CHANGES and not _is_for_one(path):
            body = await bodies.read(request, SPEC_BYTES, self._seconds)
            return _response(await self._siblings.order(_order(request, body)))
        if request.method == "GET" and (path in LISTS or path.startswith(_REQUEST)):
            answers = await self._siblings.ask(_order(request, b""))
            if path in LISTS:
                return _response(_listed(answers, LISTS[path], request.rel_url.query))
            return _response(min(answers, key=lambda answer: answer.status))  # found, if by anyone
        mine = await self._admin.handle(request, path)
        if path == _OVERVIEW and isinstance(mine, web.Response) and isinstance(mine.body, bytes):
            mine.body = msgspec.json.encode(await self.overview(msgspec.json.decode(mine.body)))
        return mine

    async def overview(self, mine: Frame) -> Frame:
        """What all workers count, with what this one sees."""
        answers = await self._siblings.ask(order("GET", _OVERVIEW, self._admin.own_fields(), b""))
        known = [msgspec.json.decode(each.body) for each in answers if each.status == web.HTTPOk.status_code]
        return merged(mine, known)

    async def metrics(self) -> bytes:
        """The exposition of all workers together."""
        return await self._siblings.metrics()


def _is_for_one(path: str) -> bool:
    """Whether something is to be done once: a dry run, or a call to an engine."""
    rest = path.removeprefix(_REPLICAS).partition("/")[2] if path.startswith(_REPLICAS) else ""
    return path == "/admin/route" or rest not in ("", "drain")


def _order(request: web.BaseRequest, body: bytes) -> Order:
    return order(request.method, request.raw_path, request.raw_headers, body)


def _listed(answers: Sequence[Answer], join: Listed, query: Mapping[str, str]) -> Answer:
    """Every worker's rows as one list; where one refuses, all do."""
    worst = max(answers, key=lambda answer: answer.status)
    if worst.status != web.HTTPOk.status_code:
        return worst
    told = join([msgspec.json.decode(answer.body) for answer in answers], query)
    return worst._replace(body=msgspec.json.encode(told))


def _response(answer: Answer) -> web.Response:
    headers = {"Content-Type": answer.kind.decode("latin-1")} if answer.kind else {}
    return web.Response(status=answer.status, body=answer.body or None, headers=headers)
