"""Reader of OpenAI's /v1/responses: instructions and items to chat messages, as vLLM 0.32 joins them.

(`vllm.entrypoints.openai.responses.utils`.) An answer may span several items (reasoning, text, calls), which
become one assistant message. What refers to an earlier response lives in a replica's memory: not readable.
"""

import json
from typing import Any

from proxy.prompt.fields import Fields
from proxy.prompt.openai import function_tools, template_variables
from proxy.prompt.prompts import Chat, Message, Unreadable

_UNFINISHED = ("in_progress", "incomplete")


def read_responses(fields: Fields) -> Chat | None:
    """Read /v1/responses."""
    if any(
        fields.any(name) is not None for name in ("previous_response_id", "previous_input_messages", "prompt")
    ):
        return None
    if fields.get("truncation", str, "disabled") != "disabled":
        return None
    messages: list[Message] = []
    instructions = fields.get("instructions", str)
    if instructions:
        messages.append({"role": "system", "content": instructions})
    given = fields.any("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        for item in given:
            _add(messages, item)
    else:
        return None
    reasoning = fields.get("reasoning", dict[str, Any], {})
    goes_on = isinstance(given, list) and _is_unfinished(given[-1])
    return Chat(
        messages=messages,
        tools=_tools(fields.any("tools")),
        variables=template_variables(
            fields,
            add_generation_prompt=not goes_on,
            continue_final_message=goes_on,
            reasoning_effort=reasoning.get("effort"),
        ),
    )


def _is_unfinished(item: dict[str, Any]) -> bool:
    return item.get("type", "message") in {"message", "reasoning"} and item.get("status") in _UNFINISHED


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Unreadable
    kinds = {kind for tool in tools if isinstance(kind := tool.get("type"), str)}
    if kinds & {"custom", "namespace", "mcp"}:
        raise Unreadable  # engines make functions of these in ways of their own; other tools they drop
    functions = [{"type": "function", "function": tool} for tool in tools if tool.get("type") == "function"]
    return function_tools(functions) if functions else []


def _add(messages: list[Message], item: Any) -> None:
    """Add one input item: a new message, or a part of the assistant message before it."""
    if not isinstance(item, dict):
        raise Unreadable
    match item.get("type", "message"):
        case "function_call":
            name, namespace = item.get("name"), item.get("namespace")
            if namespace:
                raise Unreadable
            _add_call(messages, item, {"arguments": item.get("arguments"), "name": name})
        case "custom_tool_call":
            given = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
            _add_call(messages, item, {"arguments": given, "name": item.get("name")})
        case "function_call_output" | "custom_tool_call_output":
            messages.append(
                {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
            )
        case "reasoning":
            _fill(messages, "reasoning", _reasoning(item))
        case "message" if item.get("role") == "assistant":
            text = _answer(item.get("content"))
            if text is None:
                messages.append(item)
            else:
                _fill(messages, "content", text)
        case "message" if isinstance(item.get("role"), str):
            messages.append(item)
        case _:
            raise Unreadable


def _add_call(messages: list[Message], item: dict[str, Any], function: dict[str, Any]) -> None:
    call = {"id": item.get("call_id"), "function": function, "type": "function"}
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "tool_calls": [call]})


def _fill(messages: list[Message], name: str, text: str) -> None:
    """Put text into the assistant message before, if it has none there yet; else begin another."""
    if messages and messages[-1]["role"] == "assistant" and messages[-1].get(name) is None:
        messages[-1][name] = text
    else:
        messages.append({"role": "assistant", name: text})


def _reasoning(item: dict[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise Unreadable
    for name in ("content", "summary"):
        parts = item.get(name)
        if isinstance(parts, list) and parts:
            text = parts[0].get("text") if isinstance(parts[0], dict) else None
            if not isinstance(text, str):
                raise Unreadable
            return text
    return ""


def _answer(content: Any) -> str | None:
    """Read the text of an assistant's message: of several parts, engines keep the first."""
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) else None
