"""The page at /ui: hand-written files of this package, read once and served as they are.

They hold nothing of this proxy: what is seen comes from /admin, with its token. Served under a policy that
lets the page run and reach nothing but its own files and this proxy, and make no HTML out of text.
"""

from hashlib import blake2b
from importlib.resources import files

from aiohttp import web

from proxy.answers import SERVER
from proxy.errors import NotFound

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
    "Server": SERVER,
}
PAGE = "index.html"
"""Served at /ui itself, from where its other files and /admin are found."""


class Dashboard:
    """The page and its files."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, dict[str, str]]] = {}
        for each in files("proxy").joinpath("ui").iterdir():
            kind = _TYPES.get(each.name.rpartition(".")[2])
            if kind is not None:
                content = each.read_bytes()
                tag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
                path = "/ui" if each.name == PAGE else f"/ui/{each.name}"
                self._files[path] = content, {**_HEADERS, "Content-Type": kind, "ETag": tag}

    def handle(self, request: web.BaseRequest, path: str) -> web.Response:
        """Answer a GET for /ui or what is under it. Raises NotFound."""
        if path == "/ui/":  # relative, so that it holds behind a prefix too
            return web.Response(status=308, headers={"Location": "../ui", "Server": SERVER})
        found = self._files.get(path)
        if found is None:
            raise NotFound("the dashboard has no such file; it is at /ui")
        content, headers = found
        if headers["ETag"] in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=content, headers=headers)
