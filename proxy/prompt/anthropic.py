"""Reader of Anthropic's /v1/messages: blocks to chat messages, as vLLM 0.32 converts them.

(`vllm.entrypoints.anthropic.serving`.) What the engine drops is dropped here too: redacted thinking, empty
texts, and the billing line that changes with every request.
"""

from typing import Any

from proxy.prompt.fields import Fields
from proxy.prompt.openai import function_tools, template_variables
from proxy.prompt.prompts import Chat, Message, Unreadable

BILLING = "x-anthropic-billing-header"


def read_messages(fields: Fields) -> Chat | None:
    """Read /v1/messages."""
    given = fields.any("messages")
    if not isinstance(given, list) or not given:
        return None
    messages: list[Message] = []
    system = "".join(_system_texts(fields.any("system")))
    if system:
        messages.append({"role": "system", "content": system})
    for message in given:
        _add(messages, message)
    return Chat(
        messages=messages,
        tools=_tools(fields.any("tools")),
        variables=template_variables(
            fields, add_generation_prompt=True, continue_final_message=False, reasoning_effort=_effort(fields)
        ),
        merge_system=True,
    )


def _effort(fields: Fields) -> str | None:
    """Thinking switched off is the effort "none"; otherwise output_config may name one."""
    if fields.get("thinking", dict[str, Any], {}).get("type") == "disabled":
        return "none"
    effort = fields.get("output_config", dict[str, Any], {}).get("effort")
    return effort if isinstance(effort, str) else None


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Unreadable
    functions = []
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(schema := tool.get("input_schema"), dict):
            raise Unreadable
        parameters = schema if "type" in schema else schema | {"type": "object"}
        functions.append({"type": "function", "function": tool | {"parameters": parameters}})
    return function_tools(functions) if functions else []


def _system_texts(system: Any) -> list[str]:
    if system is None:
        return []
    if isinstance(system, str):
        return [system]
    return [
        block["text"]
        for block in _blocks(system)
        if block["type"] == "text" and block.get("text") and not block["text"].startswith(BILLING)
    ]


def _blocks(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        raise Unreadable
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise Unreadable
        if not isinstance(block.get("text", ""), str | None) or block["type"] in {
            "tool_addition",
            "tool_removal",
        }:
            raise Unreadable
    return content


def _add(messages: list[Message], message: Any) -> None:
    """Add one message; the results of tools go before it, as messages of their own."""
    if not isinstance(message, dict):
        raise Unreadable
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in {"user", "assistant", "system"}:
        raise Unreadable
    if role == "system":
        texts = _system_texts(content)
        text = "".join(text for text in texts if not text.startswith(BILLING))
        if text:
            messages.append({"role": "system", "content": text})
        return
    added: Message = {"role": role}
    if isinstance(content, str):
        added["content"] = content
    else:
        _add_blocks(messages, added, _blocks(content))
    if role == "assistant" or "content" in added:
        messages.append(added)


def _add_blocks(messages: list[Message], added: Message, blocks: list[dict[str, Any]]) -> None:
    parts: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        match block["type"]:
            case "text" if block.get("text"):
                parts.append({"type": "text", "text": block["text"]})
            case "image" if block.get("source"):
                parts.append(_image(block["source"]))
            case "thinking" if isinstance(block.get("thinking"), str):
                thoughts.append(block["thinking"])
            case "tool_use":
                function = {"arguments": block.get("input") or {}, "name": block.get("name") or ""}
                added.setdefault("tool_calls", []).append(
                    {"id": block.get("id"), "function": function, "type": "function"}
                )
            case "tool_result" if added["role"] == "user":
                _add_result(messages, block)
            case "tool_result":
                raise Unreadable
            case _:
                pass
    if thoughts:
        added["reasoning"] = "".join(thoughts)
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        added["content"] = parts[0]["text"] if alone else parts


def _image(source: Any) -> dict[str, Any]:
    """An image as OpenAI's part, so that the same picture means the same whichever way it was sent."""
    if not isinstance(source, dict):
        raise Unreadable
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _add_result(messages: list[Message], block: dict[str, Any]) -> None:
    content = block.get("content")
    texts, images, references = [], [], []
    if isinstance(content, str):
        texts = [content]
    elif isinstance(content, list):
        for item in content:
            if not isinstance(item, dict):
                continue
            match item.get("type"):
                case "text":
                    texts.append(item.get("text", ""))
                case "image":
                    images.append(_image(item.get("source", {})))
                case "tool_reference" if name := item.get("tool_name") or item.get("name"):
                    references.append({"type": "tool_reference", "name": name})
                case _:
                    pass
    if not all(isinstance(text, str) for text in texts):
        raise Unreadable
    call = block.get("tool_use_id") or ""
    messages.append({"role": "tool", "tool_call_id": call, "content": "\n".join(texts)})
    if images:
        messages.append({"role": "user", "content": images})
    if references:
        messages.append({"role": "tool", "tool_call_id": call, "content": references})
