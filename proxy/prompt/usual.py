"""The usual chats and completions, decoded in one go: the short way of `parse`.

A body may take it only if the long way, field by field, would say the same of it. So whatever is not plainly
usual is refused here and left to the long way: any field that is not named below, any value of another type,
anything that msgspec does not call JSON.
"""

from typing import Any

import msgspec

Ignored = msgspec.Raw | msgspec.UnsetType
"""A field that decides nothing, so its value is never built."""
UNSET = msgspec.UNSET


class Usual(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of both endpoints. Of a key that comes twice, the last value counts, as in engines."""

    model: str | None = None
    stream: bool | None = None
    stream_options: Ignored = UNSET
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    cache_salt: str | None = None

    frequency_penalty: Ignored = UNSET
    ignore_eos: Ignored = UNSET
    logit_bias: Ignored = UNSET
    logprobs: Ignored = UNSET
    metadata: Ignored = UNSET
    min_p: Ignored = UNSET
    min_tokens: Ignored = UNSET
    presence_penalty: Ignored = UNSET
    priority: Ignored = UNSET
    prompt_cache_key: Ignored = UNSET
    repetition_penalty: Ignored = UNSET
    response_format: Ignored = UNSET
    safety_identifier: Ignored = UNSET
    seed: Ignored = UNSET
    service_tier: Ignored = UNSET
    stop: Ignored = UNSET
    stop_token_ids: Ignored = UNSET
    store: Ignored = UNSET
    structured_outputs: Ignored = UNSET
    temperature: Ignored = UNSET
    top_k: Ignored = UNSET
    top_p: Ignored = UNSET
    user: Ignored = UNSET


class UsualChat(Usual):
    """/v1/chat/completions."""

    messages: Any = None
    tools: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Any = None

    parallel_tool_calls: Ignored = UNSET
    tool_choice: Ignored = UNSET
    top_logprobs: Ignored = UNSET


class UsualCompletion(Usual):
    """/v1/completions."""

    prompt: Any = None


decode_chat = msgspec.json.Decoder(UsualChat).decode
decode_completion = msgspec.json.Decoder(UsualCompletion).decode
