"""How the doctor asks a replica: as the proxy would, with its key, for short answers and never for long.

Every failure is an `Answer` of status 0 with its reason; nothing here raises for what a replica does.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from proxy.replica import Replica

SECONDS = 5.0
"""For what an engine knows by heart."""
ANSWER_SECONDS = 60.0
"""For a prefill of some hundred tokens, on the slowest engine."""
LONGEST = 16 << 20


@dataclass(slots=True)
class Answer:
    """What came back."""

    status: int
    """0 if nothing did."""
    body: bytes = b""
    why: str = ""
    """Why nothing came back."""
    skew: float | None = None
    """Seconds that its clock is ahead of ours, to a second; None if it does not say."""

    @property
    def ok(self) -> bool:
        """Whether it answered what was asked."""
        return self.status == 200

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body, None where it is no JSON."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, RecursionError):
            return None

    @property
    def complaint(self) -> str:
        """What went wrong, in a few words of the engine's."""
        if not self.status:
            return self.why
        told = self.json()
        error = told.get("error", told) if isinstance(told, Mapping) else None
        message = error.get("message") if isinstance(error, Mapping) else None
        return f"it answered {self.status}" + (f": {message[:160]}" if isinstance(message, str) else "")


class Asker:
    """Asks one replica."""

    def __init__(self, http: aiohttp.ClientSession, replica: Replica) -> None:
        self._http = http
        self._url = replica.url
        self._server_name = replica.server_name
        _, of_several, rank = replica.name.partition("@")  # see proxy.ranks
        self._headers = {"X-data-parallel-rank": rank} if of_several else {}

    async def get(self, path: str) -> Answer:
        """A GET."""
        return await self._ask("GET", path, None, SECONDS)

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A POST of JSON, for an answer that has to be computed."""
        return await self._ask("POST", path, msgspec.json.encode(body), ANSWER_SECONDS)

    async def _ask(self, method: str, path: str, body: bytes | None, seconds: float) -> Answer:
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        try:
            async with self._http.request(
                method,
                self._url + path,
                data=body,
                headers=headers,
                allow_redirects=False,
                server_hostname=self._server_name,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as reply:
                content = await reply.content.read(LONGEST)
                while not reply.content.at_eof() and len(content) < LONGEST:
                    content += await reply.content.read(LONGEST - len(content))
                return Answer(reply.status, content, skew=_skew(reply.headers.get("Date")))
        except TimeoutError:
            return Answer(0, why=f"it did not answer within {seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(0, why=str(error) or type(error).__name__)


def _skew(date: str | None) -> float | None:
    """A Date field is cut off to whole seconds."""
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
    except (ValueError, TypeError):
        return None
