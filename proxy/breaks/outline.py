"""A request's body to the texts at the head of its prompt, in the order in which templates write them.

The head is what many requests could share: instructions, tools, documents, and the first message of the user.
What comes after is a conversation's own. System texts come before tools, as Qwen's and Hermes' templates have
it. Never raises, whatever the bytes; never reads more than `MOST_BYTES` of them.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

MOST_BYTES = 256 * 1024
"""Larger bodies are not looked at; images, mostly."""
MOST_CHARACTERS = 32 * 1024
"""Of all texts together: some 8,000 tokens."""
MOST_SEGMENTS = 128
_INSTRUCTIONS = frozenset(("system", "developer"))


class _Body(msgspec.Struct):
    messages: Any = None
    tools: Any = None
    documents: Any = None
    system: Any = None
    instructions: Any = None
    input: Any = None
    prompt: Any = None
    text: Any = None


class _BatchLine(msgspec.Struct):
    body: _Body | None = None


_body = msgspec.json.Decoder(_Body).decode
_line = msgspec.json.Decoder(_BatchLine).decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


@dataclass(slots=True)
class Segment:
    """One text of a prompt."""

    path: str
    """Where it is in the body, as `messages[0].content`."""
    text: str
    canonical: str | None = None
    """Of a tool or document, the same whatever the order of its keys: it is one piece."""


def outline(body: bytes) -> list[Segment]:
    """The texts at the head of a prompt; empty if the body is not understood."""
    if len(body) > MOST_BYTES:
        return []
    try:
        return _cut(_segments(_body(body)))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return []


def outline_line(line: bytes) -> list[Segment]:
    """The same of a line of a file: a body, or a line of an OpenAI batch with one in it."""
    if len(line) <= MOST_BYTES:
        try:
            inner = _line(line).body
            if inner is not None:
                return _cut(_segments(inner))
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return []
    return outline(line)


def _segments(body: _Body) -> list[Segment]:
    found: list[Segment] = []
    _add_content(found, "system", body.system)
    _add_content(found, "instructions", body.instructions)
    turns = "messages" if isinstance(body.messages, list) else "input"
    messages = body.messages if turns == "messages" else body.input
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
        paths = [turns]
    elif isinstance(messages, list):
        messages = messages[:MOST_SEGMENTS]
        paths = [f"{turns}[{at}].content" for at in range(len(messages))]
    else:
        messages, paths = [], []
    rest = len(messages)
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _INSTRUCTIONS:
            rest = at
            break
        _add_content(found, paths[at], message.get("content"))
    _add_objects(found, "tools", body.tools)
    _add_objects(found, "documents", body.documents)
    for at in range(rest, len(messages)):
        message = messages[at]
        if not isinstance(message, dict):
            break
        _add_content(found, paths[at], message.get("content"))
        if message.get("role") == "user":
            break
    for path, value in (("prompt", body.prompt), ("text", body.text)):
        if isinstance(value, str):
            found.append(Segment(path, value))
        elif isinstance(value, list) and value and isinstance(value[0], str):
            found.append(Segment(f"{path}[0]", value[0]))
    return found


def _add_content(found: list[Segment], path: str, content: Any) -> None:
    if isinstance(content, str):
        found.append(Segment(path, content))
    elif isinstance(content, list):
        for at, part in enumerate(content[:MOST_SEGMENTS]):
            if isinstance(part, str):
                found.append(Segment(f"{path}[{at}]", part))
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                found.append(Segment(f"{path}[{at}].text", part["text"]))


def _add_objects(found: list[Segment], path: str, values: Any) -> None:
    if isinstance(values, list):
        for at, value in enumerate(values[:MOST_SEGMENTS]):
            found.append(Segment(f"{path}[{at}]", _encode(value).decode(), _encode_sorted(value).decode()))


def _cut(segments: list[Segment]) -> list[Segment]:
    """As many as there is room for, the last of them shortened."""
    kept: list[Segment] = []
    room = MOST_CHARACTERS
    for segment in segments[:MOST_SEGMENTS]:
        if room <= 0:
            break
        if len(segment.text) > room:
            if segment.canonical is not None:
                break
            segment.text = segment.text[:room]
        room -= len(segment.text)
        kept.append(segment)
    return kept
