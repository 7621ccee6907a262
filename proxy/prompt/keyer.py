"""A request's prompt to block keys: cheap for what is warm, and the rest in a thread.

`Keyer.begin` renders the prompt and walks the trie; `Keying.run` tokenizes and hashes what is new. Nothing
here raises for what a client sent: a prompt that cannot be keyed has no keys, and is routed by load alone.

Exact mode keys token ids equal to the engine's. Bytes mode, where there is no tokenizer, keys canonical bytes
in blocks of four bytes a token, and estimates tokens by a ratio learned from what engines report. So does
exact mode for chats that have no template to be trusted.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Literal

from xxhash import xxh3_64_intdigest

from proxy.prompt import canonical
from proxy.prompt.blocks import seed
from proxy.prompt.cuts import NO_CHUNKS, WHOLE, Chunk
from proxy.prompt.keying import Keying, Plan
from proxy.prompt.media import Media
from proxy.prompt.parse import Parsed
from proxy.prompt.prompts import Prompt, Text, TokenIds, Unreadable
from proxy.prompt.segments import Node, Trie
from proxy.prompt.template import Template
from proxy.prompt.tokenizer import Tokenizer

AFFINITY: Final = 2048
"""Prompts that share so many characters share their affinity: some 500 tokens, past a template's preamble."""
SLICE: Final = 4096
"""Bytes of what is not tokenized that are hashed, kept and found again together."""
ROOTS: Final = 4096
"""Sets of adapter and salts whose chains' beginnings are kept."""
FIRST_RATIO: Final = 0.25
"""Tokens a byte until engines report: the usual four bytes a token."""
RATIOS: Final = (0.02, 1.0)
STEP: Final = 0.05
"""Weight of one report in the learned ratio."""


