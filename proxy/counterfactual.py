"""What would have been: shadows and savings, fed from the ledger, and told by metrics and under /admin."""

from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec
from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from policies import registry
from proxy.arms import point, root
from proxy.fleet import Fleet
from proxy.insight import Savings as SavingsTerms
from proxy.record import Record
from proxy.replica import Replica
from proxy.router import RouteRequest
from proxy.savings import GROUPS, Savings
from proxy.shadow import Shadow

OTHER_POINT = 0x5851F42D4C957F2D
"""So that the sample is another one than a canary's."""


class Counterfactual(Collector):
    """Reads what has ended, and asks what would have been."""

    def __init__(
        self,
        shadows: Sequence[str],
        terms: SavingsTerms,
        policy: str,
        params: dict[str, object],
        fleet: Fleet,
        capacity: Callable[[str], int],
    ) -> None:
        """`policy` is the one in use; if there are shadows, it has one too. `capacity`: see `Shadow.see`."""
        named = dict.fromkeys((policy, *shadows)) if shadows else {}
        self.shadows = [
            Shadow(name, registry.create(name, params if name == policy else {}), Random()) for name in named
        ]
        self.savings = Savings(
            gpus=terms.gpus_per_replica, price_per_hour=terms.price_per_gpu_hour, currency=terms.currency
        )
        self._currency = terms.currency
        self._percent = terms.sample * 100
        self._round_robin = Shadow(
            "round_robin", registry.create("round_robin", {}), Random(), share=terms.sample
        )
        self._fleet = fleet
        self._capacity = capacity

    @property
    def on(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.shadows) or self._percent > 0

    def read(self, records: Sequence[Record]) -> None:
        """Take in requests that have ended."""
        replies: dict[Replica, list[int]] = {}
        everything, percent = bool(self.shadows), self._percent
        asked: list[tuple[float, Record, RouteRequest]] = []
        for record in records:
            lease = record.lease
            if lease is None or not record.prompt_tokens:
                continue
            prompt, cached = record.reported_prompt, record.reported_cached
            if prompt is not None and cached is not None:
                sums = replies.get(lease.replica)
                if sums is None:
                    sums = replies[lease.replica] = [0, 0, 0]
                sums[0] += prompt
                sums[1] += cached
                sums[2] += record.ttft is not None
            request = lease.request
            at = point(root(request.keys, request.block_tokens, request.affinity) ^ OTHER_POINT)
            if at < percent or everything:
                asked.append((at, record, request))
        for replica, (prompt, cached, timed) in replies.items():
            self.savings.count(prompt, cached, replica.view.prefill_rate, timed=timed)
        for at, record, request in sorted(asked, key=_began):
            self._ask(at, record, request)
        self._forget()

    def collect(self) -> Iterable[Metric]:
        """What shadows would have found, and what was saved."""
        tokens = CounterMetricFamily(
            "warmroute_shadow_tokens",
            "Prompt tokens; those the best replica would have held; those the chosen one would have.",
            labels=["policy", "stage"],
        )
        requests = CounterMetricFamily(
            "warmroute_shadow_requests", "Requests that a shadow was asked about.", labels=["policy"]
        )
        ttft = CounterMetricFamily(
            "warmroute_shadow_ttft_seconds", "Sum of modelled times to first tokens.", labels=["policy"]
        )
        for each in self.shadows:
            for stage, value in (
                ("prompt", each.prompt_tokens),
                ("available", each.available_tokens),
                ("routed", each.routed_tokens),
            ):
                tokens.add_metric([each.name, stage], value)
            requests.add_metric([each.name], each.requests)
            ttft.add_metric([each.name], each.ttft_seconds)
        return [tokens, requests, ttft, *self._savings()]

    def told(self) -> list[dict[str, object]]:
        """What shadows say, as an operator reads it."""
        return [each.told() for each in self.shadows]

    async def show_shadows(self, _: web.BaseRequest) -> web.Response:
        """GET /admin/shadow."""
        return _json({"shadows": self.told()})

    async def show_savings(self, _: web.BaseRequest) -> web.Response:
        """GET /admin/savings."""
        return _json(self.savings.told())

    def _savings(self) -> Iterable[Metric]:
        cached = CounterMetricFamily(
            "warmroute_cached_gpu_seconds", "Prefill that cached tokens took nobody, in GPU-seconds."
        )
        saved = GaugeMetricFamily(
            "warmroute_saved_gpu_seconds",
            "The same beyond what round robin would have found; low and high are a 95 % interval.",
            labels=["bound"],
        )
        money = GaugeMetricFamily(
            "warmroute_saved_money", "What that costs, if a price was given.", labels=["currency", "bound"]
        )
        told = self.savings.told()
        cached.add_metric([], float(str(told["cached_gpu_seconds"])))
        for bound, value in zip(("estimate", "low", "high"), self.savings.saved() or (), strict=False):
            saved.add_metric([bound], value)
            if (amount := self.savings.money(value)) is not None:
                money.add_metric([self._currency, bound], amount)
        return [cached, saved, money]

    def _ask(self, at: float, record: Record, request: RouteRequest) -> None:
        views = self._fleet.candidates(request.model)
        if not views:
            return
        decode = record.e2e - (record.ttft or 0.0)
        for each in self.shadows:
            each.see(request, views, self._capacity, record.started, decode)
        if at < self._percent:
            hit = self._round_robin.see(request, views, self._capacity, record.started, decode)
            self.savings.sample(int(at / self._percent * GROUPS), request.tokens, hit)

    def _forget(self) -> None:
        for each in (*self.shadows, self._round_robin):
            for name in each.replicas:
                if name not in self._fleet.replicas:
                    each.forget(name)


def _began(asked: tuple[float, Record, RouteRequest]) -> float:
    return asked[1].started


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
