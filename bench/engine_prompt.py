"""From a request's text to token ids and block keys, the way vLLM does it, for the simulated replica.

Written apart from `proxy/prompt` on purpose, with other libraries where there is a choice (jinja2 and
`tokenizers` here), so that a mistake in either shows as a mismatch of token counts or hits. Pure but for
reading the tokenizer's directory once; every cache is bounded.
"""

import json
import re
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from xxhash import xxh3_64_intdigest

from bench.prompts import WORDS

TOKENIZER = Path(__file__).parent / "data" / "tokenizer"
"""The small tokenizer that comes with the bench."""

_CACHED_SEGMENTS = 2048


class PromptError(ValueError):
    """The prompt cannot be rendered or tokenized; the message is fit for a client."""


class EnginePrompt:
    """One tokenizer and its chat template."""

    def __init__(self, directory: Path = TOKENIZER) -> None:
        self.directory = directory
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        config = json.loads((directory / "tokenizer_config.json").read_text())
        template = directory / "chat_template.jinja"
        source = template.read_text() if template.exists() else config["chat_template"]
        self._template = _environment().from_string(source)
        self._bos = _token_text(config.get("bos_token"))
        self._eos = _token_text(config.get("eos_token"))
        added = self.tokenizer.get_added_tokens_decoder()
        self._special = {token.content: number for number, token in added.items()}
        # Added tokens are cut out before anything else looks at the text, so that the pieces between them can
        # be tokenized, and remembered, one by one. That holds unless one of them takes part in normalisation
        # or swallows the blanks beside it.
        separable = added and not any(
            t.normalized or t.lstrip or t.rstrip or t.single_word for t in added.values()
        )
        texts = sorted(self._special, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if separable else None
        self._segments: OrderedDict[str, array[int]] = OrderedDict()
        self.end_id = self._special.get(self._eos, 0)
        self.words = _one_token_words(self.tokenizer)

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The chat template's text. `options` are the request's own fields: tools, documents, and so on."""
        if not messages:
            raise PromptError(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        goes_on = bool(options.get("continue_final_message"))
        conversation = [_as_template_sees(message) for message in messages]
        try:
            text = self._template.render(
                messages=conversation,
                tools=options.get("tools") or None,
                documents=options.get("documents"),
                add_generation_prompt=bool(options.get("add_generation_prompt", not goes_on)),
                bos_token=self._bos,
                eos_token=self._eos,
                **(options.get("chat_template_kwargs") or {}),
            )
        except (TemplateError, TypeError) as error:
            raise PromptError(str(error)) from error
        return _cut_after(text, conversation[-1]["content"]) if goes_on else text

    def encode(self, text: str) -> "array[int]":
        """Token ids; nothing is added in front or behind."""
        if self._cut is None:
            return self._encode_segment(text)
        ids = array("I")
        for piece in self._cut.split(text):
            special = self._special.get(piece)
            if special is not None:
                ids.append(special)
            elif piece:
                ids.extend(self._encode_segment(piece))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out, as /detokenize gives it."""
        text: str = self.tokenizer.decode(list(ids))
        return text

    def _encode_segment(self, text: str) -> "array[int]":
        known = self._segments.get(text)
        if known is not None:
            self._segments.move_to_end(text)
            return known
        try:
            ids = array("I", self.tokenizer.encode(text, add_special_tokens=False).ids)
        except (TypeError, UnicodeEncodeError) as error:
            raise PromptError("the prompt is not valid Unicode") from error
        self._segments[text] = ids
        if len(self._segments) > _CACHED_SEGMENTS:
            self._segments.popitem(last=False)
        return ids


def block_keys(ids: "array[int]", block_size: int, *, model: str, salt: str | None = None) -> list[int]:
    """Chained 64-bit keys of the full blocks; model and salt are part of the first."""
    key = xxh3_64_intdigest(json.dumps([model, salt]).encode())
    view, width, keys = memoryview(ids).cast("B"), block_size * ids.itemsize, []
    for end in range(width, len(view) + 1, width):
        key = xxh3_64_intdigest(view[end - width : end], seed=key)
        keys.append(key)
    return keys


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up for chat templates."""

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:  # noqa: FBT001, FBT002 - a template's signature
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)  # noqa: DTZ005 - transformers uses local time

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _token_text(token: Any) -> str:
    """A special token in a configuration is a string, an object with `content`, or absent."""
    return token["content"] if isinstance(token, dict) else token or ""


def _as_template_sees(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as vLLM hands it to a template that wants text: parts joined, arguments parsed."""
    seen = dict(message)
    content = seen.get("content")
    if content is None:
        seen["content"] = ""
    elif isinstance(content, list):
        parts = [p if isinstance(p, str) else p.get("text", "") for p in content if isinstance(p, str | dict)]
        seen["content"] = "\n".join(part for part in parts if part)
    elif not isinstance(content, str):
        raise PromptError("message content must be text or a list of parts")
    if isinstance(calls := seen.get("tool_calls"), list):
        seen["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return seen


def _with_parsed_arguments(call: Any) -> Any:
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (TypeError, KeyError, ValueError):
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _cut_after(text: str, content: str) -> str:
    """The text up to the end of the last message's content, for `continue_final_message`."""
    final = content.strip()
    at = text.rindex(final) if final in text else len(text) - len(final)
    return text[: at + len(final)]


def _one_token_words(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    """Those of the bench's words that are one token each with a blank before them, wherever they stand.

    An answer that comes back in the next turn's prompt then has the token ids that were generated.
    """
    vocabulary = tokenizer.get_vocab()
    return [(f" {word}", vocabulary[f"Ġ{word}"]) for word in WORDS if f"Ġ{word}" in vocabulary]
