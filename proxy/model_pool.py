"""One base model: how its prompts become keys, and when its tokenizer must be given up."""

from __future__ import annotations  # array[int] is no class before Python 3.12

from array import array

from proxy.description import DEFAULT_BLOCK
from proxy.engine_tokens import EngineTokens
from proxy.prompt.keyer import Keyer
from proxy.prompt.keying import Keying
from proxy.prompt.parse import Endpoint, Parsed
from proxy.prompt.prompts import TokenIds
from proxy.sse import Tap

BYTES_PER_TOKEN = 4
"""Of a block of text, for each token of the engine's block."""
MISMATCHES = 5
"""Replies in a row whose prompt tokens differ from ours before the tokenizer is given up."""
INLINE_ANSWER = 32768
"""Characters of an answer that are keyed on the spot when it ends; longer ones are left to the next turn."""


class ModelPool:
    """One base model: how its prompts are keyed."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.keyer: Keyer | None = None
        """None while the tokenizer is being loaded: then requests are routed by load."""
        self.block_size = DEFAULT_BLOCK
        self.engine_tokens: EngineTokens | None = None
        """Where an engine tokenises instead of us."""
        self.why = ""
        """Why prompts are not tokenised exactly, if they are not."""
        self._mismatches = 0

    @property
    def mode(self) -> str:
        """`loading`, `exact`, `engine` or `bytes`."""
        if self.keyer is None:
            return "loading"
        return "engine" if self.engine_tokens is not None else self.keyer.mode

    @property
    def degraded(self) -> str:
        """Why prompts are not keyed as tokens, if they are not."""
        return self.why or (self.engine_tokens.trouble if self.engine_tokens is not None else "")

    def block_tokens(self, keying: Keying) -> float:
        """Prompt tokens that a block of this prompt stands for."""
        if self.keyer is None or keying.counts_exactly:
            return self.block_size
        return BYTES_PER_TOKEN * self.block_size * self.keyer.ratio

    async def ask_engine(self, endpoint: Endpoint, body: bytes, parsed: Parsed) -> bool:
        """Let an engine tokenise a prompt, where that is set; False if it did not."""
        if self.engine_tokens is None or isinstance(parsed.prompt, TokenIds):
            return True
        ids = await self.engine_tokens.tokens(self.model, endpoint, body)
        parsed.prompt = None if ids is None else TokenIds(ids)
        return ids is not None

    def extend(self, keying: Keying, tap: Tap) -> array[int] | None:
        """The keys of a prompt and its answer together.

        None if the answer is not known, would take too long, or is so short that it can complete one block at
        most: then keying it costs more than a block more in the next turn's prediction is worth.
        """
        shortest = BYTES_PER_TOKEN * self.block_size
        if self.keyer is None or not keying.done or not shortest <= tap.text_size <= INLINE_ANSWER:
            return None
        answer = tap.text()
        return None if answer is None else self.keyer.extend(keying, answer)

    def learn(self, keying: Keying, reported: int, sequences: int) -> bool:
        """Compare with the prompt tokens an engine reported; True if the tokenizer must be given up."""
        if self.keyer is None or not keying.done or sequences != 1:
            return False
        if not keying.counts_exactly:
            if self.keyer.mode == "bytes":
                self.keyer.learn_ratio(keying.characters, reported)
            return False
        if self.keyer.mode != "exact":  # given up already; this was keyed before, or came as token ids
            return False
        self._mismatches = 0 if keying.tokens == reported else self._mismatches + 1
        return self._mismatches >= MISMATCHES
