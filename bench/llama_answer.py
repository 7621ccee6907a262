"""What a simulated llama.cpp server answers, in the shapes of build 10434.

Timings are in every answer, and in a stream on its last event, whether or not usage was asked for.
"""

from collections.abc import Sequence
from random import Random
from time import time
from typing import Any

import msgspec

FINGERPRINT = "b1-7e4c0a9"


class Answer:
    """One answer, in any of its shapes."""

    def __init__(self, model: str, *, chat: bool, prompt: int, words: Sequence[str]) -> None:
        self.cached = 0
        self.prompt_ms = 0.0
        self._chat = chat
        self._prompt = prompt
        self._words = words
        self._head = {
            "created": int(time()),
            "id": f"chatcmpl-{Random().getrandbits(128):032x}",
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    def opening(self) -> bytes:
        """What a stream begins with."""
        return self._event({"delta": {"role": "assistant", "content": None}}) if self._chat else b""

    def piece(self, text: str) -> bytes:
        """One token of a stream."""
        return self._event({"delta": {"content": text}} if self._chat else {"text": text, "logprobs": None})

    def ending(self, *, usage: bool) -> bytes:
        """The last events: usage has a chunk of its own in a chat, and rides on the last one else."""
        more: dict[str, Any] = {"usage": self._usage(), "timings": self._timings()}
        last: dict[str, Any] = {"delta": {}} if self._chat else {"text": "", "logprobs": None}
        if not usage:
            del more["usage"]
        if usage and self._chat:
            out = self._event(last, "length") + _data({"choices": [], **self._named(stream=True), **more})
        else:
            out = self._event(last, "length", more)
        return out + b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """An answer in one piece."""
        text = "".join(self._words)
        body = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length", **body}
        named = self._named(stream=False)
        return {"choices": [choice], **named, "usage": self._usage(), "timings": self._timings()}

    def _event(
        self, body: dict[str, Any], reason: str | None = None, more: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"finish_reason": reason, "index": 0, **body}
        return _data({"choices": [choice], **self._named(stream=True), **(more or {})})

    def _named(self, *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self._chat else "text_completion"
        return {**self._head, "object": kind}

    def _usage(self) -> dict[str, Any]:
        return {
            "completion_tokens": len(self._words),
            "prompt_tokens": self._prompt,
            "total_tokens": self._prompt + len(self._words),
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _timings(self) -> dict[str, Any]:
        return {
            "cache_n": self.cached,
            "prompt_n": self._prompt - self.cached,
            "prompt_ms": self.prompt_ms,
            "predicted_n": len(self._words),
        }


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"
