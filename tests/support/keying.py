"""Prompts in, keys out: what the tests of `proxy.prompt` share."""

import json
from array import array
from functools import cache
from pathlib import Path
from typing import Any

from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, Parsed, parse
from proxy.prompt.template import Template
from proxy.prompt.tokenizer import Tokenizer, load

TOKENIZER = Path(__file__).parents[2] / "bench" / "data" / "tokenizer"
BLOCK = 16
LONG = "Be brief and kind, and answer in the language of the question. " * 20
"""Some 300 tokens, many blocks."""


@cache
def loaded() -> tuple[Tokenizer, Template]:
    """The small tokenizer and its template, loaded once."""
    tokenizer, template = load(TOKENIZER)
    assert template is not None
    return tokenizer, template


def keyer(**changes: Any) -> Keyer:
    """A keyer of its own, exact unless `tokenizer=None` is asked for."""
    tokenizer, template = loaded()
    options = {
        "secret": b"s",
        "model": "m",
        "tokenizer": tokenizer,
        "template": template,
        "block_size": BLOCK,
    }
    return Keyer(**(options | changes))


def parsed(body: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT) -> Parsed:
    return parse(endpoint, json.dumps(body).encode())


def keys(
    keyer: Keyer, body: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT, **changes: Any
) -> "array[int]":
    """All keys of a request."""
    request = parsed(body, endpoint)
    for name, value in changes.items():
        setattr(request, name, value)
    keying = keyer.begin(request)
    keying.run()
    assert keying.done
    return keying.keys


def shared(one: "array[int]", other: "array[int]") -> int:
    """How many keys two chains share from the start."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}
