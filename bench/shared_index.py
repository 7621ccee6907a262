"""What Redis holds of an index that proxies share, read past them: who follows which replica, and how much.

Only for comparing with what proxies and replicas say. It knows the keys' names and nothing of their content,
and writes nothing.
"""

from redis.asyncio import Redis

from bench.client import until


class Shared:
    """One namespace."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis = redis
        self._pattern = f"{{{namespace}:v*}}:"

    async def claims(self) -> dict[str, bytes | str]:
        """Replica to the claim of whoever follows its events; without those that nobody follows."""
        found: dict[str, bytes | str] = {}
        async for key in self._redis.scan_iter(match=f"{self._pattern}own:*", count=1000):
            token = await self._redis.get(key)
            if token is not None:
                found[_parts(key)[1]] = token
        return found

    async def claimed(self, replicas: int, timeout: float = 30.0) -> None:
        """Wait until so many replicas are followed."""

        async def all_are() -> bool:
            return len(await self.claims()) >= replicas

        await until(all_are, timeout=timeout, what=f"not all of {replicas} replicas were followed")

    async def blocks(self) -> dict[str, int]:
        """Replica to the blocks it holds, over all its epochs: an old one left behind would show."""
        found: dict[str, int] = {}
        async for key in self._redis.scan_iter(match=f"{self._pattern}r:*", count=1000):
            replica = _parts(key)[1]
            found[replica] = found.get(replica, 0) + int(await self._redis.scard(key))
        return found


def _parts(key: bytes) -> list[str]:
    """What follows the hash tag of a key, taken apart."""
    return key.decode().rpartition("}:")[2].split(":")
