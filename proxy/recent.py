"""The latest requests that have ended, and why each went where it went.

Told by the ledger, a batch at a time; a request itself pays for one tuple. Decisions are kept (all of them
unless the proxy is busy, then a sample, and whatever went wrong) with what each rested on: what each replica
held, and its score. What a score was made of is noted for the first `IN_FULL` decisions between two batches,
some hundred a second.

Bounded: `KEPT` requests of about 1 KiB and 0.2 KiB a replica compared, at most `REPLICAS` each; full terms
take 0.5 KiB a replica more. Holds no keys and nothing of a prompt, an answer or a session.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from policies import base, registry
from proxy.errors import NotFound
from proxy.reasons import Reasons
from proxy.record import Record
from proxy.router import Lease, Router

KEPT = 2048
"""Requests."""
IN_FULL = 10
"""Decisions whose scores are taken apart, from one batch of the ledger to the next."""
MOST = 64
"""Requests of one batch that are kept, about, beside those that went wrong: all, up to some 600 a second."""
REPLICAS = 64
"""Of which it is kept what they held, for one request."""


class _Kept(NamedTuple):
    record: Record
    asked: base.Request | None
    """None if it was never routed."""
    choice: base.Decision | None
    terms: list[base.Terms] | None


class Recent:
    """The latest requests, the newest last."""

    def __init__(
        self, routers: Callable[[], Iterable[Router]], *, kept: int = KEPT, in_full: int = IN_FULL
    ) -> None:
        """`routers` are asked for the terms of some of their decisions."""
        self._routers = routers
        self._kept: deque[_Kept] = deque(maxlen=kept)
        self._in_full = in_full

    def read(self, records: Sequence[Record]) -> None:
        """Take in requests that have ended."""
        for router in self._routers():
            router.to_explain = self._in_full
        every = -(-len(records) // MOST)
        if every > 1:
            records = [r for at, r in enumerate(records) if not at % every or r.outcome != "ok"]
        self._kept.extend(map(_kept, records))

    def latest(self, count: int, decision: str | None = None) -> list[dict[str, object]]:
        """The newest first, in outline; only those of one kind of decision, if that is named."""
        found = (
            _outline(each.record)
            for each in reversed(self._kept)
            if decision is None or each.record.decision == decision
        )
        return list(islice(found, count))

    def find(self, name: str) -> dict[str, object]:
        """All that is known of a request, by its id; the newest, if clients used one twice.

        Raises NotFound.
        """
        for each in reversed(self._kept):
            if each.record.id == name:
                return _whole(each)
        raise NotFound(
            f"no request of this id is among the latest {self._kept.maxlen} that have ended: its answer's "
            "x-request-id names it"
        )


def _kept(record: Record) -> _Kept:
    lease = record.lease
    if lease is None:
        return _Kept(record, None, None, None)
    asked = lease.asked
    if len(asked.matched) > REPLICAS or len(lease.choice.compared) > REPLICAS:
        return _Kept(record, *_trimmed(lease))
    return _Kept(record, asked, lease.choice, lease.terms)


def _trimmed(lease: Lease) -> tuple[base.Request, base.Decision, list[base.Terms] | None]:
    """What is kept of a decision in a large fleet: the best by score, and the warmest."""
    choice, matched = lease.choice, lease.asked.matched
    scores = choice.scores
    best = sorted(range(len(choice.compared)), key=lambda i: scores[i] if scores else i)[:REPLICAS]
    named = {choice.compared[i].name for i in best} | {choice.replica.name}
    warm = sorted(matched, key=lambda name: (name not in named, -matched[name]))[:REPLICAS]
    if matched:
        warm.append(max(matched, key=lambda name: matched[name]))
    asked = base.Request(lease.asked.tokens, {name: matched[name] for name in warm})
    trimmed = base.Decision(
        choice.replica,
        choice.by_session,
        [choice.compared[i] for i in best],
        [scores[i] for i in best] if scores else (),
    )
    return asked, trimmed, None if lease.terms is None else [lease.terms[i] for i in best]


def _outline(record: Record) -> dict[str, object]:
    r = record
    return {
        "id": r.id,
        "ended": r.ended,
        "endpoint": r.endpoint,
        "model": r.model,
        "group": r.group,
        "priority": r.priority,
        "policy": r.policy,
        "arm": r.arm,
        "decision": r.decision,
        "replica": r.replica,
        "status": r.status,
        "outcome": r.outcome,
        "reason": r.reason,
        "attempts": r.attempts,
        "stream": r.stream,
        "tokens": {
            "prompt": r.prompt_tokens,
            "available": r.available_tokens,
            "predicted_cached": r.routed_tokens,
            "reported_prompt": r.reported_prompt,
            "reported_cached": r.reported_cached,
            "output": r.output_tokens,
        },
        "ms": {
            "queue": _ms(r.queue),
            "overhead": _ms(r.overhead),
            "ttft": _ms(r.ttft),
            "tpot": _ms(r.tpot),
            "e2e": _ms(r.e2e),
        },
    }


def _whole(kept: _Kept) -> dict[str, object]:
    record, asked, choice, terms = kept
    outline = _outline(record)
    if asked is None or choice is None:
        return {**outline, "why": f"It was never sent to a replica: {record.reason or record.outcome}."}
    reasons = Reasons(
        policy=record.policy,
        unit=registry.unit(record.policy),
        tokens=asked.tokens,
        matched=dict(asked.matched),
        chosen=choice.replica.name,
        decision=record.decision,
        compared=[replica.name for replica in choice.compared],
        scores=choice.scores,
        terms=terms,
    )
    return {**outline, **reasons.told()}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
