"""Who calls: known by an API key, or, where there are no keys, by address.

A key is known by its SHA-256, found by the first bytes of it and compared as a whole in constant time. What
takes longer or shorter depends on the digest of what was shown, which nobody can steer towards a digest of
which they do not have the key; so no timing tells anything of a key. Must never keep, log or forward one:
with keys, the client's credential ends here, and replicas get the proxy's own or none.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Final, Protocol

from pydantic import SecretStr

from proxy import keys_file
from proxy.errors import InvalidKey
from proxy.keys_file import CLASSES, SHOWN, USUAL, Caller, Table
from proxy.watched import Watched

LONGEST: Final = 1024
"""Bytes of a key; a longer one is nobody's."""
ADDRESSES: Final = 4096
"""Callers by address that are kept ready-made."""
CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key"))
"""Fields in which clients show a key, OpenAI's and Anthropic's, by lower-case name."""

__all__ = ["Caller", "Callers", "upstream_credentials"]


class Callers:
    """Everybody who may call."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        classes: Sequence[str] = CLASSES,
        usual: str = USUAL,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
    ) -> None:
        """`classes` are the priorities, the highest first. Raises ValueError if the file cannot be used.

        `usual` is the highest class of a key that says nothing of it; likewise the rates.
        """
        self.keyed = path is not None
        """Whether a key is needed."""
        self._keys: Table = {}
        self._addresses: dict[str | None, Caller] = {}
        self._of_address = partial(
            Caller,
            most=classes[0],
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
        )
        self._file: Watched[Table] | None = None
        if path is not None:
            read = partial(
                keys_file.read,
                path,
                classes=classes,
                usual=usual,
                requests_per_minute=requests_per_minute,
                tokens_per_minute=tokens_per_minute,
            )
            self._file = Watched("api_keys_file", [path], read, self._take)

    @property
    def fault(self) -> str | None:
        """Why the file is not what is in force; None if it is."""
        return None if self._file is None else self._file.fault

    def identify(self, noted: Mapping[bytes, bytes], address: str | None) -> Caller:
        """Whose request this is. Raises InvalidKey.

        `noted` are its fields by lower-case name, as `forwardable` gives them. A bearer token counts before
        an x-api-key.
        """
        if not self.keyed:
            return self._addresses.get(address) or self._remember(address)
        shown = noted.get(b"authorization")
        if shown is not None and shown[:7].lower() == b"bearer ":
            key = shown[7:].strip()
        else:
            key = noted.get(b"x-api-key", b"")
        if not key:
            raise InvalidKey("an API key is needed: send the header Authorization: Bearer <key>")
        if len(key) <= LONGEST:
            digest = sha256(key).digest()
            found = self._keys.get(digest[:SHOWN])
            if found is not None and compare_digest(found[0], digest):
                return found[1]
        raise InvalidKey("this API key is not known here, or no longer")

    async def look(self) -> None:
        """Read the keys again if their file has changed; to be called every few seconds."""
        if self._file is not None:
            await self._file.look()

    def _take(self, table: Table) -> None:
        self._keys = table

    def _remember(self, address: str | None) -> Caller:
        if len(self._addresses) >= ADDRESSES:
            self._addresses.clear()
        caller = self._addresses[address] = self._of_address(address or "unknown")
        return caller


class Configured(Protocol):
    """What decides which credential replicas get."""

    @property
    def api_keys_file(self) -> Path | None:
        """Where there is one, clients' credentials are for the proxy alone."""

    @property
    def upstream_api_key(self) -> SecretStr | None:
        """The proxy's own credential."""

    @property
    def replace_auth(self) -> bool:
        """Whether it replaces the client's."""


def upstream_credentials(settings: Configured) -> tuple[frozenset[bytes], list[tuple[bytes, bytes]]]:
    """Which of the client's fields replicas do not get, by lower-case name, and which they get instead."""
    if settings.api_keys_file is None and not settings.replace_auth:
        return frozenset(), []
    key = settings.upstream_api_key
    own = [] if key is None else [(b"Authorization", b"Bearer " + key.get_secret_value().encode())]
    return CREDENTIALS, own
