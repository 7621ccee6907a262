"""/admin/requests and /admin/route: why requests went, or would go, where they do.

Names, figures and one sentence each; nothing here has ever seen a prompt but the dry run, which forgets it.
"""

from urllib.parse import unquote

import msgspec
from aiohttp import web

from proxy.admin import Admin
from proxy.dry_run import DryRun
from proxy.errors import BadRequest
from proxy.ledger import Ledger
from proxy.recent import Recent

SHOWN, MOST = 50, 500
"""Requests that are listed, unless `limit` says otherwise; and at most."""
_BELOW = "/admin/requests/"


def serve(admin: Admin, ledger: Ledger, recent: Recent, dry_run: DryRun) -> None:
    """Answer them under the admin token."""

    async def latest(request: web.BaseRequest) -> web.Response:
        ledger.flush()
        query = request.rel_url.query
        text = query.get("limit", str(SHOWN))
        if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= MOST):
            raise BadRequest(f"limit should be a number from 1 to {MOST}", param="limit")
        return _json({"requests": recent.latest(int(text), query.get("decision"))})

    async def one(request: web.BaseRequest) -> web.Response:
        ledger.flush()
        return _json(recent.find(unquote(request.rel_url.raw_path.removeprefix(_BELOW))))

    admin.serve("GET", "/admin/requests", latest)
    admin.serve("GET", _BELOW, one)
    admin.serve("POST", "/admin/route", dry_run.answer)


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
