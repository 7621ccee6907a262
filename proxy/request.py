"""A client's request, whichever parser read it, and the connection that it came on."""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from proxy import relay
from proxy.request_head import Fields


class Client(relay.Client, Protocol):
    """The connection to a client, as whoever answers it sees it."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """What it goes over; None once it is gone."""

    def reset(self) -> None:
        """Cut the connection so that no client can take what it got for a whole answer."""


@dataclass(slots=True)
class Request:
    """One request."""

    client: Client
    method: str
    target: bytes
    """Path and query, as the client wrote them."""
    fields: Fields
    body: bytes | None
    """None while it must still be read from `unread`."""
    keep_alive: bool = True
    """Whether the client's connection can carry another request after the answer."""
    http10: bool = False
    unread: web.BaseRequest | None = None
    """aiohttp's request, where its body has not come yet."""

    def field(self, name: bytes) -> bytes:
        """The first value of a field, by lower-case name; empty if there is none."""
        return next((value for key, value in self.fields.sent if key.lower() == name), b"")
