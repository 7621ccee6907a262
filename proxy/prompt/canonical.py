"""Bytes mode: a prompt as canonical bytes, where there is no tokenizer or no template to trust.

Structures that differ never give equal bytes: every field ends in a byte that is in no UTF-8 (0xf8 to 0xff),
and tells what it was. Lengths are not used, since they would part two prompts that only begin alike. Turns
come last and in order, so that the next turn of a conversation continues the bytes of this one, the answer
included.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from proxy.prompt.prompts import Chat, Message, Unreadable

Digest = Callable[[dict[str, Any]], bytes]
"""Gives words of four bytes that stand for a part which is no text."""

_FIELD: Final = b"\xff"
_TURN: Final = b"\xfe"
_END_OF_CONTENT: Final = b"\xfd"
_UNFINISHED: Final = b"\xfc"
_PADDING: Final = b"\xfb"

_CODER: Final = msgspec.json.Encoder(order="sorted")


def canonical_chat(chat: Chat, digest: Digest) -> bytes:
    """Write a chat: first what templates put first (variables, tools), then one turn after another.

    Raises Unreadable for content that engines refuse.
    """
    written = bytearray()
    generates, goes_on, variables = True, False, chat.variables
    if variables:
        variables = dict(variables)
        generates = variables.pop("add_generation_prompt", True)
        goes_on = variables.pop("continue_final_message", False)
    if chat.template is not None:
        written += b"template" + _CODER.encode(chat.template) + _FIELD
    if variables:
        written += b"variables" + _CODER.encode(variables) + _FIELD
    if chat.tools is not None:
        written += b"tools" + _CODER.encode(chat.tools) + _FIELD
    for message in chat.messages:
        _write_turn(written, message, digest)
    if goes_on:
        return bytes(written.removesuffix(_END_OF_CONTENT) + _UNFINISHED)
    return bytes(written) if generates else bytes(written + _UNFINISHED)


def awaits_answer(chat: Chat) -> bool:
    """Tell whether the answer will be a turn after these."""
    variables = chat.variables
    return bool(variables.get("add_generation_prompt", True)) and not variables.get("continue_final_message")


def answer(text: str) -> bytes:
    """Write the turn that an answer will be in the next request."""
    written = bytearray()
    _write_turn(written, {"role": "assistant", "content": text}, _nothing)
    return bytes(written)


def _nothing(_: dict[str, Any]) -> bytes:
    return b""


def _write_turn(written: bytearray, message: Message, digest: Digest) -> None:
    role, content = message.get("role"), message.get("content")
    if len(message) == 2 and type(role) is str and type(content) is str:
        written += b"%b%b%b%b%b" % (_TURN, role.encode(), _FIELD, content.encode(), _END_OF_CONTENT)
        return
    others = {
        name: value
        for name, value in message.items()
        if name not in {"role", "content"} and value is not None
    }
    written += _TURN
    if others:
        written += _CODER.encode(others) + _FIELD
    written += str(role).encode() + _FIELD
    _write_content(written, content, digest)
    written += _END_OF_CONTENT


def _write_content(written: bytearray, content: Any, digest: Digest) -> None:
    """Write content; one text is the same whether it came as a string or as a part."""
    if content is None:
        return
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise Unreadable
    for at, part in enumerate(parts):
        if at:
            written += _FIELD
        if isinstance(part, str):
            written += part.encode()
        elif not isinstance(part, dict):
            raise Unreadable
        elif part.get("type") == "text" and isinstance(part.get("text"), str):
            written += part["text"].encode()
        else:
            # Words stand whole in a block, so that already the first one tells two parts apart.
            written += _PADDING * (4 - len(written) % 4)
            written += digest(part)
