"""One worker's part of what is set for the proxy as a whole. Pure.

What is counted in common (rates, what is in flight at a replica) needs no division; what each keeps for
itself is divided, rounded up.
"""

from proxy.admission import QUEUE
from proxy.config import Settings


def share(settings: Settings, number: int) -> Settings:
    """The settings of worker `number`, from 0."""
    workers = settings.workers
    priority, limits, breaks = settings.priority, settings.limits, settings.breaks
    queue = {name: -(-priority.queue.get(name, QUEUE) // workers) for name in priority.classes}
    record = settings.record
    if record is not None:
        record = record.with_stem(f"{record.stem}.w{number}")
    return settings.model_copy(
        update={
            "cache_mb": -(-settings.cache_mb // workers),
            "breaks": breaks.model_copy(update={"per_second": breaks.per_second / workers}),
            "record": record,
            "record_mb": -(-settings.record_mb // workers),
            "priority": priority.model_copy(update={"queue": queue}),
            "limits": limits.model_copy(update={"pool_size": -(-limits.pool_size // workers)}),
        }
    )
