"""Readers of OpenAI's chat, completions and embeddings, and of SGLang's /generate."""

from array import array
from typing import Any

from proxy.prompt.fields import Fields
from proxy.prompt.prompts import Chat, Prompt, Text, TokenIds, Unreadable
from proxy.prompt.usual import UsualChat, UsualCompletion

_ELSEWHERE = ("prompt_embeds", "suffix", "truncate_prompt_tokens")
"""Fields that give, fill in or cut the prompt in ways that only the engine knows."""


def read_chat(fields: Fields) -> Chat | None:
    """Read /v1/chat/completions; the precedence of template variables is vLLM's (`build_chat_params`)."""
    messages = read_message_list(fields.any("messages"))
    if not messages or fields.any("truncate_prompt_tokens") is not None:
        return None
    tools = fields.any("tools")
    return Chat(
        messages=messages,
        tools=None if tools is None else function_tools(tools),
        variables=template_variables(
            fields,
            add_generation_prompt=fields.get("add_generation_prompt", bool, default=True, strict=False),
            continue_final_message=fields.get("continue_final_message", bool, default=False, strict=False),
            documents=fields.any("documents"),
            reasoning_effort=fields.any("reasoning_effort"),
        ),
        template=fields.get("chat_template", str),
        special=fields.get("add_special_tokens", bool, default=False, strict=False),
    )


def read_usual_chat(usual: UsualChat) -> Chat | None:
    """Read what `read_chat` would, of a request that sets nothing else."""
    messages = read_message_list(usual.messages)
    if not messages:
        return None
    variables = {"add_generation_prompt": True, "continue_final_message": False}
    if usual.chat_template_kwargs is not None or usual.reasoning_effort is not None:
        variables = merged_variables(
            usual.chat_template_kwargs or {}, **variables, reasoning_effort=usual.reasoning_effort
        )
    return Chat(messages, None if usual.tools is None else function_tools(usual.tools), variables)


def read_message_list(messages: Any) -> list[dict[str, Any]]:
    """Check that these are messages: objects, each with a role."""
    if not isinstance(messages, list):
        raise Unreadable
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Unreadable
    return messages


def template_variables(fields: Fields, **request: Any) -> dict[str, Any]:
    """Merge the request's own fields over its `chat_template_kwargs`."""
    return merged_variables(fields.get("chat_template_kwargs", dict[str, Any], {}), **request)


def merged_variables(given: dict[str, Any], **request: Any) -> dict[str, Any]:
    """Merge the request's own fields over what was given; what is null or "auto" overrides nothing.

    An effort also says whether to think, unless the client said so itself (vLLM since 0.32).
    """
    if given.keys() & {"chat_template", "tokenize"}:
        raise Unreadable  # engines refuse both
    effort = request.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in given:
        request["enable_thinking"] = effort != "none"
    return given | {name: value for name, value in request.items() if value is not None and value != "auto"}


def function_tools(tools: Any) -> list[dict[str, Any]]:
    """Lay tools out as engines hand them to templates: known fields in a fixed order, nulls where unset.

    vLLM passes tools whatever `tool_choice` says, unless started with --exclude-tools-when-tool-choice-none.
    """
    if not isinstance(tools, list) or not tools:
        raise Unreadable
    return [_function_tool(tool) for tool in tools]


def _function_tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unreadable
    laid = {name: function.get(name) for name in ("name", "description", "parameters")}
    defer = tool.get("defer_loading")
    optional = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading")}
    if optional["defer_loading"] is None:
        optional["defer_loading"] = defer
    laid |= {name: value for name, value in optional.items() if value is not None}
    result = {"type": "function", "function": laid}
    return result if defer is None else result | {"defer_loading": defer}


def read_completion(fields: Fields) -> Prompt | None:
    """Read /v1/completions. Of a batch the first prompt decides where all of it goes."""
    if any(fields.any(name) is not None for name in _ELSEWHERE):
        return None
    special = fields.get("add_special_tokens", bool, default=True, strict=False)
    return _text_or_ids(fields.any("prompt"), special=special)


def read_usual_completion(usual: UsualCompletion) -> Prompt | None:
    """Read what `read_completion` would, of a request that sets nothing else."""
    return _text_or_ids(usual.prompt, special=True)


def read_embeddings(fields: Fields) -> Prompt | None:
    """Read /v1/embeddings, whose input may also be messages."""
    if "messages" in fields and "input" not in fields:
        return read_chat(fields)
    if fields.any("truncate_prompt_tokens") is not None:
        return None
    special = fields.get("add_special_tokens", bool, default=True, strict=False)
    return _text_or_ids(fields.any("input"), special=special)


def read_generate(fields: Fields) -> Prompt | None:
    """Read SGLang's /generate: `text` or `input_ids`."""
    if any(
        fields.any(name) is not None for name in ("image_data", "audio_data", "video_data", "input_embeds")
    ):
        return None
    ids = fields.any("input_ids")
    return _text_or_ids(fields.any("text") if ids is None else ids, special=True)


def _text_or_ids(prompt: Any, *, special: bool) -> Prompt | None:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Text(prompt, special=special) if prompt else None
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        try:
            return TokenIds(array("I", prompt))
        except OverflowError:
            return None
    return None
