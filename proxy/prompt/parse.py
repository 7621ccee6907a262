"""Bytes of a request to what decides where it goes: its prompt, model, isolation and weight.

`parse` never raises anything but BadRequest, whatever the bytes. It refuses only what is no JSON object, or
names no usable model: every other mistake is the backend's to answer, in its own words. The body is read,
never rewritten (the two exceptions are in `splice`, re-exported here).

Usual chats and completions are read in one go (`usual`), all else field by field; both say the same of it.
A body that msgspec refuses and engines accept (a lone surrogate, NaN, a BOM) is routed by load alone.
"""

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from proxy.errors import BadRequest
from proxy.prompt.anthropic import read_messages
from proxy.prompt.fields import Fields
from proxy.prompt.openai import (
    read_chat,
    read_completion,
    read_embeddings,
    read_generate,
    read_usual_chat,
    read_usual_completion,
)
from proxy.prompt.prompts import Chat, Prompt, Unreadable
from proxy.prompt.responses import read_responses
from proxy.prompt.splice import has_duplicates, splice_model, splice_stream_usage
from proxy.prompt.usual import Usual, decode_chat, decode_completion

__all__ = ["Endpoint", "Parsed", "parse", "parse_by_field", "splice_model", "splice_stream_usage"]

T = TypeVar("T")

MAX_N: Final = 128
"""OpenAI's largest `n`; a larger one weighs no more, so that one request cannot fake a full fleet."""


MOST_PARTS: Final = 4096
"""A chat of more messages and parts is routed by load: rendering takes 5 us each, and all wait for it."""


class Endpoint(enum.Enum):
    """The endpoints whose prompts are understood; the value is the path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    GENERATE = "/generate"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"


@dataclass(slots=True)
class Parsed:
    """What a request says, as far as routing cares."""

    endpoint: Endpoint
    model: str | None = None
    stream: bool = False
    sequences: int = 1
    """How many sequences the engine will run for it: n, best_of and batched prompts multiplied out."""
    prompt: Prompt | None = None
    """None: a valid object whose prompt was not understood; it is routed by load alone."""
    lora: str | None = None
    """The adapter: read from SGLang's `lora_path`; set by the caller where the model's name is one."""
    cache_salt: str | None = None
    extra_key: str | None = None
    """SGLang's second salt."""
    max_tokens: int | None = None
    cache_read: bool = True
    """False where the engine computes the whole prompt anew, and still stores its blocks (case R09)."""
    usage_splice: bool = False
    """Whether `splice_stream_usage` may be applied: a stream that did not say what it wants of usage."""


def parse(endpoint: Endpoint, body: bytes) -> Parsed:
    """Read a request.

    Raises BadRequest for what is not a JSON object, and for a `model` that is neither a string nor null.
    """
    usual = _USUAL.get(endpoint)
    if usual is not None:
        try:
            return usual(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass
    return parse_by_field(endpoint, body)


def parse_by_field(endpoint: Endpoint, body: bytes) -> Parsed:
    """Read any request, each field on its own; what `parse` says of every body."""
    try:
        fields = Fields.of(body)
        parsed = _outline(endpoint, fields)
        parsed.prompt = read_prompt(endpoint, fields)
        parsed.usage_splice = (
            endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS}
            and fields.any("stream") is True
            and "stream_options" not in fields
            and not has_duplicates(body, fields.raw)
        )
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _outline(endpoint, _lenient(body))
    return parsed


def _usual_chat(body: bytes) -> Parsed:
    usual = decode_chat(body)
    parsed = _usual_outline(Endpoint.CHAT, usual, body)
    parsed.prompt = _read(read_usual_chat, usual)
    return parsed


def _usual_completion(body: bytes) -> Parsed:
    usual = decode_completion(body)
    parsed = _usual_outline(Endpoint.COMPLETIONS, usual, body)
    parsed.sequences *= _batch(usual.prompt)
    parsed.prompt = _read(read_usual_completion, usual)
    return parsed


_USUAL: Final = {Endpoint.CHAT: _usual_chat, Endpoint.COMPLETIONS: _usual_completion}


def _usual_outline(endpoint: Endpoint, usual: Usual, body: bytes) -> Parsed:
    """Read everything but the prompt."""
    stream = usual.stream is True
    return Parsed(
        endpoint=endpoint,
        model=usual.model,
        stream=stream,
        sequences=1 if usual.n is None else min(max(usual.n, 1), MAX_N),
        cache_salt=usual.cache_salt,
        max_tokens=_first_length(usual.max_completion_tokens, usual.max_tokens),
        usage_splice=stream
        and usual.stream_options is msgspec.UNSET
        and not has_duplicates(body, Fields.of(body).raw),
    )


