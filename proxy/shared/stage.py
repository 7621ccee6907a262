"""One stage for all proxies that try the same canary: what one of them decides, the others take over.

One key holds it, with a number that grows with each change; who changes it must have seen the last one. Where
two change it at once, the first is heard, but for a rollback: that is told again. Each proxy judges what it
serves itself, so any of them may end the canary for all. It outlives the proxies by a day: one that starts
anew goes on where the others are, and does not try again what was rolled back.

While Redis is away each goes on by itself.
"""

from hashlib import blake2b
from typing import Final

import msgspec
from redis.exceptions import RedisError

from proxy.canary import Canary, Phase
from proxy.shared.client import Link
from proxy.shared.layout import VERSION, escape
from proxy.shared.lease import ms
from proxy.shared.script import Script

KEEP: Final = 86_400.0
"""Seconds after the last proxy has looked."""

TELL = Script("""
-- KEYS the stage; ARGV the number that was seen last, what it is now (empty: no change), ms to keep it
-- The number and the stage that hold now.
local number = tonumber(redis.call('HGET', KEYS[1], 'number') or '0')
local stage = redis.call('HGET', KEYS[1], 'stage')
if ARGV[2] ~= '' and tonumber(ARGV[1]) == number then
  number, stage = number + 1, ARGV[2]
  redis.call('HSET', KEYS[1], 'number', number, 'stage', stage)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {tostring(number), stage or ''}
""")


class _Stage(msgspec.Struct):
    percent: float
    phase: Phase
    reason: str
    why: str


class SharedStage:
    """One proxy's part in it."""

    def __init__(self, link: Link, *, namespace: str) -> None:
        self.failures = 0
        self._link = link
        self._tag = f"{{{escape(namespace)}:v{VERSION}}}:canary:"
        self._of: Canary | None = None
        self._key = ""
        self._number = 0
        self._told: _Stage | None = None

    async def step(self, canary: Canary | None, what: str, now: float) -> None:
        """Tell what has changed here, or hear what has changed elsewhere. `what`: all that is tried."""
        if canary is None:
            self._of = None
            return
        if canary is not self._of:
            name = blake2b(what.encode(), digest_size=12, person=b"canary").hexdigest()
            self._of, self._key, self._number = canary, self._tag + name, 0
            self._told = _stage(canary)  # where it begins is no news to those who are further
        mine = _stage(canary)
        news = b"" if mine == self._told else msgspec.json.encode(mine)
        try:
            number, held = await self._link.script(TELL, [self._key], [self._number, news, ms(KEEP)])
        except RedisError:
            self.failures += 1
            return
        if int(number) == self._number:
            if not self._number and mine.phase is not Phase.BASELINE:
                self._told = None  # nobody has said anything yet: say it next time
            return
        self._number = int(number)
        if not held:  # Redis has lost it
            self._told = None
            return
        theirs = msgspec.json.decode(held, type=_Stage)
        if theirs == mine:
            self._told = mine
        elif news and mine.phase is Phase.ROLLED_BACK is not theirs.phase:
            pass  # said again, now that the last word was heard
        else:
            self._told = theirs
            canary.adopt(theirs.percent, theirs.phase, theirs.reason, theirs.why, now)


def _stage(canary: Canary) -> _Stage:
    return _Stage(canary.percent, canary.phase, canary.reason, canary.why)
