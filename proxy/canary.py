"""The stages of a canary: how much of the traffic it has, and when that changes. Pure; told the time.

    baseline -> running -> complete          paused: by hand, goes on where it was
                   |
              rolled_back                    by itself on a breach, or by hand

The traffic that the canary will get is watched first while both sides are treated alike: prompts are divided
by how they begin, so the sides differ in kind, and what they differed by before is not held against the
canary. A breach must last `BREACH_SECONDS`. Only a comparison of enough requests lets a stage end; without
them it waits.

Invariants: a prompt's side depends on its start and the percentage alone; raising the percentage moves
prompts to the canary only, lowering it only away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from proxy.arms import Bands, Figures, point
from proxy.breach import Before, before, errors_breach, hit_breach, ttft_breach, usage_breach
from proxy.canary_terms import CanaryTerms

BREACH_SECONDS = 5.0
Check = Callable[[Figures, Figures, CanaryTerms, Before], str | None]
_WHEN_WARM: tuple[tuple[str, Check], ...] = (
    ("ttft", ttft_breach),
    ("hit_rate", hit_breach),
    ("kv_usage", usage_breach),
)


class Phase(Enum):
    """What a canary is doing."""

    BASELINE = "baseline"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETE = "complete"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that an operator should hear of."""

    phase: Phase
    percent: float
    reason: str
    """`promoted`, `complete`, `by_hand`, or what was breached: `errors`, `ttft`, `hit_rate`, `kv_usage`."""
    why: str
    """A sentence."""


