"""Images and the like: text before the first is keyed as ever, what follows depends on all that came before.

What tokens an engine makes of media is unknown, so a digest stands for them: eight numbers that no tokenizer
gives, so that already the block which overlaps the media differs. Equal only for what was sent in equal form.
"""

import re
import secrets
from array import array
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from proxy.prompt.prompts import Chat, Unreadable
from proxy.prompt.template import Template


class Media:
    """Renders chats with digests where media are; `start` seeds the digests."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._nonce = secrets.token_hex(8)
        self._mark = re.compile(f"\ue000{self._nonce}([0-9]+)\ue001")

    def render(self, template: Template, chat: Chat) -> list[str | bytes]:
        """Render a chat to text, with bytes where media are: text and bytes take turns. Raises Unreadable."""
        digests: list[bytes] = []

        def mark(part: dict[str, Any]) -> str:
            digests.append(self.digest(part))
            return f"\ue000{self._nonce}{len(digests) - 1}\ue001"

        text = template.render(chat, mark)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:  # a lone surrogate that came as an escape within an escape
                raise Unreadable from None
        if not digests:
            return [text]
        pieces: list[str | bytes] = list(self._mark.split(text))
        pieces[1::2] = [digests[int(index)] for index in pieces[1::2]]
        return [piece for piece in pieces if piece]

    def digest(self, part: dict[str, Any]) -> bytes:
        """Give eight token ids, as bytes, that stand for a part."""
        raw = msgspec.json.encode(part, order="sorted")
        words = array("I")
        for at in range(4):
            digest = xxh3_64_intdigest(raw, self._start + at)
            words.extend((digest & 0xFFFFFFFF | 0x80000000, digest >> 32 | 0x80000000))
        return words.tobytes()
