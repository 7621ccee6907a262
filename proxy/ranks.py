"""Data-parallel ranks: one engine behind one address, in several parts that each have a cache of their own.

Each rank is a replica of its own, `name@rank`, and a request is steered to it by a header field. Pure.
Invariant: no configured name holds an `@`, so a rank's name is never another replica's.
"""

from typing import Final

FIELD: Final = b"X-data-parallel-rank"
"""Read by vLLM and SGLang alike."""
HEADER: Final = frozenset((FIELD.lower(),))


def names(engine: str, ranks: int) -> tuple[str, ...]:
    """The replicas that an engine is, by rank: itself where it has only one."""
    return (engine,) if ranks == 1 else tuple(f"{engine}@{rank}" for rank in range(ranks))


def lines(rank: int, ranks: int) -> bytes:
    """What a request to this rank carries beside its client's fields, as it is written."""
    return b"" if ranks == 1 else b"%b: %d\r\n" % (FIELD, rank)
