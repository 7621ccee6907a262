"""The proxy's own answers, and what stands for an answer that a relay has already written.

Must never answer an error in any shape but OpenAI's.
"""

from http import HTTPStatus
from math import ceil

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from proxy.errors import ExpectationFailed, ProxyError, TooLarge

SERVER = "warmroute"
"""Names the proxy's own answers; a replica's keep the replica's name."""


class Relayed(web.StreamResponse):
    """Stands for an answer that a relay has already written."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._reusable = keep_alive

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection may carry another request."""
        return self._reusable

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        """Nothing is left to send."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to send."""


RELAYED = Relayed(keep_alive=True)
RELAYED_LAST = Relayed(keep_alive=False)


def answer(error: ProxyError) -> web.Response:
    """An error as a response."""
    response = web.Response(
        status=error.status,
        body=error.body(),
        content_type="application/json",
        headers={"Server": SERVER},
    )
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, ceil(error.retry_after)))
    if isinstance(error, TooLarge | ExpectationFailed):  # the request's body was not read to its end
        response.force_close()
    return response


def on_the_wire(response: web.Response, *, keep_alive: bool) -> bytes:
    """A response as bytes, for a connection that aiohttp does not serve."""
    body = response.body if isinstance(response.body, bytes) else b""
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines += [f"Content-Length: {len(body)}"]
    if not keep_alive:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