class Canary:
    """One canary, from its first request to its end."""

    def __init__(self, terms: CanaryTerms, now: float) -> None:
        self.terms = terms
        self.percent = 0.0
        """Of all prompt starts, those that are the canary's now."""
        self.phase = Phase.BASELINE
        self.reason = ""
        self.why = ""
        """Why it is where it is."""
        self._stages: Sequence[float] = terms.stages
        self._stage = -1
        self._bands = _bands(terms.stages)
        self._before: dict[float, Before] = {}
        self._since = now
        self._settled = True
        self._breached: float | None = None
        self._changes: list[Change] = []
        if not terms.automatic or not terms.baseline_seconds:
            self._enter(0, now, "promoted", "it begins")

    def has(self, root: int) -> bool:
        """Whether prompts that begin so are the canary's."""
        return root != 0 and point(root) < self.percent

    def observe(
        self,
        now: float,
        root: int,
        ttft: float | None,
        prompt: int,
        cached: int,
        kv_usage: float | None,
        *,
        failed: bool,
        is_canary: bool,
    ) -> None:
        """Count a request that has ended; one that was sent under another percentage says nothing."""
        if not root:
            return
        at = point(root)
        if is_canary != (at < self.percent):
            return
        self._bands.add(now, self._bands.band(at), ttft, prompt, cached, kv_usage, failed=failed)

    def step(self, now: float) -> list[Change]:
        """Judge what is known, and go on or back; what has changed since the last call."""
        if self.phase is Phase.BASELINE:
            self._watch(now)
        elif self.phase in (Phase.RUNNING, Phase.PAUSED):
            self._judge(now)
        changes, self._changes = self._changes, []
        return changes

    def promote(self, now: float) -> None:
        """By hand: the next stage, from wherever it is; nothing after the last."""
        if self._stage + 1 < len(self._stages):
            self._enter(self._stage + 1, now, "by_hand", "an operator promoted it")

    def roll_back(self, now: float, reason: str = "by_hand", why: str = "an operator ended it") -> None:
        """Take all traffic from it."""
        self.percent, self._stage = 0.0, -1
        self._tell(Phase.ROLLED_BACK, reason, why)
        self._since = now

    def pause(self) -> None:
        """By hand: stay at this percentage; a breach still ends it."""
        if self.phase in (Phase.RUNNING, Phase.BASELINE):
            self._tell(Phase.PAUSED, "by_hand", "an operator paused it")

    def resume(self, now: float) -> None:
        """By hand: go on from where it was paused, or begin anew where it had ended."""
        if self.phase is Phase.PAUSED and self._stage >= 0:
            self._tell(Phase.RUNNING, "by_hand", "an operator let it go on")
        elif self.phase in (Phase.PAUSED, Phase.ROLLED_BACK):
            self._enter(0, now, "by_hand", "an operator began it anew")

    def set_percent(self, percent: float, now: float) -> None:
        """By hand: exactly this much, 0 to 100; from there on it goes through the stages above it."""
        if percent <= 0:
            self.roll_back(now)
            return
        self._stages = sorted({*self.terms.stages, percent})
        if percent not in self._bands.cuts:
            self._bands = _bands(self._stages)
            self._before.clear()
        self._enter(self._stages.index(percent), now, "by_hand", f"an operator gave it {percent:g} %")

    def adopt(self, percent: float, phase: Phase, reason: str, why: str, now: float) -> None:
        """Be where another proxy's is that tries the same."""
        if self.phase is Phase.BASELINE and phase is not Phase.BASELINE:
            self._compare_before()
        if percent != self.percent:
            if percent > 0 and percent not in self._stages:
                self._stages = sorted({*self.terms.stages, percent})
                self._bands = _bands(self._stages)
                self._before.clear()
            self._stage = self._stages.index(percent) if percent > 0 else -1
            self.percent, self._since, self._breached = percent, now, None
            self._settled = not self.terms.settle_seconds
            self._bands.clear()
        self._tell(phase, reason, why)

    def told(self, now: float) -> dict[str, object]:
        """Its state as an operator reads it."""
        canary, main = self._bands.sides(self.percent)
        return {
            "phase": self.phase.value,
            "percent": self.percent,
            "stages": list(self._stages),
            "seconds_in_phase": round(now - self._since, 1),
            "settled": self._settled,
            "reason": self.reason,
            "why": self.why,
            "waiting_for": self._waiting_for(canary, main, now),
            "arms": {"canary": canary.told(), "main": main.told()} if self.percent else {"main": main.told()},
            "limits": self.terms.model_dump(include={"ttft", "errors", "hit_rate", "kv_usage"}),
        }

    def _waiting_for(self, canary: Figures, main: Figures, now: float) -> str | None:
        """What keeps it from going on, in words."""
        if self.phase is Phase.PAUSED:
            return "an operator"
        if self.phase not in (Phase.RUNNING, Phase.BASELINE):
            return None
        if self.phase is Phase.BASELINE:
            canary, main = self._bands.sides(self._stages[0])
        for name, figures in (("canary", canary), ("main", main)):
            if figures.requests < self.terms.min_requests:
                return f"requests of {name}: {figures.requests} of {self.terms.min_requests}"
        lasts = self.terms.stage_seconds if self.phase is Phase.RUNNING else self.terms.baseline_seconds
        return "an operator" if not self.terms.automatic else f"{max(0.0, lasts - now + self._since):.0f} s"

    def _watch(self, now: float) -> None:
        least = self.terms.min_requests
        if now - self._since < self.terms.baseline_seconds:
            return
        if any(side.requests < least for side in self._bands.sides(self._stages[0])):
            return
        self._compare_before()
        self._enter(0, now, "promoted", "it begins")

    def _compare_before(self) -> None:
        for stage in self._stages:
            self._before[stage] = before(*self._bands.sides(stage), self.terms.min_requests)

    def _judge(self, now: float) -> None:
        terms = self.terms
        lasted = now - self._since
        if not self._settled and lasted >= terms.settle_seconds:
            self._settled = True
            self._bands.clear()  # what was counted until here was of caches that warmed
        self._bands.trim(now, terms.window_seconds, self.percent, terms.min_requests)
        canary, main = self._bands.sides(self.percent)
        enough = min(canary.requests, main.requests) >= terms.min_requests
        was = self._before.get(self.percent, Before())
        breach = self._breach(canary, main, was, warm=self._settled and enough)
        if breach is None:
            self._breached = None
        elif self._breached is None:
            self._breached = now
        elif now - self._breached >= BREACH_SECONDS:
            self.roll_back(now, *breach)
            return
        calm = self._settled and self._breached is None and lasted >= terms.stage_seconds
        rises = terms.automatic and self._stage + 1 < len(self._stages)
        if self.phase is Phase.RUNNING and enough and calm and rises:
            self._enter(self._stage + 1, now, "promoted", "nothing was breached")

    def _breach(self, canary: Figures, main: Figures, was: Before, *, warm: bool) -> tuple[str, str] | None:
        why = errors_breach(canary, main, self.terms, was)
        if why is not None:
            return "errors", why
        if warm:
            for reason, check in _WHEN_WARM:
                why = check(canary, main, self.terms, was)
                if why is not None:
                    return reason, why
        return None

    def _enter(self, stage: int, now: float, reason: str, why: str) -> None:
        self._stage, self.percent = stage, self._stages[stage]
        self._since, self._settled, self._breached = now, not self.terms.settle_seconds, None
        self._bands.clear()
        done = self.percent >= 100
        self._tell(Phase.COMPLETE if done else Phase.RUNNING, "complete" if done else reason, why)

    def _tell(self, phase: Phase, reason: str, why: str) -> None:
        self.phase, self.reason, self.why = phase, reason, why
        self._changes.append(Change(phase, self.percent, reason, why))


def _bands(stages: Sequence[float]) -> Bands:
    return Bands([*(stage for stage in stages if stage < 100), 100.0])
