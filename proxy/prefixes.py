"""The hottest prefixes as an operator sees them: GET /admin/prefixes, and the metrics of replication.

A prefix is shown by a keyed hash of its key, which tells nobody what it says, nor lets anybody ask for it.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.admin import Admin
from proxy.hot import Hot
from proxy.prefix import Prefix

PURPOSE = b"prefix ids"


class Prefixes(Collector):
    """Tells of hot prefixes when it is asked."""

    def __init__(self, hot: Hot, secret: bytes) -> None:
        """`secret`, that of the block keys, makes the ids: proxies that share it show the same ones."""
        self._hot = hot
        self._key = blake2b(secret, person=PURPOSE).digest()

    def serve(self, admin: Admin) -> None:
        """Answer GET /admin/prefixes."""
        admin.serve("GET", "/admin/prefixes", self._page)

    async def _page(self, _: web.BaseRequest) -> web.Response:
        shown = {"prefixes": [self._shown(prefix) for prefix in self._hot.hottest()]}
        return web.Response(body=msgspec.json.encode(shown), content_type="application/json")

    def _shown(self, prefix: Prefix) -> dict[str, object]:
        return {
            "id": blake2b(prefix.key.to_bytes(8), key=self._key, digest_size=8).hexdigest(),
            "model": prefix.model,
            "tokens": prefix.tokens,
            "requests_per_minute": round(60 * prefix.rate, 1),
            "tokens_saved_per_minute": round(60 * prefix.saving),
            "tokens_saved": round(prefix.saved),
            "holders": [{"replica": one.view.name, "tokens": one.tokens} for one in prefix.holders],
            "released": sorted(prefix.released),
            "replicas_wanted": prefix.wanted,
            "hot": prefix.hot,
            "state": prefix.state if prefix.hot else "steady",
        }

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        hot = [prefix for prefix in self._hot.hottest() if prefix.hot]
        steps = CounterMetricFamily(
            "warmroute_prefix_replications",
            "Steps in the replication of hot prefixes: one replica more, or one fewer.",
            labels=["step"],
        )
        steps.add_metric(["grow"], self._hot.grown)
        steps.add_metric(["shrink"], self._hot.shrunk)
        return [
            GaugeMetricFamily(
                "warmroute_hot_prefixes",
                "Prefixes that need more than one replica, or lately did.",
                value=len(hot),
            ),
            GaugeMetricFamily(
                "warmroute_hot_prefix_replicas_wanted",
                "Replicas that should hold them, over all of them.",
                value=sum(prefix.wanted for prefix in hot),
            ),
            GaugeMetricFamily(
                "warmroute_hot_prefix_replicas_held",
                "Replicas that hold them and go on to, over all of them.",
                value=sum(len(prefix.holders) for prefix in hot),
            ),
            steps,
        ]