def read_prompt(endpoint: Endpoint, fields: Fields) -> Prompt | None:
    """Read what the prompt is made of; None where nobody could tell its tokens from the request alone."""
    return _read(_READERS[endpoint], fields)


def _read(reader: Callable[[T], Prompt | None], given: T) -> Prompt | None:
    try:
        prompt = reader(given)
    except Unreadable:
        return None
    return None if isinstance(prompt, Chat) and _parts(prompt) > MOST_PARTS else prompt


def _parts(chat: Chat) -> int:
    """Count what a template is called upon to write: messages, their parts and calls, tools."""
    count = len(chat.messages) + len(chat.tools or ())
    for message in chat.messages:
        if isinstance(content := message.get("content"), list):
            count += len(content)
        if isinstance(calls := message.get("tool_calls"), list):
            count += len(calls)
    return count


def _read_rerank(_: Fields) -> None:
    """How a query and a document are joined differs by model and engine, so nothing is keyed."""


_READERS: Final = {
    Endpoint.CHAT: read_chat,
    Endpoint.COMPLETIONS: read_completion,
    Endpoint.RESPONSES: read_responses,
    Endpoint.MESSAGES: read_messages,
    Endpoint.GENERATE: read_generate,
    Endpoint.EMBEDDINGS: read_embeddings,
    Endpoint.RERANK: _read_rerank,
}


def _outline(endpoint: Endpoint, fields: Fields) -> Parsed:
    """Read everything but the prompt."""
    sampling = fields
    if endpoint is Endpoint.GENERATE:
        sampling = Fields(fields.get("sampling_params", dict[str, Any], {}))
    return Parsed(
        endpoint=endpoint,
        model=_model(fields),
        stream=fields.get("stream", bool, default=False, strict=False),
        sequences=_sequences(endpoint, fields, sampling),
        lora=_utf8(fields.get("lora_path", str)),
        cache_salt=_utf8(fields.get("cache_salt", str)),
        extra_key=_utf8(fields.get("extra_key", str)),
        max_tokens=_max_tokens(sampling),
        cache_read=_cache_read(endpoint, fields),
    )


def _model(fields: Fields) -> str | None:
    model = fields.any("model")
    if model is None or (isinstance(model, str) and _utf8(model) is not None):
        return model
    raise BadRequest("'model' must be a string of valid Unicode.", param="model")


def _utf8(text: str | None) -> str | None:
    """Drop text that has no UTF-8 form, as a lone surrogate has none."""
    if text is None:
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def _sequences(endpoint: Endpoint, fields: Fields, sampling: Fields) -> int:
    each = 1
    for name in ("n", "best_of"):
        each = max(each, min(sampling.get(name, int, 1), MAX_N))
    match endpoint:
        case Endpoint.COMPLETIONS:
            return each * _batch(fields.any("prompt"))
        case Endpoint.GENERATE:
            return each * max(_batch(fields.any("text")), _batch(fields.any("input_ids")))
        case Endpoint.EMBEDDINGS:
            return _batch(fields.any("input"))
        case Endpoint.RERANK:
            return _batch(fields.any("documents"))
        case Endpoint.MESSAGES | Endpoint.RESPONSES:
            return 1
        case Endpoint.CHAT:
            return each


def _batch(prompts: Any) -> int:
    """Count the prompts of a batch. A list of integers is one prompt, any other list one for each member."""
    if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
        return len(prompts)
    return 1


def _max_tokens(sampling: Fields) -> int | None:
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens", "max_new_tokens")
    return _first_length(*(sampling.get(name, int) for name in names))


def _first_length(*lengths: int | None) -> int | None:
    for length in lengths:
        if length is not None and length >= 0:
            return length
    return None


def _cache_read(endpoint: Endpoint, fields: Fields) -> bool:
    """Tell whether the engine looks the prompt up in its cache.

    vLLM 0.32 (`SamplingParams.skip_reading_prefix_cache`) does not when it owes log-probabilities of the
    prompt, which `echo` asks for too: with `logprobs` in completions, always in chats (`top_logprobs` is 0 by
    default).
    """
    if fields.any("prompt_logprobs") is not None:
        return False
    if endpoint is Endpoint.GENERATE:
        return not fields.get("return_logprob", bool, default=False, strict=False)
    if not fields.get("echo", bool, default=False, strict=False):
        return True
    return not (
        endpoint is Endpoint.CHAT or (endpoint is Endpoint.COMPLETIONS and fields.any("logprobs") is not None)
    )


def _lenient(body: bytes) -> Fields:
    """Read what msgspec refuses as engines do, with Python's own JSON; refuse what they would refuse."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("The request body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.")
    return Fields(value)
