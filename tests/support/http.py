"""HTTP/1.1 as bytes: building heads, and h11 as the strict judge of what came.

h11 prefers Transfer-Encoding where a message has Content-Length as well; a message with both, or with
either of them twice, is refused here.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import h11

Headers = list[tuple[bytes, bytes]]
WHOLE = 64 << 20
"""Bytes of a head that the judge accepts: tests send oversize heads on purpose."""


class MalformedError(AssertionError):
    """A message that no strict reader accepts."""


@dataclass(slots=True)
class Message:
    """One message as it came: header names as written, in order; `body` without its framing."""

    headers: Headers = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    trailers: Headers = field(default_factory=list)
    complete: bool = False
    """False where the connection ended before the message did."""

    def all(self, name: str) -> list[bytes]:
        """The values of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower().encode()]

    def one(self, name: str) -> bytes | None:
        """The value of a header that must not come twice."""
        values = self.all(name)
        assert len(values) <= 1, f"{name} came {len(values)} times: {values}"
        return values[0] if values else None

    def names(self) -> set[str]:
        return {key.decode().lower() for key, _ in self.headers}

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Request(Message):
    """A request as an upstream got it. `raw` is exactly what was on the wire."""

    method: bytes = b""
    target: bytes = b""
    raw: bytes = b""
    connection: int = 0
    """Which of the upstream's connections it came on, from 0."""

    @property
    def path(self) -> str:
        return self.target.decode().partition("?")[0]


@dataclass(slots=True)
class Response(Message):
    """A response as a client got it; `interim` are the 1xx before it."""

    status: int = 0
    version: bytes = b""
    interim: list[int] = field(default_factory=list)
    closes: bool = False
    """True where the connection cannot carry another request after it."""

    @property
    def error(self) -> dict[str, Any]:
        """The error object; fails unless the body has OpenAI's shape and says nothing of Python."""
        body = self.json()
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "code", "param"}, body
        assert body["error"]["message"]
        assert body["error"]["type"]
        assert (self.one("content-type") or b"").startswith(b"application/json")
        for trace in (b"Traceback", b"Error(", b"Exception", b".py"):
            assert trace not in self.body, self.body
        return body["error"]


def head(start: str, headers: Iterable[tuple[str, str | int]] = ()) -> bytes:
    """A head, down to its empty line."""
    lines = [start, *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def request(
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Sequence[tuple[str, str | int]] = (),
    *,
    host: str = "proxy.test",
    version: str = "1.1",
) -> bytes:
    """A whole request, framed by Content-Length where it has a body."""
    framing = [] if body is None else [("Content-Length", len(body))]
    return head(f"{method} {target} HTTP/{version}", [("Host", host), *headers, *framing]) + (body or b"")


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A chunked body of these chunks; an empty `end` leaves it unfinished."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + end


class Reader:
    """Reads one message from bytes as they come; `used` is how many were its own, once it is complete."""

    def __init__(self, judge: h11.Connection, message: Message) -> None:
        self.message = message
        self.begun = False
        self.used: int | None = None
        self._judge = judge
        self._fed = 0

    def feed(self, raw: bytes) -> bool:
        """Read on; True once the message is complete. Empty bytes: the peer ended. Raises MalformedError."""
        if self.used is not None:
            return True
        self._fed += len(raw)
        try:
            self._judge.receive_data(raw)
            while True:
                event = self._judge.next_event()
                match event:
                    case h11.Request() | h11.Response():
                        self._begin(event)
                    case h11.InformationalResponse():
                        assert isinstance(self.message, Response)
                        self.message.interim.append(event.status_code)
                    case h11.Data():
                        self.message.body += event.data
                    case h11.EndOfMessage():
                        self._end(event)
                        return True
                    case _:
                        return False
        except h11.RemoteProtocolError as error:
            if not raw:  # the peer ended before the message did
                return False
            raise MalformedError(str(error)) from error

    def _begin(self, event: h11.Request | h11.Response) -> None:
        self.begun = True
        self.message.headers = _raw(event.headers)
        framing = {b"content-length", b"transfer-encoding"}
        if len([name for name, _ in self.message.headers if name.lower() in framing]) > 1:
            raise MalformedError(f"more than one framing header: {self.message.headers}")
        match event, self.message:
            case h11.Request(), Request():
                self.message.method, self.message.target = event.method, event.target
            case h11.Response(), Response():
                self.message.status, self.message.version = event.status_code, event.http_version

    def _end(self, event: h11.EndOfMessage) -> None:
        self.used = self._fed - len(self._judge.trailing_data[0])
        self.message.trailers = _raw(event.headers)
        self.message.complete = True
        if isinstance(self.message, Response):
            self.message.closes = self._judge.their_state is not h11.DONE


class RequestReader(Reader):
    """Reads a request as a strict server."""

    message: Request

    def __init__(self) -> None:
        super().__init__(h11.Connection(h11.SERVER, max_incomplete_event_size=WHOLE), Request())


class ResponseReader(Reader):
    """Reads the response to a request of this method as a strict client."""

    message: Response

    def __init__(self, method: str = "GET") -> None:
        judge = h11.Connection(h11.CLIENT, max_incomplete_event_size=WHOLE)
        judge.send(h11.Request(method=method, target="/", headers=[("Host", "h")]))
        judge.send(h11.EndOfMessage())
        super().__init__(judge, Response())


def _raw(headers: Any) -> Headers:
    return [(bytes(name), bytes(value)) for name, value in headers.raw_items()]
