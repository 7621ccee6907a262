"""One minute's worth for all proxies together: leases of every caller's buckets, settled in rounds.

At a round a proxy gives back what is left of its leases (or says what it overdrew) and takes a part of what
is there then: all of it, a half, a third, as one, two or three proxies hold leases for that caller. So one
proxy may spend everything, and several leave something for the next. One script does this for all callers in
use; no request waits for it, and a failed round only means that the proxy refills its buckets itself until
the next one succeeds. What the script keeps runs out by itself once the bucket would be full, for a full
bucket and none are the same. Must never put a caller's name, address or key into Redis.
"""

import asyncio
import time
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from redis.exceptions import RedisError

from proxy.rates import MOST_CALLERS, QUIET, Lease, Offer, Rates
from proxy.shared.client import Link
from proxy.shared.layout import VERSION, escape
from proxy.shared.lease import ms
from proxy.shared.script import Script

ROUND: Final = 1.0
"""Seconds between rounds."""
GAP: Final = 0.05
"""Seconds between them at least, when one is welcome early."""
AT_ONCE: Final = 500
"""Buckets that one call settles; it takes some 5 us each, and Redis does nothing else meanwhile."""

SETTLE = Script("""
-- KEYS a bucket each; ARGV proxy, ms that its word counts, ms that a full bucket is kept,
-- then for each: most, what a minute refills, back, whether it stays
-- For each: share, left, proxies. A bucket is a hash: level, at, and each proxy with when its word runs out.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local origin, live, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local answers = {}
for i, key in ipairs(KEYS) do
  local most, back = tonumber(ARGV[3 * i + 1]), tonumber(ARGV[3 * i + 2])
  local stays = ARGV[3 * i + 3] == '1'
  local level, at, proxies = most, now, stays and 1 or 0
  local held = redis.call('HGETALL', key)
  for j = 1, #held, 2 do
    local name, value = held[j], tonumber(held[j + 1])
    if name == 'level' then level = value
    elseif name == 'at' then at = value
    elseif name ~= origin then
      if value > now then proxies = proxies + 1 else redis.call('HDEL', key, name) end
    end
  end
  level = math.min(most, level + math.max(0, now - at) * most / 60000)
  level = math.min(most, level + back)
  local share = 0
  if stays and level > 0 then share = level / proxies end
  level = level - share
  redis.call('HSET', key, 'level', string.format('%.3f', level), 'at', now)
  if stays then redis.call('HSET', key, origin, now + live) else redis.call('HDEL', key, origin) end
  redis.call('PEXPIRE', key, math.ceil((most - level) * 60000 / most) + keep)
  for _, value in ipairs({share, level, proxies}) do
    answers[#answers + 1] = string.format('%.3f', value)
  end
end
return answers
""")


class Leases:
    """The leases of one proxy."""

    def __init__(self, link: Link, rates: Rates, *, namespace: str, secret: bytes, origin: str) -> None:
        """`origin` names this proxy among the others; `secret` hides whose a bucket is."""
        self.rounds = self.failures = 0
        self._link = link
        self._rates = rates
        self._origin = f"by:{origin}"
        self._wake = asyncio.Event()
        tag = f"{{{escape(namespace)}:v{VERSION}}}:rate:"
        seal = blake2b(secret).digest()

        @lru_cache(maxsize=2 * MOST_CALLERS)
        def name(caller: str, kind: str) -> str:
            whose = f"{kind} {caller}".encode(errors="surrogatepass")
            return tag + blake2b(whose, key=seal, digest_size=12, person=b"rate").hexdigest()

        self._name = name
        rates.hungry = self._wake.set

    async def run(self) -> None:
        """Settle for ever."""
        while True:
            try:
                await self.round()
            except RedisError:
                self.failures += 1
                self._rates.alone(time.monotonic())
            self._rates.forget(time.monotonic())
            await asyncio.sleep(GAP)
            try:
                async with asyncio.timeout(ROUND):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if not self._link.up:
                self._rates.alone(time.monotonic())
                await self._link.wait_up()

    async def round(self) -> None:
        """Settle once. RedisError if that failed, and nobody knows how far it got."""
        self._wake.clear()
        await self._settle(list(self._rates.offers(time.monotonic())))
        self._rates.leased = self._link.up
        self.rounds += 1

    async def close(self) -> None:
        """Give everything back."""
        offers = [offer._replace(stays=False) for offer in self._rates.offers(time.monotonic())]
        try:
            await self._settle(offers)
        except RedisError:
            self.failures += 1  # it counts for nobody once its word has run out

    async def _settle(self, offers: list[Offer]) -> None:
        for at in range(0, len(offers), AT_ONCE):
            await self._call(offers[at : at + AT_ONCE])

    async def _call(self, offers: list[Offer]) -> None:
        keys = [self._name(offer.caller, offer.kind) for offer in offers]
        args: list[str | int | float] = [self._origin, ms(QUIET), ms(QUIET)]
        for offer in offers:
            args += (offer.per_minute, f"{offer.back:.3f}", int(offer.stays))
        answers = await self._link.script(SETTLE, keys, args)
        now = time.monotonic()
        for offer, share, left, proxies in zip(
            offers, answers[::3], answers[1::3], answers[2::3], strict=True
        ):
            self._rates.settle(offer, Lease(float(share), float(left), int(float(proxies))), now)
