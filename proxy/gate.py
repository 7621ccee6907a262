"""Who comes in, and on what terms: the caller, what it may use a minute, and the salt of its cache.

Asked once for a request when its head is there, once when its prompt has been counted, and told once when it
has ended. Nothing here waits. Where nothing of this is configured, everybody comes in for next to nothing.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from proxy.callers import Caller, Callers, upstream_credentials
from proxy.config import Settings
from proxy.errors import ModelNotFound
from proxy.forwarded import TrustedProxies
from proxy.rates import Rates
from proxy.record import Record
from proxy.salts import Salts

FAILED: Final = 500
"""An answer from here on costs its caller no tokens."""


class Gate:
    """The one entrance of a proxy."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError if the file of keys cannot be used any more."""
        limits, priority = settings.limits, settings.priority
        self.callers = Callers(
            settings.api_keys_file,
            classes=priority.classes,
            usual=priority.default,
            requests_per_minute=limits.requests_per_minute,
            tokens_per_minute=limits.tokens_per_minute,
        )
        self.rates = Rates()
        self.salts = Salts(settings.secret.get_secret_value().encode()) if settings.salt_per_key else None
        """None: callers share caches as engines do."""
        self.drop, self.credentials = upstream_credentials(settings)
        """Fields that replicas do not get, by lower-case name, and those that they get instead."""
        self._proxies = TrustedProxies(settings.trusted_proxies)
        limited = limits.requests_per_minute is not None or limits.tokens_per_minute is not None
        self._looks = bool(settings.trusted_proxies) or (limited and not self.callers.keyed)
        self.anybody = Caller("", most=priority.classes[0])
        """Who everybody is where `is_open`."""
        self.is_open = not self.callers.keyed and not self._looks
        """Whether nothing depends on who calls."""

    def peer(self, transport: asyncio.Transport | None) -> str | None:
        """The address that a request came from; None also where nothing depends on it."""
        if not self._looks or transport is None:
            return None
        peer = transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else None

    def trusts(self, peer: str | None) -> bool:
        """Whether this peer's word counts for where a request came from."""
        return self._proxies.trusts(peer)

    def enter(self, peer: str | None, noted: Mapping[bytes, bytes], now: float) -> Caller:
        """Whose request this is, counted as one. Raises InvalidKey, RateLimited.

        The name of somebody without a key is their address, or empty where nothing here depends on it.
        """
        if self.callers.keyed:
            caller = self.callers.identify(noted, None)
        elif self._looks:
            caller = self.callers.identify(noted, self._proxies.caller(peer, noted.get(b"x-forwarded-for")))
        else:
            return self.anybody
        self.rates.request(caller, now)
        return caller

    @staticmethod
    def allow(caller: Caller, *names: str | None) -> None:
        """Raise ModelNotFound unless a caller may use all of these models, as far as they are named."""
        allowed = caller.models
        if allowed is not None and any(name is not None and name not in allowed for name in names):
            raise ModelNotFound("this model is not served here, or not for this key", param="model")

    def leave(self, caller: Caller, record: Record, charged: float, now: float) -> None:
        """Charge the answer; `charged` is what the prompt was counted as when it was let in."""
        if caller.tokens_per_minute is None:
            return
        used = 0.0
        if record.attempts and record.status < FAILED:
            prompt = charged if record.reported_prompt is None else record.reported_prompt
            used = prompt + (record.output_tokens or 0)
        self.rates.spent(caller, used - charged, now)

    async def look(self) -> None:
        """Read the keys again if their file has changed; to be called every few seconds."""
        await self.callers.look()
