"""Prompts that exist twice: as text to send over HTTP, and as block keys to simulate with, from one seed.

Pure and deterministic: equal seeds give equal text and equal keys, in every process. Two prompts share the
keys of exactly those leading blocks whose text they share; keys say nothing about the proxy's own.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from struct import pack
from typing import Protocol, TypeAlias

from xxhash import xxh3_64_intdigest

# Common words, each with its blank one token of Qwen's vocabulary and of most others.
WORDS = """
able about above accept access across action actually added address after again against allow along
already also always among amount another answer around attack author available away back base because
become before begin being better between bill black block body book break build business button call
called came card care case center certain change character check child children city claim class clean
clear close code color come common community company consider contact content context control copy cost
country course cover create current custom data date days deal delete design details device different
direct document does doing done double down draw during each early easy effect either else employ enough
enter error even event ever every example except exist expected express face fact false family field
filter final find fire first five float follow following food form found four frame free friend from
front full function fund future game games getting girl give given global going good government great
group hand handle happen hard have head health height help here high history hold home hope host hours
house human image important include index initial input instance interest invest items keep kind know
known label language large last late later lead learn least left length less level life light like limit
line link list little live local location long look love made main major make many mark market match
material mean media meet members message method might mind miss mode model money month more most move
much must name near need network never news next night number object offer often once only open option
order original other output over page parent part past path people percent perform period person pick
place plan play player point position possible post power present press previous price print private
problem process product program project property provide public quick range read real reason received
recent record remove report request research response rest result return review right role room same
save school screen search season second section select send series service several short should show
side sign since single site size small social software some something sort source space special specific
stand start state status step still stop store story string strong students study style subject success
such suggest support sure system table take talk target team tell terms test than then there these thing
think this those though thought three through time title today together told took total track treat true
turn type under until update used user using valid value variable version very video view visit wait
walk want watch water week well went were what when where which while white width will window with
within without words work world would write year young your
""".split()  # noqa: SIM905 - a word a line would fill ten pages


Keys: TypeAlias = "array[int]"
"""Unsigned 64-bit keys (`array` takes no type parameter before Python 3.12)."""


class Prompt(Protocol):
    """What a request asks: countable, sendable, comparable block by block."""

    @property
    def tokens(self) -> int:
        """Prompt tokens, without what a chat template adds."""

    def messages(self, tokens_per_word: float = 1.0) -> list[dict[str, str]]:
        """The conversation as OpenAI's `messages`."""

    def keys(self, block_size: int) -> Keys:
        """One 64-bit key for each full block of `block_size` tokens, for everything up to its end."""


def word_salad(key: str, tokens: int, tokens_per_word: float = 1.0) -> str:
    """About `tokens` tokens of sentences without sense, at least one word; a full stop is a word."""
    rng = Random(key)
    left = max(1, round(tokens / tokens_per_word))
    sentences = []
    while left > 0:
        length = min(left, rng.randint(8, 14))
        words = rng.choices(WORDS, k=max(1, length - 1))
        sentences.append(" ".join(words) + ("." if length > 1 else ""))
        left -= length
    return " ".join(sentences)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one role's text."""

    role: str
    key: str
    """Seed of the text: equal keys are equal text."""
    tokens: int
    literal: str | None = None
    """The text itself, where it is not to be made up."""

    def text(self, tokens_per_word: float = 1.0) -> str:
        """What is sent."""
        return word_salad(self.key, self.tokens, tokens_per_word) if self.literal is None else self.literal


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt made of segments; neighbours of one role are one message."""

    segments: tuple[Segment, ...]

    @property
    def tokens(self) -> int:
        """Prompt tokens, without what a chat template adds."""
        return sum(segment.tokens for segment in self.segments)

    def messages(self, tokens_per_word: float = 1.0) -> list[dict[str, str]]:
        """The conversation as OpenAI's `messages`."""
        out: list[dict[str, str]] = []
        for segment in self.segments:
            text = segment.text(tokens_per_word)
            if out and out[-1]["role"] == segment.role:
                out[-1]["content"] += " " + text
            else:
                out.append({"role": segment.role, "content": text})
        return out

    def keys(self, block_size: int) -> Keys:
        """Keys chained over which tokens of which segments a block holds."""
        keys, parent = array("Q"), 0
        for content in self._blocks(block_size):
            parent = xxh3_64_intdigest(content, parent)
            keys.append(parent)
        return keys

    def _blocks(self, block_size: int) -> Iterator[bytes]:
        content, filled = b"", 0
        for segment in self.segments:
            identity, start = _identity(segment.role, segment.key), 0
            while start < segment.tokens:
                taken = min(block_size - filled, segment.tokens - start)
                content += pack("<QII", identity, start, taken)
                start += taken
                filled += taken
                if filled == block_size:
                    yield content
                    content, filled = b"", 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """A prompt known only by the ids of its blocks, as traces publish them; its text is made up from them."""

    source: str
    """Ids of different sources differ."""
    ids: Sequence[int]
    """One per block; equal ids mean equal text *and* equal text before it."""
    id_tokens: int
    """Tokens of a block; the last may be shorter."""
    tokens: int

    def messages(self, tokens_per_word: float = 1.0) -> list[dict[str, str]]:
        """One user message; prompts that share ids share its beginning."""
        texts = []
        for i, block in enumerate(self.ids):
            length = min(self.id_tokens, self.tokens - i * self.id_tokens)
            if length > 0:
                texts.append(word_salad(f"{self.source}/{block}", length, tokens_per_word))
        return [{"role": "user", "content": " ".join(texts)}]

    def keys(self, block_size: int) -> Keys:
        """Keys of full blocks; `block_size` must be a multiple or a divisor of `id_tokens`."""
        seed = _identity("blocks", self.source)
        if block_size % self.id_tokens == 0:
            step = block_size // self.id_tokens
            ids = self.ids[step - 1 : self.tokens // block_size * step : step]
            return array("Q", [xxh3_64_intdigest(pack("<Q", block), seed) for block in ids])
        if self.id_tokens % block_size:
            raise ValueError(
                f"blocks of {block_size} tokens do not fit the trace's blocks of {self.id_tokens}"
            )
        per_id = self.id_tokens // block_size
        places = range(self.tokens // block_size)
        return array(
            "Q", [xxh3_64_intdigest(pack("<QI", self.ids[i // per_id], i % per_id), seed) for i in places]
        )


@lru_cache(maxsize=4096)
def _identity(kind: str, key: str) -> int:
    return xxh3_64_intdigest(f"{kind}\0{key}".encode())
