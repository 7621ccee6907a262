"""A cache of its own for each API key: a salt that only this proxy can make, put into every prompt it sends.

Keying apart in the router would not do: an engine shares by content whatever it is asked. So the engine is
told as well, in the field that it has for that. The rule: engine and router see one salt, made of the secret,
the key's name and the salt that the client sent, if any. So a client can divide its own cache further, and
reach nobody else's by whatever it sends; a key that is replaced under its name keeps its cache.

Where an engine has no such field for an endpoint, the request is refused: it would be shared silently. What
is only passed on by load is not salted. Pure.

Fields, as vLLM 0.32 and SGLang 0.5 have them: vLLM takes `cache_salt` (up to 128 characters) for chats,
completions and responses, not for messages, embeddings and reranking. SGLang takes it for chats and
completions, and joins a client's `extra_key` to its end; what `/generate` has is `extra_key` itself.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from proxy.errors import CannotIsolate
from proxy.prompt.parse import Endpoint, Parsed
from proxy.prompt.splice import splice_last

_FIELDS: Final = {
    "vllm": {
        Endpoint.CHAT: "cache_salt",
        Endpoint.COMPLETIONS: "cache_salt",
        Endpoint.RESPONSES: "cache_salt",
    },
    "sglang": {
        Endpoint.CHAT: "cache_salt",
        Endpoint.COMPLETIONS: "cache_salt",
        Endpoint.GENERATE: "extra_key",
    },
}


@dataclass(slots=True, frozen=True)
class Salt:
    """The salt of one request."""

    endpoint: Endpoint
    value: str

    def into(self, body: bytes, engine: str) -> bytes:
        """The body for an engine of this kind, with the salt in place of the client's own.

        Raises CannotIsolate where the engine could not be told, BadRequest for what is no JSON in UTF-8.
        """
        field = _FIELDS.get(engine, {}).get(self.endpoint)
        if field is None:
            raise CannotIsolate(
                f"each API key has a cache of its own here, and {engine} cannot keep one at "
                f"{self.endpoint.value}; WARMROUTE_SALT_PER_KEY=false would send it to the shared one"
            )
        return splice_last(body, field, self.value)


class Salts:
    """Makes the salts of all keys."""

    def __init__(self, secret: bytes) -> None:
        self._seal = blake2b(secret).digest()

    def apply(self, parsed: Parsed, caller: str) -> Salt:
        """Key a prompt under its caller's salt from here on; the salt is for the engine."""
        if parsed.endpoint is Endpoint.GENERATE:
            value = parsed.extra_key = self._of(caller, parsed.extra_key)
        else:
            value = parsed.cache_salt = self._of(caller, parsed.cache_salt)
        return Salt(parsed.endpoint, value)

    def _of(self, caller: str, given: str | None) -> str:
        """128 bits, in hex; all are equally long, so what an engine joins to one keeps them apart."""
        digest = blake2b(key=self._seal, digest_size=16, person=b"cache salt")
        name = caller.encode()
        digest.update(struct.pack("<I", len(name)) + name)
        if given is not None:
            digest.update(b"+" + given.encode())
        return digest.hexdigest()
