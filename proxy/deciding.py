"""What decides, put together: two routers over one fleet and one index, hot prefixes, and who is let in when.

All of it is pure; the fleet has the clock, and randomness is given here.
"""

from random import Random

from policies import registry
from policies.base import follows_prefixes
from proxy.admission import Admission
from proxy.concurrency import patience
from proxy.config import Settings
from proxy.fleet import Fleet
from proxy.hot import Hot
from proxy.index.base import PrefixIndex
from proxy.router import Router


class Deciding:
    """Each built once."""

    def __init__(self, settings: Settings, fleet: Fleet, index: PrefixIndex) -> None:
        """`index` is what placements are told to."""
        policy = registry.create(settings.policy, settings.policy_params)
        self.by_policy = Router(fleet, index, policy, Random(), name=settings.policy)
        self.hot = self.by_policy.hot = Hot(fleet, index, lambda: follows_prefixes(self.by_policy.policy))
        least_load = registry.create("least_load", {})
        self.by_load = Router(fleet, index, least_load, Random(), name="least_load")
        """For what has no prompt that could be read."""
        concurrency = settings.limits.concurrency
        fleet.limit(concurrency)
        self.admission = Admission(fleet, settings.priority, prefill=patience(concurrency))
        fleet.freed = self.admission.pump
