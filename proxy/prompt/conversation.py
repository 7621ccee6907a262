"""Messages of a request to messages for a template, as vLLM 0.32 prepares them (`vllm.renderers.chat_utils`).

Templates are written for this form: content is one string, or a list of parts where the template loops over
them; arguments of tool calls are objects; fields that nobody defined are gone. Media cannot be rendered: each
is replaced by a mark, so that the text before it stays what the engine sees. Never changes what it is given.
"""

import json
from collections.abc import Callable
from typing import Any, Literal

from proxy.prompt.anthropic import BILLING
from proxy.prompt.prompts import Message, Unreadable

Parts = Literal["string", "openai"]
Mark = Callable[[dict[str, Any]], str]
"""Takes a part that is no text, and gives the text that stands for it."""

_TEXT_FIELD = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA = frozenset({
    "image_url", "input_image", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds",
    "video_url", "video_embeds", "prompt_embeds", "file", "input_file",
})  # fmt: skip
_DEFINED = _MEDIA | {
    "text", "type", "uuid", "refusal", "thinking", "closed", "name", "data", "prompt_cache_breakpoint",
}  # fmt: skip


def conversation(messages: list[Message], parts: Parts, mark: Mark) -> list[Message]:
    """Prepare messages for a template that takes content as `parts`.

    Raises Unreadable for what engines refuse.
    """
    return [_message(message, parts, mark) for message in messages]


def _message(message: Message, parts: Parts, mark: Mark) -> Message:
    role, content = message["role"], message.get("content")
    if isinstance(content, str) and parts == "string" and not content.startswith(BILLING):
        prepared: Message = {"role": role, "content": content}
        if len(message) == 2 and role != "developer":
            return prepared
    else:
        prepared = {"role": role, "content": _content(role, content, parts, mark)}
    if role == "assistant":
        _add_turn(prepared, message)
    elif role == "tool":
        if "tool_call_id" in message:
            prepared["tool_call_id"] = message["tool_call_id"]
        listed = prepared["content"]
        if isinstance(listed, list) and all(part["type"] == "text" for part in listed):
            prepared["content"] = "\n".join(part["text"] for part in listed)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            prepared[name] = message[name]
    if role == "developer":
        prepared["tools"] = message.get("tools")
    return prepared


def _content(role: str, content: Any, parts: Parts, mark: Mark) -> str | list[dict[str, Any]]:
    given = [] if content is None else [content] if isinstance(content, str) else content
    if not isinstance(given, list):
        raise Unreadable
    if role == "system":
        given = _without_billing(given)
    if parts == "openai":
        return [part for one in given if (part := _as_part(one, mark)) is not None]
    texts: list[str] = []
    marks: list[str] = []
    for one in given:
        text, is_media = _as_text(one, mark)
        if text:  # vLLM drops empty texts here, and keeps them in lists of parts
            (marks if is_media else texts).append(text)
    joined = "\n".join(texts)
    # As vLLM places media in templates that know of none: before the message's whole text.
    return "\n".join([*marks, joined] if joined or not marks else marks)


def _as_text(part: Any, mark: Mark) -> tuple[str | None, bool]:
    """Give the text of a part, and whether it stands for media."""
    if isinstance(part, str):
        return part, False
    if not isinstance(part, dict):
        raise Unreadable
    kind = part.get("type")
    if kind in _TEXT_FIELD and part.get("uuid") is None:
        text = part.get(_TEXT_FIELD[kind])
        if text is None and kind in {"text", "refusal"}:
            return None, False
        if isinstance(text, str):
            return text, False
    elif kind == "tool_reference" and isinstance(part.get("name"), str):
        return part["name"], False
    elif kind in _MEDIA or any(name in part for name in _MEDIA):
        return mark(part), True
    raise Unreadable


def _as_part(part: Any, mark: Mark) -> dict[str, Any] | None:
    if isinstance(part, dict) and part.get("type") == "tool_reference":
        return {"type": "tool_reference", "name": part.get("name")}
    text, is_media = _as_text(part, mark)
    if text is None:
        return None
    extra = {} if is_media or isinstance(part, str) else {k: v for k, v in part.items() if k not in _DEFINED}
    return {"type": "text", "text": text} | extra


def _without_billing(parts: list[Any]) -> list[Any]:
    """Drop the line in which a client counts its requests; it would make every prompt new."""
    kept = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not isinstance(text, str) or not text.startswith(BILLING):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else part | {"text": rest})
    return kept


def _add_turn(prepared: Message, message: Message) -> None:
    """Add what only an assistant's turn has: calls and reasoning."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        if calls:
            prepared["tool_calls"] = [_call(call) for call in calls]
    elif calls is not None:
        raise Unreadable
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        prepared["reasoning"] = prepared["reasoning_content"] = reasoning


def _call(call: Any) -> dict[str, Any]:
    """Lay out one tool call: defined fields first, in the order in which engines write them down."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unreadable
    laid = {"arguments": _arguments(function.get("arguments")), "name": function.get("name")} | {
        name: value for name, value in function.items() if name not in {"arguments", "name"}
    }
    first = {"id": call.get("id"), "function": laid, "type": "function"}
    return first | {name: value for name, value in call.items() if name not in first}


def _arguments(given: Any) -> dict[str, Any]:
    """Parse arguments; what is not an object becomes an empty one, as it does in vLLM."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}