class Keyer:
    """Makes the keys of one model pool. One event loop may call `begin`; keyings may run in threads."""

    def __init__(
        self,
        *,
        secret: bytes,
        model: str,
        tokenizer: Tokenizer | None = None,
        template: Template | None = None,
        block_size: int = 16,
        trie_bytes: int = 256 << 20,
    ) -> None:
        self.block_size = block_size
        self.mode: Literal["exact", "bytes"] = "bytes" if tokenizer is None else "exact"
        self.fingerprint = b"bytes"
        if tokenizer is not None:
            identity = tokenizer.fingerprint + (b"" if template is None else template.fingerprint)
            self.fingerprint = blake2b(identity, digest_size=16).digest()
        self.ratio = FIRST_RATIO
        """Tokens a byte of canonical text."""
        self.trie = Trie(block_size, trie_bytes)
        self._roots: dict[tuple[str | bytes | None, ...], Node] = {}
        self._secret = secret
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self._media = Media(
            int.from_bytes(blake2b(secret, digest_size=8, person=b"media").digest(), "little")
        )

    def begin(self, parsed: Parsed) -> "Keying":
        """Render a prompt and look up what is warm."""
        try:
            plan = None if parsed.prompt is None else self._plan(parsed, parsed.prompt)
        except Unreadable:
            plan = None
        return Keying(self.trie, plan)

    def extend(self, keying: "Keying", text: str) -> "array[int]":
        """Return the keys of a prompt and the answer to it: engines keep the answer's blocks too.

        Tokens of the answer begin where the prompt's end, as the engine's do. A prompt that was not keyed to
        its end has the keys that it has.
        """
        return keying.followed_by(text)

    def chain_start(self, lora: str | None, cache_salt: str | None) -> int:
        """Return key[-1] of prompts of known tokens: where keys of an engine's own blocks begin."""
        return self._start("tokens", lora, cache_salt, None)

    def learn_ratio(self, characters: int, reported_prompt_tokens: int) -> None:
        """Learn from the tokens an engine reported for a prompt of `Keying.characters`."""
        if characters > 0 and reported_prompt_tokens > 0:
            low, high = RATIOS
            found = min(max(reported_prompt_tokens / characters, low), high)
            self.ratio += STEP * (found - self.ratio)

    def token_ids(self, parsed: Parsed) -> "array[int] | None":
        """Return a prompt's token ids, array('I'), to compare with an engine's; None where they are guesses.

        Goes the way of `begin` and `run` but for the trie.
        """
        try:
            plan = None if parsed.prompt is None else self._plan(parsed, parsed.prompt)
        except Unreadable:
            return None
        if plan is None or plan.estimate is not None:
            return None
        known = b"".join(map(plan.encode, plan.chunks)) if plan.whole is None else plan.whole
        return array("I", plan.root.tail + known + plan.suffix)

    def _plan(self, parsed: Parsed, prompt: Prompt) -> "Plan":
        if isinstance(prompt, TokenIds):
            # Equal ids are equal blocks, whichever way they came; without a tokenizer nothing else has ids.
            data = prompt.ids.tobytes()
            return self._of_bytes(parsed, "tokens", data, tokens=len(prompt.ids))
        if isinstance(prompt, Text):
            if self._tokenizer is not None:
                return self._of_pieces(parsed, self._tokenizer, [prompt.text], special=prompt.special)
            return self._of_bytes(parsed, "text", prompt.text.encode(), follow=str.encode)
        if self._tokenizer is not None and self._template is not None and self._template.accepts(prompt):
            pieces = self._media.render(self._template, prompt)
            return self._of_pieces(parsed, self._tokenizer, pieces, special=prompt.special)
        follow = canonical.answer if canonical.awaits_answer(prompt) else None
        return self._of_bytes(
            parsed, "chat", canonical.canonical_chat(prompt, self._media.digest), follow=follow
        )

    def _start(self, kind: str, lora: str | None, cache_salt: str | None, extra_key: str | None) -> int:
        return seed(
            self._secret,
            block_size=self.block_size,
            fingerprint=self.fingerprint,
            kind=kind,
            model=self._model,
            lora=lora,
            cache_salt=cache_salt,
            extra_key=extra_key,
        )

    def _root(self, parsed: Parsed, kind: str, before: bytes = b"") -> Node:
        apart = (kind, before, parsed.lora, parsed.cache_salt, parsed.extra_key)
        root = self._roots.get(apart)
        if root is None:
            start = self._start(kind, parsed.lora, parsed.cache_salt, parsed.extra_key)
            if len(self._roots) >= ROOTS:  # salts come from clients
                self._roots.clear()
            root = self._roots[apart] = self.trie.root(start, before)
        return root

    def _of_pieces(
        self, parsed: Parsed, tokenizer: Tokenizer, pieces: list[Chunk], *, special: bool
    ) -> "Plan":
        root = self._root(parsed, "tokens", tokenizer.prefix if special else b"")

        def encode(chunk: Chunk) -> bytes:
            return tokenizer.encode(chunk) if isinstance(chunk, str) else chunk

        suffix = tokenizer.suffix if special else b""
        return Plan(
            root=root,
            chunks=tokenizer.cuts.chunks(pieces),
            encode=encode,
            characters=sum(map(len, pieces)),
            affinity=_affinity(pieces, root.last),
            suffix=suffix,
            follow=None if suffix else tokenizer.encode,
            has_media=bytes in map(type, pieces),
        )

    def _of_bytes(
        self,
        parsed: Parsed,
        kind: str,
        given: bytes,
        *,
        tokens: int | None = None,
        follow: Callable[[str], bytes] | None = None,
    ) -> "Plan":
        root = self._root(parsed, kind)
        if tokens is not None and self._tokenizer is not None:
            follow = self._tokenizer.encode
        is_short = len(given) < SLICE
        return Plan(
            root=root,
            chunks=NO_CHUNKS if is_short else WHOLE.chunks(_slices(given)),
            keep_from=SLICE,
            whole=given if is_short else None,
            encode=_as_it_is,
            characters=len(given),
            affinity=_affinity_of(given[:AFFINITY], root.last),
            follow=follow,
            estimate=round(len(given) * self.ratio) if tokens is None else None,
        )


def _slices(given: bytes) -> list[Chunk]:
    return [given[at : at + SLICE] for at in range(0, len(given), SLICE)]


def _as_it_is(chunk: Chunk) -> bytes:
    return chunk if isinstance(chunk, bytes) else chunk.encode()


def _affinity(pieces: list[Chunk], start: int) -> int:
    """Hash the first characters of a prompt; never 0, which means unknown, unless there are none."""
    whole = b""
    for piece in pieces:
        whole += piece[:AFFINITY].encode() if isinstance(piece, str) else piece[:AFFINITY]
        if len(whole) >= AFFINITY:
            break
    return _affinity_of(whole[:AFFINITY], start)


def _affinity_of(beginning: bytes, start: int) -> int:
    return (xxh3_64_intdigest(beginning, start) or 1) if beginning else 0
