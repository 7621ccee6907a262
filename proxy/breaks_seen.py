"""The break finder at work: fed while the proxy runs, told by metrics and under /admin."""

from collections import Counter
from collections.abc import Callable, Iterable
from time import thread_time

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.breaks.finder import Finder
from proxy.breaks.sampler import SHARE, Sampler
from proxy.insight import Breaks


class BreaksSeen(Collector):
    """One finder, and the sampler that feeds it."""

    def __init__(self, terms: Breaks, clock: Callable[[], float]) -> None:
        """`terms.per_second` is more than 0."""
        self._clock = clock
        self.sampler = Sampler(
            Finder(clock(), windows=terms.windows), clock, per_second=terms.per_second, spent=thread_time
        )

    def told(self) -> dict[str, object]:
        """What was found, as an operator reads it."""
        sampler = self.sampler
        return {
            "breaks": sampler.finder.report(self._clock()),
            "requests_that_missed": sampler.offered,
            "requests_looked_at": sampler.finder.looked,
            "most_per_second": round(1 / sampler.interval, 2),
            "most_of_a_core": SHARE,
        }

    async def show(self, _: web.BaseRequest) -> web.Response:
        """GET /admin/breaks."""
        return web.Response(body=msgspec.json.encode(self.told()), content_type="application/json")

    def collect(self) -> Iterable[Metric]:
        """How much is looked at, and what breaks cost by kind."""
        offered = CounterMetricFamily(
            "warmroute_breaks_missed_requests", "Requests whose prompts no cache had much of."
        )
        looked = CounterMetricFamily(
            "warmroute_breaks_looked_requests", "Of those, the ones that the break finder looked at."
        )
        cost = GaugeMetricFamily(
            "warmroute_breaks_tokens_per_day",
            "Tokens a day that are computed anew since prompts part early.",
            labels=["kind"],
        )
        offered.add_metric([], self.sampler.offered)
        looked.add_metric([], self.sampler.finder.looked)
        tokens: Counter[str] = Counter()
        for each in self.sampler.finder.report(self._clock()):
            tokens[str(each["kind"])] += int(str(each["tokens_per_day"]))
        for kind, value in tokens.items():
            cost.add_metric([kind], value)
        return [offered, looked, cost]
