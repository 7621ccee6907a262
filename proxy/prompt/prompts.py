"""What a prompt can be, once read: a chat to be rendered, a text, or token ids.

Plain data. Nothing here knows of endpoints, templates or tokenizers.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""One chat message as it came, or as a template is given it; its fields are the template's business."""


class Unreadable(Exception):
    """The prompt is made of something whose tokens nobody could tell from the request alone."""


@dataclass(slots=True)
class Text:
    """Text that the engine tokenizes as it is."""

    text: str
    special: bool = True
    """Whether the engine adds the tokenizer's own special tokens (BOS); true by default for completions."""


@dataclass(slots=True)
class TokenIds:
    """Token ids, used as they are."""

    ids: "array[int]"
    """array('I')."""


@dataclass(slots=True)
class Chat:
    """Messages and all else that a chat template may read."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    """Template variables: add_generation_prompt, documents, reasoning_effort, chat_template_kwargs ..."""
    template: str | None = None
    """A template that came with the request and replaces the model's."""
    special: bool = False
    """Whether the engine adds special tokens to what the template wrote; false by default for chats."""
    merge_system: bool = False
    """Later system messages join the first where the template wants it so (Anthropic requests)."""


Prompt = Text | TokenIds | Chat
