"""Replicas kept free of batch while it has long prompts: how many, and which. Pure; told the time.

An engine's step is not cut short: whoever comes while a long prompt is computed waits for its end, however
urgent. No order among requests gets around that, only a replica that has none. So while long prompts of the
last class are let in, what the classes above it need of the fleet is measured, and as many whole replicas
are kept from it as leave it `LEFT` of what those leave of the fleet. They go there by themselves, since
that is where they wait least, and stay for their prefixes. Where they would not all fit there, or need too
little for a replica of their own, none is kept: half of a measure would only fill the other replicas.

Nothing has to be known of engines' speeds: the last class had to wait, so its replicas are as busy as can be,
and what it gets done on one of them is what one can do.

Invariants: unless long prompts of the last class have just been let in after they had waited, nothing is
counted or kept; of a model's replicas one at least is not kept; which are kept follows from their names, so
proxies of one view agree without talking.
"""

from math import ceil, exp

from proxy.fleet import Fleet

LONG_SECONDS = 0.07
"""Prefill from which on a prompt is long: some four steps of an engine that only decodes."""
SEQUENCE_TOKENS = 256.0
"""What a sequence costs besides its prompt, as prompt tokens. On the bench's profile `h100x2-32b` a saturated
replica spends 260 tokens' time on a chat's answer of 150 tokens, 270 on a document's of 200."""
LEFT = 0.9
"""Of what the classes above leave of the fleet, what the last is to have at least."""
SLACK, CROWDED = 0.1, 1.25
"""What may be missing of that, and how much more than fits may come, before what is kept is let go: who has
just moved there computes prompts anew."""
CALM_SECONDS = 10.0
"""Time constant of what is measured."""
FIRST_SECONDS, QUIET_SECONDS = 5.0, 10.0
"""How long is measured before the first judgement; how long no long prompt is let in before it ends."""


class Watched:
    """The work of one model's replicas, in prompt tokens."""

    __slots__ = ("above", "kept", "last", "last_long", "since")

    def __init__(self, now: float) -> None:
        self.since = self.last_long = now
        self.above = self.last = 0.0
        """Sent by the classes above the last, and by the last; sums that fade."""
        self.kept: frozenset[str] = frozenset()

    def load(self, replicas: int) -> float:
        """How many of so many replicas the classes above the last keep busy."""
        kept = len(self.kept)
        if kept:
            return (replicas - kept) * self.above / self.last if self.last else float(replicas)
        total = self.above + self.last
        return replicas * self.above / total if total else 0.0


def keep(load: float, replicas: int, now: int = 0) -> int:
    """How many of so many replicas to keep for a load that `load` of them are busy with.

    As many as leave the last class `LEFT` of the rest, and twice the load at most; none, if the load does not
    fit there. What is kept `now` stays so within `SLACK` and `CROWDED`.
    """
    for kept in range(min(replicas - 1, ceil(2 * load)), 0, -1):
        slack, fits = (SLACK, CROWDED) if kept == now else (0.0, 1.0)
        if load > fits * kept:
            return 0
        if replicas - kept >= (LEFT - slack) * (replicas - load):
            return kept
    return 0


class Reserve:
    """What is kept from the last class, by model."""

    def __init__(self, fleet: Fleet) -> None:
        self.watched: dict[str, Watched] = {}
        """Models of which long prompts have just been let in; empty: nothing needs to be told."""
        self._fleet = fleet
        self._faded = fleet.clock()

    def let_in(self, model: str, tokens: int) -> None:
        """A request of the last class, with so many uncached tokens, is let in after it has waited."""
        views = self._fleet.candidates(model)
        if views and tokens > LONG_SECONDS * min([view.prefill_rate for view in views]):
            watched, now = self.watched.get(model), self._fleet.clock()
            if watched is None:
                self.watched[model] = Watched(now)
            else:
                watched.last_long = now

    def sent(self, model: str, tokens: int, sequences: int, *, last: bool) -> None:
        """A request was sent, of the last class or of one above. Needed only while anything is `watched`."""
        watched = self.watched.get(model)
        if watched is not None:
            work = tokens + SEQUENCE_TOKENS * sequences
            if last:
                watched.last += work
            else:
                watched.above += work

    def tick(self) -> bool:
        """Judge anew, about once a second; True if what is kept has changed."""
        now = self._fleet.clock()
        fade, self._faded = exp((self._faded - now) / CALM_SECONDS), now
        changed = False
        for model, watched in list(self.watched.items()):
            views = self._fleet.candidates(model)
            if not views or now - watched.last_long > QUIET_SECONDS:
                del self.watched[model]
                changed = changed or bool(watched.kept)
                continue
            watched.above *= fade
            watched.last *= fade
            if now - watched.since >= FIRST_SECONDS:
                count = keep(watched.load(len(views)), len(views), len(watched.kept))
                kept = frozenset([view.name for view in views[:count]])
                changed = changed or kept != watched.kept
                watched.kept = kept
        return changed
