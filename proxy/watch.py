"""One replica that publishes, or should: claims the right to follow it, and follows it while that holds.

Whoever does not get the right tries again every few seconds, so that another proxy goes on where one ends.
Invariants: at most one following at a time; what a change ends is closed before the call that tells of the
change returns, so that nothing that was on its way is applied.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from proxy.description import Description, FeedSpec
from proxy.following import Following
from proxy.index.feed import Unreachable
from proxy.logs import logger
from proxy.model_pool import ModelPool
from proxy.prompt.keyer import Keyer
from proxy.shared.base import Claim, Pool
from proxy.standing import Surroundings

CLAIM_SECONDS = 2.0
"""Between two tries to follow a replica that another proxy follows."""
LOADING_SECONDS = 0.1
"""Between two looks at whether a model's tokenizer is there."""
TICK_SECONDS = 1.0


@dataclass(slots=True, frozen=True)
class Home:
    """Where a replica belongs."""

    model: ModelPool
    shared: Pool


class Watch:
    """One replica that publishes, or should."""

    def __init__(
        self,
        name: str,
        around: Surroundings,
        home: Callable[[str], Home | None],
        claim_seconds: float,
    ) -> None:
        self.following: Following | None = None
        self.ended = asyncio.Event()
        self._name = name
        self._around = around
        self._home = home
        self._claim_seconds = claim_seconds
        self._description: Description | None = None
        """None while the replica is another process than the one described."""
        self._changed = asyncio.Event()
        self._stopped = False
        self._block_size = 1
        self._said = ""
        self._unusable: tuple[Description, Keyer] | None = None
        """For whom it was found that its events cannot be used."""

    def described(self, description: Description | None) -> None:
        """The replica is another process (None), or has said what it is."""
        known, self._description = self._description, description
        if self.following is not None and (
            known is None or description is None or _differ(known, description)
        ):
            self.following.close()
        self._changed.set()

    def stop(self) -> None:
        """End for good."""
        self._stopped = True
        self.described(None)

    def served(self, tokens: int) -> None:
        """It has answered, and computed so many tokens."""
        if self.following is not None and not self.following.closed and tokens >= self._block_size:
            self.following.served()

    async def run(self) -> None:
        """Follow whenever this proxy may."""
        try:
            while not self._stopped:
                pause = await self._try()
                await self._wait(0 if self._stopped else pause)
        finally:
            self.ended.set()

    async def _try(self) -> float:
        """Follow until it is over; seconds until the next try."""
        home, description = self._home(self._name), self._description
        if home is None or description is None:
            return LOADING_SECONDS
        if (keyer := home.model.keyer) is None:
            return LOADING_SECONDS
        if description.feed is None or self._unusable == (description, keyer):
            return self._claim_seconds
        if (why := _unfit(home, description.feed)) is not None:
            self._say(f"its KV events cannot be used, and its cache is guessed from what was routed: {why}")
            return self._claim_seconds
        claim = await home.shared.claim(self._name)
        if claim is None:
            return self._claim_seconds
        try:
            await self._follow(home, keyer, claim)
        except Unreachable as error:
            self._say(f"its KV events cannot be followed, correct its kv_events in the settings: {error}")
            return self._claim_seconds
        finally:
            if self.following is not None:
                self.following.close()
                self.following = None
            lost = claim.lost.is_set()
            await home.shared.release(claim)
        return self._claim_seconds if lost else LOADING_SECONDS  # else the replica is another one now

    async def _follow(self, home: Home, keyer: Keyer, claim: Claim) -> None:
        """Follow one process after the other, while the claim holds and the replica stays what it is."""
        resume = await home.shared.resume(claim)
        while not claim.lost.is_set() and self._home(self._name) == home and home.model.keyer is keyer:
            description = self._description
            if description is None:
                if self._stopped:
                    return
                await self._wait()
                continue
            if (spec := description.feed) is None:
                return
            self._block_size = spec.block_size or description.block_size or keyer.block_size
            following = self.following = self._new(home, keyer, claim, description, spec)
            alike = self._block_size == keyer.block_size  # handles of other sizes are not kept for others
            await following.open(resume if alike else None)
            resume = None
            while not following.closed:
                await self._wait()
                following.tick()
                if self._home(self._name) != home or home.model.keyer is not keyer:
                    following.close()
            if following.misfit is not None:
                self._unusable = (description, keyer)
                self._say(
                    f"its KV events are of blocks of {following.misfit} tokens, no multiple of the "
                    f"{keyer.block_size} of its model here, and its cache is guessed from what was routed: "
                    "give all replicas of a model one block size, and WARMROUTE_BLOCK_SIZE that"
                )
                return
        if self._home(self._name) != home and not self._stopped:  # what bears the name now is something else
            home.shared.forgotten(self._name)

    def _new(
        self, home: Home, keyer: Keyer, claim: Claim, description: Description, spec: FeedSpec
    ) -> Following:
        started = description.started_at
        return Following(
            self._around,
            self._name,
            spec,
            pool=home.shared,
            claim=claim,
            epoch=f"?{token_hex(8)}" if started is None else repr(started),
            lasting=started is not None,
            root=keyer.chain_start,
            block_size=keyer.block_size,
            copies="counted" if description.engine == "vllm" else "unknown",
        )

    async def _wait(self, seconds: float = TICK_SECONDS) -> None:
        """Until something has changed, or a while has passed."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def _say(self, what: str) -> None:
        """Once, not every few seconds."""
        if what != self._said:
            self._said = what
            logger.warning("replica %s: %s", self._name, what)


def _unfit(home: Home, feed: FeedSpec) -> str | None:
    """Why a feed cannot be used at all; None if it can."""
    if home.model.mode == "bytes":
        return "events tell of tokens, and the prompts of its model are not tokenised"
    if feed.ranks > 1:
        return f"a request may go to any of the {feed.ranks} data-parallel ranks behind its one address"
    return None


def _differ(one: Description, other: Description) -> bool:
    return (one.started_at, one.feed, one.models) != (other.started_at, other.feed, other.models)
