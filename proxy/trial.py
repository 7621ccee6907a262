"""The canary at work: whose router a request gets, what its record tells, and what an operator may do.

On a request's path is `Trial.router` alone, and only while there is a canary. All else happens when records
are told, and every `STEP_SECONDS`. What changes is logged and counted.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError

from policies import base, registry
from proxy import bodies
from proxy.arms import root
from proxy.canary import Canary, Change, Phase
from proxy.canary_terms import CanaryTerms
from proxy.errors import BadRequest, NotFound
from proxy.logs import logger
from proxy.record import Record
from proxy.router import Router, RouteRequest
from proxy.series import CounterFamily

STEP_SECONDS = 2.0
BODY_BYTES = 64 * 1024
BODY_SECONDS = 10.0
ARM = "canary"
_FAILED = frozenset(("failed", "broken"))


class Trial:
    """One canary, and the two routers between which it divides the traffic."""

    def __init__(self, terms: CanaryTerms, main: Router, params: dict[str, object], now: float) -> None:
        """`params` are those of the main policy, which the canary has too if it names none."""
        self.canary = Canary(terms, now)
        self.main = main
        policy, given = (main.name, params) if terms.policy is None else (terms.policy, terms.params)
        self.params = given
        self.other = Router(
            main.fleet, main.index, registry.create(policy, given), Random(), name=policy, arm=ARM
        )
        if terms.replicas:
            names = frozenset(terms.replicas)
            self.other.among = _only(lambda view: view.name in names)
            main.among = _only(lambda view: view.name not in names)

    @property
    def what(self) -> str:
        """All that is tried, in words that every proxy uses for it."""
        terms = self.canary.terms.model_dump(include={"replicas", "stages"})
        return msgspec.json.encode((self.main.name, self.other.name, self.params, terms)).decode()

    def router(self, request: RouteRequest) -> Router:
        """Whose the request is, by how its prompt begins; an unknown prompt is the main side's."""
        start = root(request.keys, request.block_tokens, request.affinity)
        return self.other if self.canary.has(start) else self.main

    def read(self, record: Record, now: float) -> None:
        """Count a request that has ended."""
        lease = record.lease
        if lease is None:
            return
        request = lease.request
        told = record.reported_prompt is not None and record.reported_cached is not None
        self.canary.observe(
            now,
            root(request.keys, request.block_tokens, request.affinity),
            record.ttft,
            (record.reported_prompt if told else record.prompt_tokens) or 0,
            (record.reported_cached if told else record.routed_tokens) or 0,
            lease.replica.view.kv_usage,
            failed=record.outcome in _FAILED,
            is_canary=record.arm == ARM,
        )

    def told(self, now: float) -> dict[str, object]:
        """Its state as an operator reads it."""
        terms = self.canary.terms
        return {
            "policy": self.other.name,
            "params": self.params,
            "replicas": list(terms.replicas),
            "against": self.main.name,
            **self.canary.told(now),
        }

    def end(self) -> None:
        """The main side has every replica again."""
        self.main.among = None


