"""A canary, as a person configures it: what is tried, on how much traffic, what ends it. No more than values.

Invariant: a `CanaryTerms` that is `on` tries a policy that exists, other replicas, or both, in stages that
rise.
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from policies import registry
from proxy.priority import pairs
from proxy.spec import Frozen, Text, split_commas

Percent = Annotated[float, Field(gt=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]


class CanaryTerms(Frozen):
    """A part of the traffic, by the start of its prompts, that is routed otherwise."""

    policy: Text | None = None
    """policy that is tried on a part of the traffic; `warmroute policies` lists them. Not set: none, or the
    same policy on canary.replicas"""
    params: Annotated[dict[str, Any], BeforeValidator(pairs("value"))] = Field(default={})
    """name=value,…: parameters of that policy"""
    replicas: Annotated[tuple[Text, ...], BeforeValidator(split_commas)] = ()
    """names of replicas, comma-separated, that serve the canary's traffic and no other"""
    stages: Annotated[tuple[Percent, ...], BeforeValidator(split_commas)] = (5.0, 25.0, 50.0, 100.0)
    """percent of traffic, comma-separated, that the canary is given one after the other"""
    baseline_seconds: NonNegativeFloat = 60.0
    """seconds that the traffic of the stages is watched before the canary gets any: what differs then is no
    fault of the canary's"""
    settle_seconds: NonNegativeFloat = 20.0
    """seconds after each change of percent in which only errors are judged: caches must warm"""
    stage_seconds: PositiveFloat = 300.0
    """seconds that a stage lasts at least"""
    window_seconds: PositiveFloat = 120.0
    """seconds of traffic that are compared; more where those hold fewer than min_requests"""
    min_requests: PositiveInt = 100
    """requests of each side that a comparison takes at least"""
    ttft: Annotated[float, Field(ge=1)] = 1.2
    """a canary whose 95th percentile of times to first tokens is more than so many times the other's ends"""
    errors: Share = 0.01
    """likewise a share of failed requests that is so much higher"""
    hit_rate: Share = 0.05
    """likewise a hit rate that is so much lower"""
    kv_usage: Share = 0.15
    """likewise a usage of its replicas' KV cache that is so much higher"""
    automatic: bool = True
    """false: stages change only by /admin/canary; what breaches the limits still ends the canary"""

    @property
    def on(self) -> bool:
        """Whether there is one."""
        return self.policy is not None or bool(self.replicas)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if not self.stages or any(a >= b for a, b in zip(self.stages, self.stages[1:], strict=False)):
            raise ValueError("stages should rise, as in 5,25,50,100")
        if self.policy is not None:
            registry.create(self.policy, self.params)
        elif self.params:
            raise ValueError("params are of a policy: set canary.policy too")
        return self
