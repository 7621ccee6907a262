"""What several policies share: hashing that proxies agree on, ties, and bounded samples of a large fleet.

Pure functions: the same arguments and the same generator state give the same answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from xxhash import xxh3_64_intdigest

from policies.base import Replica

_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: its multiples spread evenly over the 64-bit range


def hash_text(text: str) -> int:
    """A stable 64-bit hash; lone surrogates, which JSON can carry, hash too."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def rendezvous(key: int, replica: Replica) -> int:
    """The replica's weight for a key: the highest one owns it, and only its keys move when it leaves."""
    return xxh3_64_intdigest(replica.name.encode(), key)


def owner(key: int, replicas: Iterable[Replica]) -> Replica:
    """The replica with the highest weight for a key, whatever the order of `replicas`."""
    return max(replicas, key=lambda replica: rendezvous(key, replica))


def load(replica: Replica) -> tuple[int, int]:
    """Sequences in flight, then prompt tokens still to prefill."""
    return replica.in_flight, replica.queued_tokens


def least_loaded(replicas: Sequence[Replica], rng: Random) -> Replica:
    """The replica with the least `load`; equal ones share evenly by chance."""
    least = min(map(load, replicas))
    return rng.choice([replica for replica in replicas if load(replica) == least])


def shortlist(
    replicas: Sequence[Replica], matched: Mapping[str, int], key: int, count: int, rng: Random
) -> list[Replica]:
    """About `count` replicas worth comparing in a larger fleet, in one cheap pass over it.

    Up to half of them hold at least half of the longest prefix held anywhere, the longest itself included.
    The rest is a sample, part of it drawn by `key`, so that a cold prefix meets the same replicas again, from
    any proxy that lists the fleet in this order.
    """
    total, room = len(replicas), max(1, count // 2)
    holders = [replica for replica in replicas if replica.name in matched]
    if len(holders) > room:
        longest = max(holders, key=lambda replica: matched[replica.name])
        half = matched[longest.name] / 2
        holders = [replica for replica in holders if matched[replica.name] >= half]
        holders = [longest, *rng.sample(holders, min(room, len(holders)) - 1)]
    stable = (count - room) // 2
    places = [((key + i * _GOLDEN) % 2**64 * total) >> 64 for i in range(stable)]
    places += rng.sample(range(total), count - room - stable)
    chosen = {replica.name: replica for replica in holders}
    for place in places:
        chosen.setdefault(replicas[place].name, replicas[place])
    return list(chosen.values())
