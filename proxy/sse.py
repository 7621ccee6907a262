"""A passive tap on a reply: when its first token came, what it says of usage, what text it held.

Must never change or delay a byte, and never raise on what an engine sends: what is not understood is
unknown. Memory is bounded however long the reply; text is decoded in batches, since a chunk at a time costs
more than the relay itself.
"""

import re
from dataclasses import dataclass

import msgspec

BATCH_BYTES = 32 * 1024
MAX_TEXT = 256 * 1024
"""Characters of an answer's text that are kept for the keys of the next turn."""
MAX_JSON = 8 * 1024 * 1024
"""Bytes of an answer in one piece that are kept to read its usage."""

# An event that carries tokens, by the endpoints' shapes: chat and completions, responses, messages, SGLang.
# llama.cpp reports progress before the first token in events that also have choices.
_TOKEN = re.compile(rb'"choices"\s*:\s*\[\s*\{|"type"\s*:\s*"[a-z_.]*delta"|"meta_info"')
_PROGRESS = b'"prompt_progress"'
_DATA = re.compile(rb"^data:(.*)$", re.MULTILINE)


@dataclass(slots=True)
class Usage:
    """Tokens as the engine counted them; None is unknown."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    tells_cached: bool = True
    """False if the engine sent a null where cached tokens would be: it does not count them."""


_NOTHING = frozenset((b"null", b"[]", b'""'))


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | msgspec.UnsetType | None = msgspec.UNSET
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class _Timings(msgspec.Struct):
    """What llama.cpp tells of each answer, also where nobody asked for usage."""

    cache_n: int
    prompt_n: int
    predicted_n: int | None = None


_NULL = msgspec.Raw(b"null")
_ABSENT = _NULL, _NULL, _NULL


class _Text(msgspec.Struct):
    content: str | None = None
    tool_calls: msgspec.Raw = _NULL
    reasoning: msgspec.Raw = _NULL
    reasoning_content: msgspec.Raw = _NULL

    @property
    def plain(self) -> bool:
        """Whether `content` is all that was generated."""
        others = self.tool_calls, self.reasoning, self.reasoning_content
        return others == _ABSENT or all(bytes(part) in _NOTHING for part in others)


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Text | None = None
    message: _Text | None = None
    text: str | None = None


class _Nested(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] | None = None
    response: _Nested | None = None
    message: _Nested | None = None
    meta_info: _Meta | None = None
    timings: _Timings | None = None
    error: msgspec.Raw = _NULL


class _Lean(msgspec.Struct):
    """An event whose choices have a shape that is not understood; its usage may still be."""

    usage: _Usage | None = None
    error: msgspec.Raw = _NULL


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_lean = msgspec.json.Decoder(_Lean).decode


class Tap:
    """Reads one reply as it passes. `stream` is whether it is a stream of events."""

    __slots__ = (
        "_buffer",
        "_kept",
        "_seen",
        "_stream",
        "_text",
        "error",
        "events",
        "first",
        "last",
        "text_size",
        "usage",
    )

    def __init__(self, *, stream: bool) -> None:
        self.first: float | None = None
        """When the first token came; None before, and for a reply in one piece when it is all there."""
        self.last: float | None = None
        self.events = 0
        """Events with tokens so far, an estimate of output tokens where usage is unknown."""
        self.usage = Usage()
        self.error = False
        """The engine said in a 200 that the request failed."""
        self._stream = stream
        self._buffer: list[bytes] = []
        self._kept = 0
        self._seen = b""
        self._text: list[str] | None = []
        self.text_size = 0
        """Characters of the first choice's text so far."""

    def feed(self, payload: bytes, now: float) -> bool:
        """Take in payload bytes; True if they hold the first token."""
        self._buffer.append(payload)
        self._kept += len(payload)
        if not self._stream:
            if self._kept > MAX_JSON:
                self._buffer.clear()
            return False
        self.last = now
        if self.first is not None:
            if self._kept > BATCH_BYTES:
                self._read_batch()
            return False
        lines, _, self._seen = (self._seen + payload).rpartition(b"\n")
        for data in _DATA.findall(lines):
            if _TOKEN.search(data) is not None and _PROGRESS not in data:
                self.first = now
                self._seen = b""
                return True
        if len(self._seen) > MAX_JSON:  # one endless line is no event
            self._seen = b""
        return False

    def finish(self) -> None:
        """The reply is over: read what has not been read yet."""
        if self._stream:
            self._read_batch()
            rest, self._buffer = b"".join(self._buffer), []
            for data in _DATA.findall(rest):  # a stream cut before its last line end
                self._read(data)
        elif self._kept <= MAX_JSON:
            self._read(b"".join(self._buffer))
            self._buffer = []

    def text(self) -> str | None:
        """The text of the first choice, None if it is unknown or too long."""
        return None if self._text is None else "".join(self._text)

    def _read_batch(self) -> None:
        joined = b"".join(self._buffer)
        end = joined.rfind(b"\n") + 1
        self._buffer = [joined[end:]]
        self._kept = len(joined) - end
        if self._kept > MAX_JSON:  # one endless line is no event
            self._buffer, self._kept = [], 0
        for data in _DATA.findall(joined, 0, end):
            self._read(data)

    def _read(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            return
        try:
            event = _decode_event(data)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            self._text = None
            self._read_lean(data)
            return
        if event.choices:
            self.events += 1
            self._keep_text(event.choices)
        if (timings := event.timings) is not None:  # the last ones are those of the whole answer
            self.usage = Usage(timings.prompt_n + timings.cache_n, timings.cache_n, timings.predicted_n)
        if event.usage is not None:
            self._note(event.usage)
        for nested in (event.response, event.message):
            if nested is not None and nested.usage is not None:
                self._note(nested.usage)
        if event.meta_info is not None:
            meta = event.meta_info
            self.usage = Usage(meta.prompt_tokens, meta.cached_tokens, meta.completion_tokens)
            self.events += 1
        self.error = self.error or bytes(event.error) != b"null"

    def _read_lean(self, data: bytes) -> None:
        try:
            event = _decode_lean(data)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return
        if event.usage is not None:
            self._note(event.usage)
        self.error = self.error or bytes(event.error) != b"null"

    def _keep_text(self, choices: list[_Choice]) -> None:
        if self._text is None:
            return
        for choice in choices:
            if choice.index != 0:
                continue
            body = choice.delta or choice.message
            if body is not None and not body.plain:
                self._text = None
                return
            piece = body.content if body is not None else choice.text
            if piece:
                self._text.append(piece)
                self.text_size += len(piece)
        if self.text_size > MAX_TEXT:
            self._text = None

    def _note(self, usage: _Usage) -> None:
        seen = self.usage
        if usage.prompt_tokens is not None:
            details = usage.prompt_tokens_details
            cached = details.cached_tokens if isinstance(details, _Details) else None
            self.usage = Usage(
                usage.prompt_tokens,
                cached if cached is not None else seen.cached,
                usage.completion_tokens,
                tells_cached=details is not None,
            )
        elif usage.input_tokens is not None and usage.input_tokens_details is not None:  # responses
            self.usage = Usage(
                usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens
            )
        elif usage.cache_read_input_tokens is not None and usage.input_tokens is not None:  # messages
            created = usage.cache_creation_input_tokens or 0
            read = usage.cache_read_input_tokens
            self.usage = Usage(usage.input_tokens + read + created, read, usage.output_tokens)
        else:
            self.usage = Usage(
                usage.input_tokens if usage.input_tokens is not None else seen.prompt,
                seen.cached,
                usage.output_tokens if usage.output_tokens is not None else seen.completion,
            )
