"""One proxy, one replica and one kept client connection, for tests that send many examples through them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from proxy.app import Proxy
from tests.support.client import Client
from tests.support.eventually import turns
from tests.support.fixtures import idle, serving
from tests.support.http import Response
from tests.support.upstream import Exchange, Upstream


@dataclass
class Hop:
    """The client's connection is used again as long as the answers allow it."""

    proxy: Proxy
    upstream: Upstream
    client: Client | None = None

    async def send(self, cuts: Sequence[bytes], method: str = "POST") -> Response:
        """What a client gets that writes these cuts of a request."""
        if self.client is None or self.client.gone.is_set():
            self.client = await Client.connect(self.proxy.port)
        self.upstream.requests.clear()
        for cut in cuts:
            await self.client.send(cut)
            await turns(2)
        client, self.client = self.client, None  # kept only if all goes well
        response = await client.response(method)
        if response.closes or not response.complete:
            await client.until_gone()
        else:
            self.client = client
        return response

    def answers(self, cuts: Sequence[bytes], *, finish: bool = False) -> None:
        """Let the replica write these cuts of an answer and then, if told so, FIN."""

        async def behave(exchange: Exchange) -> None:
            await exchange.send(*cuts)
            if finish:
                exchange.finish()

        self.upstream.behaviour = behave


@asynccontextmanager
async def hopping(**settings: Any) -> AsyncIterator[Hop]:
    """A hop; at its end nothing is in flight and all that went upstream was well framed."""
    async with Upstream() as upstream, serving(upstream, **settings) as proxy:
        hop = Hop(proxy, upstream)
        yield hop
        await idle(proxy)
        if hop.client is not None:
            hop.client.reset()
        assert not upstream.violations
        assert not upstream.faults


def cuts_of(raw: bytes, places: Sequence[int]) -> list[bytes]:
    """`raw` cut at these places, taken modulo its length."""
    ends = sorted({place % (len(raw) + 1) for place in places} | {0, len(raw)})
    return [raw[start:end] for start, end in pairwise(ends)]
