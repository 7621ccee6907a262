"""Bytes mode: a prompt as canonical bytes, where there is no tokenizer or no template to trust.

Structures that differ never give equal bytes: every field ends in a byte that is in no UTF-8 (0xf8 to 0xff),
and tells what it was. Lengths are not used, since they would part two prompts that only begin alike. Turns
come last and in order, so that the next turn of a conversation continues the bytes of this one, the answer
included.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from proxy.prompt.prompts import Chat, Message, Unreadable

_FIELD: Final = b"\xff"
_TURN: Final = b"\xfe"
_END_OF_CONTENT: Final = b"\xfd"
_UNFINISHED: Final = b"\xfc"

_CODER: Final = msgspec.json.Encoder(order="sorted")


def canonical_chat(chat: Chat) -> bytes:
    """Write a chat: first what templates put first (variables, tools), then one turn after another."""
    variables = dict(chat.variables)
    generates = variables.pop("add_generation_prompt", True)
    goes_on = variables.pop("continue_final_message", False)
    head = [
        b"" if value is None else name + _CODER.encode(value) + _FIELD
        for name, value in (
            (b"template", chat.template),
            (b"variables", variables or None),
            (b"tools", chat.tools),
        )
    ]
    turns = b"".join([*head, *map(_turn, chat.messages)])
    if goes_on:
        return turns.removesuffix(_END_OF_CONTENT) + _UNFINISHED
    return turns if generates else turns + _UNFINISHED


def awaits_answer(chat: Chat) -> bool:
    """Tell whether the answer will be a turn after these."""
    return bool(chat.variables.get("add_generation_prompt", True)) and not chat.variables.get(
        "continue_final_message"
    )


def answer(text: str) -> bytes:
    """Write the turn that an answer will be in the next request."""
    return _turn({"role": "assistant", "content": text})


def _turn(message: Message) -> bytes:
    role, content = message.get("role"), message.get("content")
    others = {
        name: value
        for name, value in message.items()
        if name not in {"role", "content"} and value is not None
    }
    return b"".join(
        [
            _TURN,
            _CODER.encode(others) + _FIELD if others else b"",
            str(role).encode() + _FIELD,
            *_content(content),
            _END_OF_CONTENT,
        ]
    )


def _content(content: Any) -> Iterable[bytes]:
    """Write content; one text is the same whether it came as a string or as a part."""
    if content is None:
        return
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise Unreadable
    for at, part in enumerate(parts):
        if at:
            yield _FIELD
        if isinstance(part, str):
            yield part.encode()
        elif isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            yield part["text"].encode()
        else:
            yield b"\xfb" + _CODER.encode(part)