class Trials(Collector):
    """The canary there is, if there is one, and its endpoints."""

    def __init__(
        self, terms: CanaryTerms, main: Router, params: dict[str, object], clock: Callable[[], float]
    ) -> None:
        self._main = main
        self._params = params
        self._clock = clock
        self.current: Trial | None = None
        self.splits: Callable[[Callable[[RouteRequest], Router] | None], None] = _nowhere
        """Told who says whose router a request gets; None: nobody."""
        self.changes = CounterFamily(
            "warmroute_canary_changes",
            "Changes of a canary's stage, by what brought them.",
            "phase",
            "reason",
        )
        self.rollbacks = CounterFamily(
            "warmroute_canary_rollbacks", "Canaries that were ended, by what they breached.", "reason"
        )
        self._terms = terms

    def begin(self) -> None:
        """Begin the canary of the settings, if there is one."""
        if self._terms.on:
            self._start(self._terms)

    def read(self, records: Sequence[Record]) -> None:
        """Count requests that have ended."""
        if self.current is not None:
            now = self._clock()
            for record in records:
                self.current.read(record, now)

    def router(self, request: RouteRequest) -> Router:
        """Whose the request would be."""
        return self._main if self.current is None else self.current.router(request)

    @property
    def routers(self) -> tuple[Router, ...]:
        """Who routes by a policy now: the main one, and the canary's while there is one."""
        return (self._main,) if self.current is None else (self._main, self.current.other)

    def step(self) -> None:
        """Judge, and tell of what has changed."""
        trial = self.current
        if trial is not None:
            for change in trial.canary.step(self._clock()):
                self._tell(trial, change)

    def collect(self) -> Iterable[Metric]:
        """How much traffic the canary has, what it is doing, and what became of it."""
        percent = GaugeMetricFamily(
            "warmroute_canary_percent", "Percent of prompt starts that are the canary's.", labels=["policy"]
        )
        phase = GaugeMetricFamily(
            "warmroute_canary_phase", "1 for what the canary is doing.", labels=["phase"]
        )
        if self.current is not None:
            percent.add_metric([self.current.other.name], self.current.canary.percent)
            for each in Phase:
                phase.add_metric([each.value], float(each is self.current.canary.phase))
        return [percent, phase, self.changes.collect(), self.rollbacks.collect()]

    def told(self) -> dict[str, object] | None:
        """The canary's state as an operator reads it; None if there is none."""
        return None if self.current is None else self.current.told(self._clock())

    async def show(self, _: web.BaseRequest) -> web.Response:
        """GET /admin/canary."""
        return _json({"canary": self.told()})

    async def change(self, request: web.BaseRequest) -> web.Response:
        """POST /admin/canary: {"action": ...}, {"percent": ...}, or the terms of a new canary."""
        told = await _object(request)
        if "action" in told or "percent" in told:
            self._by_hand(told)
        else:
            self._start(_terms(told))
        self.step()
        return _json({"canary": self.told()})

    async def remove(self, _: web.BaseRequest) -> web.Response:
        """DELETE /admin/canary: there is none any more."""
        if self.current is not None:
            self.current.end()
            self.current = None
            self.splits(None)
            logger.warning("canary removed by an operator")
        return web.Response(status=204)

    async def policy(self, _: web.BaseRequest) -> web.Response:
        """GET /admin/policy."""
        return _json({"policy": self._main.name, "params": self._params, "canary": self.told()})

    async def set_policy(self, request: web.BaseRequest) -> web.Response:
        """POST /admin/policy: {"policy": NAME, "params": {...}} from the next request on."""
        told = await _object(request)
        name, params = told.get("policy"), told.get("params", {})
        if not isinstance(name, str) or not isinstance(params, dict) or told.keys() - {"policy", "params"}:
            raise BadRequest('the body should be {"policy": NAME, "params": {...}}')
        try:
            policy = registry.create(name, params)
        except ValueError as error:
            raise BadRequest(str(error), param="policy") from None
        self._main.policy, self._main.name, self._params = policy, name, params
        logger.warning("policy is %s from now on: an operator chose it", name)
        return await self.policy(request)

    def _start(self, terms: CanaryTerms) -> None:
        if self.current is not None:
            self.current.end()
        trial = self.current = Trial(terms, self._main, self._params, self._clock())
        self.splits(trial.router)
        logger.warning(
            "canary begins: %s%s against %s",
            trial.other.name,
            f" on {', '.join(terms.replicas)}" if terms.replicas else "",
            self._main.name,
        )

    def _by_hand(self, told: dict[str, object]) -> None:
        trial, now = self.current, self._clock()
        if trial is None:
            raise NotFound('there is no canary: begin one with {"policy": NAME}')
        if told.keys() == {"percent"}:
            percent = told["percent"]
            if isinstance(percent, bool) or not isinstance(percent, int | float) or not 0 <= percent <= 100:
                raise BadRequest("percent should be a number from 0 to 100", param="percent")
            trial.canary.set_percent(float(percent), now)
            return
        actions: dict[object, Callable[[], None]] = {
            "promote": lambda: trial.canary.promote(now),
            "rollback": lambda: trial.canary.roll_back(now),
            "pause": trial.canary.pause,
            "resume": lambda: trial.canary.resume(now),
        }
        action = told.get("action")
        if told.keys() != {"action"} or not isinstance(action, str) or action not in actions:
            raise BadRequest(f"action should be one of {', '.join(map(str, actions))}", param="action")
        actions[action]()

    def _tell(self, trial: Trial, change: Change) -> None:
        self.changes.add((change.phase.value, change.reason))
        if change.phase is Phase.ROLLED_BACK:
            self.rollbacks.add((change.reason,))
        logger.warning(
            "canary %s: %s, %g %% of the traffic (%s: %s)",
            trial.other.name,
            change.phase.value.replace("_", " "),
            change.percent,
            change.reason,
            change.why,
        )


def _only(wanted: Callable[[base.Replica], bool]) -> Callable[[list[base.Replica]], list[base.Replica]]:
    """Keep those that are wanted, or all if none is: a request is answered rather than divided well."""

    def among(views: list[base.Replica]) -> list[base.Replica]:
        return [view for view in views if wanted(view)] or views

    return among


def _nowhere(_: Callable[[RouteRequest], Router] | None) -> None:
    """Nobody asks whose router a request gets."""


async def _object(request: web.BaseRequest) -> dict[str, object]:
    try:
        return msgspec.json.decode(
            await bodies.read(request, BODY_BYTES, BODY_SECONDS), type=dict[str, object]
        )
    except msgspec.DecodeError:
        raise BadRequest("the body should be a JSON object") from None


def _terms(told: dict[str, object]) -> CanaryTerms:
    try:
        terms = CanaryTerms.model_validate(told)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the body"
        raise BadRequest(f"{where}: {fault['msg'].removeprefix('Value error, ')}", param=where) from None
    if not terms.on:
        raise BadRequest('a canary tries something: {"policy": NAME} or {"replicas": [...]}')
    return terms


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
