"""What a test does to a simulated replica, and asks of it, over HTTP: `/simulated/...`, which no engine has.

| POST | body | |
|---|---|---|
| /simulated/restart | `{"down_s": 0.5}` | ends as a killed process does, and begins anew on its ports |
| /simulated/faults | `{"lose_every": 3}` | changes the feed's faults; answers all of them |
| /simulated/forget_replay | | loses what is kept for replays |
| /simulated/resend | `{"seq": 7}` | sends that batch once more on the live feed |

GET /simulated/cache tells what no engine tells: `{"blocks": 120}`, the blocks that a request could reuse.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from bench import engine_errors as errors
from bench.engine_errors import json_response

if TYPE_CHECKING:
    from bench.engine_running import RunningReplica


class Controls:
    """Of one running replica."""

    def __init__(self, running: "RunningReplica") -> None:
        self._running = running

    @property
    def routes(self) -> Sequence[web.RouteDef]:
        """Those of the feed only where there is one."""
        routes = [
            web.post("/simulated/restart", self.restart),
            web.get("/simulated/cache", self.cache),
        ]
        if self._running.publisher is not None:
            routes += [
                web.post("/simulated/faults", self.faults),
                web.post("/simulated/forget_replay", self.forget_replay),
                web.post("/simulated/resend", self.resend),
            ]
        return routes

    async def restart(self, request: web.Request) -> web.Response:
        """Answers before it begins; the new process has another start time in /metrics."""
        down_s = float((await _body(request)).get("down_s", 0.0))
        self._running.restart_soon(down_s, spare=request.protocol)
        return json_response({"restarting": True})

    async def cache(self, _request: web.Request) -> web.Response:
        """Count what is cached."""
        return json_response({"blocks": sum(rank.model.cache.cached for rank in self._running.ranks)})

    async def faults(self, request: web.Request) -> web.Response:
        """Change some."""
        faults = self._running.feed.faults
        try:
            faults.set(**await _body(request))
        except ValueError as error:
            raise errors.ApiError(str(error)) from error
        return json_response(asdict(faults))

    async def forget_replay(self, _request: web.Request) -> web.Response:
        """Empty the replay buffer."""
        self._running.feed.forget_replay()
        return json_response({"next_seq": self._running.feed.next_seq})

    async def resend(self, request: web.Request) -> web.Response:
        """Send a batch again."""
        return json_response({"sent": self._running.feed.resend(int((await _body(request)).get("seq", -1)))})


async def _body(request: web.Request) -> dict[str, Any]:
    body = await request.json() if request.can_read_body else {}
    if not isinstance(body, dict):
        raise errors.wrong_type("", "dictionary", body)
    return body
