"""Why a request went, or would go, where it did: figures for each replica, and a sentence. Pure.

Told only numbers and names of replicas; nothing of a prompt or a session can get in here. Scores in seconds
are told in milliseconds, those without a unit as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from policies import base

_OF_THE_SCORE = {
    "queue": "the prefill queue there",
    "prefill": "the tokens to prefill",
    "decodes": "the decodes beside it",
    "base": "its base time to first token",
    "slot": "waiting for a free slot",
    "recompute": "computing again what another replica holds",
    "balance": "the work it was given lately",
    "kv_usage": "its full KV cache",
    "prefix": "the share of the prompt that is missing",
    "space": "little free KV cache",
}
"""What a term of a policy's score stands for; others go by their own name."""


@dataclass(slots=True, frozen=True)
class Reasons:
    """One decision, as far as it is known."""

    policy: str
    unit: str
    """`seconds`, or anything else for scores that have none."""
    tokens: int
    """Prompt tokens."""
    matched: dict[str, int]
    """Replica to prompt tokens that it was believed to hold; absent means none."""
    chosen: str
    decision: str
    compared: Sequence[str] = ()
    scores: Sequence[float] = ()
    terms: Sequence[base.Terms] | None = None
    """What each score is made of, if that was noted."""

    def told(self) -> dict[str, object]:
        """For JSON: every replica that was compared, best first, the runner-up, the warmest, and why."""
        names = sorted(self.compared, key=dict(zip(self.compared, self.scores, strict=False)).__getitem__)
        warmest = self.warmest
        return {
            "unit": "milliseconds" if self.unit == "seconds" else self.unit,
            "replicas": [self._replica(name) for name in names or self._unscored()],
            "runner_up": self._runner_up(names),
            "warmest": None
            if warmest is None
            else {"replica": warmest, "matched_tokens": self.matched[warmest]},
            "why": self.why(),
            "why_not_the_warmest": self.why_not_the_warmest(),
        }

    @property
    def warmest(self) -> str | None:
        """Who held the most of the prompt; the chosen one if nobody held more; None if nobody held any."""
        matched = self.matched
        most = max(matched.values(), default=0)
        if not most:
            return None
        return self.chosen if matched.get(self.chosen) == most else max(matched, key=matched.__getitem__)

    def why(self) -> str:
        """What decided, in a sentence."""
        held = self.matched.get(self.chosen, 0)
        if self.decision == "session":
            return f"The session key decided: {self.chosen} is its owner."
        if self.decision == "fallback":
            return f"The prompt was not understood, so the load decided: {self.chosen} had the least."
        if self.warmest is None:
            return f"No replica held any of the prompt; {self._best()}."
        if self.warmest == self.chosen:
            return f"{self.chosen} held the most of the prompt: {held:,} of {self.tokens:,} tokens."
        return self.why_not_the_warmest() or ""

    def why_not_the_warmest(self) -> str | None:
        """Why the replica that held the most was passed over; None if it was not."""
        warmest = self.warmest
        if warmest is None or warmest == self.chosen:
            return None
        begin = (
            f"{warmest} held {self.matched[warmest]:,} of {self.tokens:,} tokens and {self.chosen} "
            f"{self.matched.get(self.chosen, 0):,}, but "
        )
        if not self.scores:
            return f"{begin}{self.policy} does not compare what is cached."
        if warmest not in self.compared:
            return (
                f"{begin}{warmest} could not be chosen: it had no room, was held back or tried before, was "
                "not in the sample of a large fleet, or a hot prefix was being given to one replica more."
            )
        there, here = self._of(warmest), self._of(self.chosen)
        if there < here:
            return f"{begin}by the rule for ties {self.chosen} was preferred."
        scored = f"{warmest} scored {self._spell(there)} and {self.chosen} {self._spell(here)}"
        return f"{begin}{scored}, and less is better{self._heaviest(warmest)}."

    def _heaviest(self, warmest: str) -> str:
        """What weighed most against the warmest, beside the chosen one."""
        if self.terms is None:
            return ""
        there, here = self.terms[self._place(warmest)], self.terms[self._place(self.chosen)]
        more = {name: part - here.get(name, 0.0) for name, part in there.items()}
        name = max(more, key=more.__getitem__)
        if more[name] <= 0:
            return ""
        return f": {self._spell(more[name])} more for {_OF_THE_SCORE.get(name, name)}"

    def _best(self) -> str:
        if self.scores:
            return f"{self.chosen} scored best"
        return f"{self.policy} chose {self.chosen} without a score"

    def _unscored(self) -> list[str]:
        return sorted({*self.matched, self.chosen}, key=lambda name: -self.matched.get(name, 0))

    def _replica(self, name: str) -> dict[str, object]:
        held = self.matched.get(name, 0)
        row: dict[str, object] = {
            "replica": name,
            "matched_tokens": held,
            "uncached_tokens": max(0, self.tokens - held),
        }
        if self.scores:
            row["score"] = self._shown(self._of(name))
        if self.terms is not None:
            row["terms"] = {term: self._shown(part) for term, part in self.terms[self._place(name)].items()}
        return row

    def _runner_up(self, names: Sequence[str]) -> dict[str, object] | None:
        """The best of those not chosen."""
        for name in names:
            if name != self.chosen:
                behind = self._of(name) - self._of(self.chosen)
                return {"replica": name, "score": self._shown(self._of(name)), "behind": self._shown(behind)}
        return None

    def _place(self, name: str) -> int:
        return self.compared.index(name)

    def _of(self, name: str) -> float:
        return self.scores[self._place(name)]

    def _shown(self, score: float) -> float:
        return round(score * 1000, 3) if self.unit == "seconds" else round(score, 4)

    def _spell(self, score: float) -> str:
        return f"{self._shown(score):,.1f} ms" if self.unit == "seconds" else f"{score:.3f}"
