"""What is looked at beside routing, put together: canary, shadows, breaks and savings, and their endpoints.

Nothing here is on a request's path but what `Exchanges` calls while it is on.
"""

from functools import partial
from time import monotonic

from proxy.admin import Admin
from proxy.breaks_seen import BreaksSeen
from proxy.config import Settings
from proxy.counterfactual import Counterfactual
from proxy.exchange import Exchanges
from proxy.ledger import Ledger
from proxy.metrics import Metrics
from proxy.router import Router
from proxy.shared.client import Link
from proxy.shared.stage import SharedStage
from proxy.tasks import Tasks
from proxy.trial import STEP_SECONDS, Trials


class Insights:
    """Each built once, fed from the ledger."""

    def __init__(
        self, settings: Settings, main: Router, metrics: Metrics, ledger: Ledger, exchanges: Exchanges
    ) -> None:
        self._stage: SharedStage | None = None
        self.trials = Trials(settings.canary, main, settings.policy_params, monotonic)
        self.trials.splits = partial(setattr, exchanges, "split")
        self.trials.begin()
        metrics.register(self.trials)
        ledger.readers.append(self.trials.read)
        self.counterfactual = Counterfactual(
            settings.shadow,
            settings.savings,
            settings.policy,
            settings.policy_params,
            main.fleet,
            main.index.capacity,
        )
        metrics.register(self.counterfactual)
        if self.counterfactual.on:
            ledger.readers.append(self.counterfactual.read)
        self.breaks: BreaksSeen | None = None
        if settings.breaks.per_second:
            self.breaks = BreaksSeen(settings.breaks, monotonic)
            metrics.register(self.breaks)
            exchanges.sample = self.breaks.sampler.offer

    def serve(self, admin: Admin) -> None:
        """Answer below /admin."""
        trials = self.trials
        admin.serve("GET", "/admin/canary", trials.show)
        admin.serve("POST", "/admin/canary", trials.change)
        admin.serve("DELETE", "/admin/canary", trials.remove)
        admin.serve("GET", "/admin/policy", trials.policy)
        admin.serve("POST", "/admin/policy", trials.set_policy)
        admin.serve("GET", "/admin/shadow", self.counterfactual.show_shadows)
        admin.serve("GET", "/admin/savings", self.counterfactual.show_savings)
        if self.breaks is not None:
            admin.serve("GET", "/admin/breaks", self.breaks.show)

    def share(self, link: Link, namespace: str) -> None:
        """Have one stage of a canary with the other proxies on that Redis."""
        self._stage = SharedStage(link, namespace=namespace)

    def start(self, tasks: Tasks) -> None:
        """Do what is done from time to time."""
        tasks.every("canary", STEP_SECONDS, self._judge)
        if self.breaks is not None:
            tasks.every("breaks", self.breaks.sampler.interval, self.breaks.sampler.step)

    async def _judge(self) -> None:
        trials = self.trials
        trials.step()
        if self._stage is not None:
            trial = trials.current
            if trial is None:
                await self._stage.step(None, "", monotonic())
            else:
                await self._stage.step(trial.canary, trial.what, monotonic())
                trials.step()
