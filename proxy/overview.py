"""What an operator sees of the proxy at one moment: the fleet, the queue, and what has been counted.

Plain values, made only when somebody asks, from the numbers that /metrics is made of: both say the same.
Counters run since the start; differences and ratios are the reader's. Never holds state, never waits, and
never tells anything of a prompt.
"""

from collections.abc import Callable, Iterable
from math import isinf
from time import time

from proxy.admission import Admission
from proxy.fleet import Fleet
from proxy.index.base import PrefixIndex
from proxy.ledger import Ledger
from proxy.metrics import TTFT_BUCKETS, Metrics
from proxy.pools import Pools
from proxy.replica import Replica
from proxy.roster import Roster
from proxy.router import Router

Row = dict[str, object]


class Overview:
    """Reads what others own."""

    def __init__(
        self,
        router: Router,
        fleet: Fleet,
        roster: Roster,
        index: PrefixIndex,
        pools: Pools,
        metrics: Metrics,
        admission: Admission,
        ledger: Ledger,
        *,
        parts: Callable[[], dict[str, object]],
    ) -> None:
        """`router` is the one that most requests get; `parts` tells how Redis and discovery fare."""
        self._router = router
        self._fleet = fleet
        self._roster = roster
        self._index = index
        self._pools = pools
        self._metrics = metrics
        self._admission = admission
        self._ledger = ledger
        self._parts = parts

    def frame(self) -> Row:
        """Everything, with every request that has ended. Seconds, tokens, counts since the start."""
        self._ledger.flush()
        return {
            "at": time(),
            "policy": self._router.name,
            "models": self._pools.state(),
            "parts": self._parts(),
            "replicas": self.replicas(),
            "queue": self._queue(),
            "requests": self._requests(),
            "tokens": self._tokens(),
            "ttft": self._ttft(),
            "decisions": self._decisions(),
        }

    def replicas(self) -> list[Row]:
        """Each replica, and those that have left and still answer something."""
        leaving: list[Row] = [
            {"name": one.name, "url": one.url, "state": "leaving", "in_flight": one.load.in_flight}
            for one in (each.replica for each in self._roster.leaving)
            if one.load.in_flight
        ]
        return [self.replica(each) for each in self._fleet.replicas.values()] + leaving

    def replica(self, replica: Replica) -> Row:
        """One replica of the fleet: where it came from, how it is, what it holds and has to do."""
        view, description, member = replica.view, replica.description, self._roster.member(replica.name)
        return {
            "name": replica.name,
            "url": replica.url,
            "source": member.source,
            **({"uid": member.found.uid} if member.found.uid else {}),
            "state": ", ".join(sorted(replica.held)) or ("up" if replica.up else "down"),
            "up": replica.up,
            "suspect": replica.caution.suspect,
            "breaker": replica.breaker.state.name.lower(),
            "soft_limit": None if isinf(view.soft_limit) else round(view.soft_limit, 1),
            "engine": description.engine,
            "models": sorted(description.models),
            "block_size": description.block_size,
            "cache_blocks": description.cache_blocks,
            "index_mode": self._pools.index_mode(replica),
            "index_blocks": self._index.blocks(replica.name),
            "index_capacity": self._index.capacity(replica.name),
            "in_flight": view.in_flight,
            "running": view.running,
            "queued_tokens": view.queued_tokens,
            "limit": None if isinf(view.limit) else round(view.limit, 1),
            "prefill_tokens_per_second": round(view.prefill_rate, 1),
            "base_ttft_seconds": round(view.base_ttft, 4),
            "kv_usage": view.kv_usage,
            "reports_cached_tokens": replica.reports_cached,
        }

    def _queue(self) -> Row:
        shed: dict[str, dict[str, int]] = {}
        for (priority, reason), count in self._admission.shed.items():
            shed.setdefault(priority, {})[reason] = count
        return {"waiting": self._admission.queued(), "shed": shed}

    def _requests(self) -> list[Row]:
        """Requests answered, over models and endpoints."""
        return _rows(
            ("group", "priority", "code"),
            _summed(
                ((group, priority, code), count)
                for (_, _, code, priority, group), count in self._metrics.requests.values.items()
            ),
            "count",
        )

    def _tokens(self) -> list[Row]:
        """Prompt tokens by group and arm: all, on the best replica, on the chosen one, reported cached.

        `reported` is out of `reported_prompt`, the prompts of exactly the replies that reported.
        """
        metrics, rows = self._metrics, dict[tuple[str, str], dict[str, float]]()

        def add(arm: str, group: str, what: str, count: float) -> None:
            row = rows.get((arm, group))
            if row is None:
                row = rows[arm, group] = dict.fromkeys(_STAGES, 0)
            row[what] += count

        for (_, _, arm, group, stage), count in metrics.prefix.values.items():
            add(arm, group, stage, count)
        for (_, _, arm, group), count in metrics.cached.values.items():
            add(arm, group, "reported", count)
        for (_, _, arm, group), count in metrics.cached_prompt.values.items():
            add(arm, group, "reported_prompt", count)
        return [{"arm": arm, "group": group, **row} for (arm, group), row in rows.items()]

    def _ttft(self) -> Row:
        """Times to first token by group and class: how many fell into each bucket, the last without bound."""
        total: dict[tuple[str, str], list[int]] = {}
        for (_, _, _, group, priority, _), series in self._metrics.ttft.series.items():
            before, counts = total.get((group, priority)), series.counts
            if before is not None:
                counts = [a + b for a, b in zip(before, counts, strict=True)]
            total[group, priority] = counts
        rows = [
            {"group": group, "priority": priority, "counts": counts}
            for (group, priority), counts in sorted(total.items())
        ]
        return {"bounds": TTFT_BUCKETS, "series": rows}

    def _decisions(self) -> list[Row]:
        return _rows(
            ("decision", "replica"),
            _summed(
                ((decision, replica), count)
                for (_, decision, replica), count in self._metrics.decisions.values.items()
            ),
            "count",
        )


_STAGES = ("prompt", "available", "routed", "reported", "reported_prompt")


def _summed(counts: Iterable[tuple[tuple[str, ...], float]]) -> dict[tuple[str, ...], float]:
    total: dict[tuple[str, ...], float] = {}
    for labels, count in counts:
        total[labels] = total.get(labels, 0) + count
    return total


def _rows(names: tuple[str, ...], counts: dict[tuple[str, ...], float], value: str) -> list[Row]:
    return [{**dict(zip(names, labels, strict=True)), value: count} for labels, count in counts.items()]
