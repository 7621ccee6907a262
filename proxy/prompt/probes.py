"""What a template or a tokenizer is tried on before a faster stand-in for it is trusted.

Each probe is there because somewhere a stand-in differs: how None, booleans and numbers print, HTML
characters in tojson, missing keys, contractions, combining marks, runs of spaces, digits and letters from
every corner of Unicode.
"""

import sys
import unicodedata
from collections.abc import Iterator
from typing import Any, Final

from proxy.prompt.prompts import Chat, Message

_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {
            "type": "string",
            "description": "A <b>city</b> & its 'name'",
            "enum": ["Zürich", "東京", ""],
        },
        "days": {
            "type": ["integer", "null"],
            "default": None,
            "minimum": -1,
            "maximum": 2**63,
            "nullable": True,
        },
        "share": {"type": "number", "default": 1.0, "examples": [0.1, 1e-7, 1e22, 100, True, False, None]},
        "deep": {"type": "array", "items": {"type": "object", "properties": {}, "required": []}},
    },
    "required": ["city"],
    "additionalProperties": False,
}
_TOOLS: Final[list[dict[str, Any]]] = [
    {"type": "function", "function": {"name": "weather", "description": None, "parameters": _SCHEMA}},
    {
        "type": "function",
        "function": {"name": "now", "description": "line\nbreak\t\u2028", "parameters": None},
    },
]


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": "call_1", "function": {"arguments": arguments, "name": name}, "type": "function"}


_USER: Final[Message] = {"role": "user", "content": "  Hello <world> & 'you' {{ x }}\n"}
_ANSWER: Final[Message] = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is 5 > 3.\n"}
_CALL: Final[Message] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        _call(
            "weather",
            {
                "city": "Zürich",
                "days": 3,
                "share": 1e-7,
                "far": 1e22,
                "ok": True,
                "none": None,
                "deep": [{"a": [1]}],
            },
        ),
        _call("now", {}),
    ],
}
_RESULT: Final[Message] = {"role": "tool", "tool_call_id": "call_1", "content": '{"t": 21.5, "ok": true}'}
_TURNS: Final = [
    [_USER],
    [{"role": "system", "content": "Be brief."}, _USER],
    [_USER, _ANSWER, _USER],
    [_USER, {"role": "assistant", "content": "a", "reasoning": "r\n", "reasoning_content": "r\n"}, _USER],
    [{"role": "system", "content": ""}, _USER, _CALL, _RESULT, _RESULT],
    [_USER, _CALL, _RESULT, _ANSWER, {"role": "user", "content": ""}],
    [_USER, {"role": "assistant", "content": None, "tool_calls": _CALL["tool_calls"][:1]}, _RESULT],
    [
        _USER,
        {"role": "assistant", "content": "let me see", "tool_calls": _CALL["tool_calls"][:1]},
        _RESULT,
        _USER,
    ],
    [{"role": "developer", "content": "d"}, {"role": "user", "name": "Ann", "content": "x"}],
    [_USER, _USER],
    [_USER, {"role": "system", "content": "late"}, _USER],
    [_USER, _ANSWER],
    [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]},
        _ANSWER,
        _USER,
    ],
]
_VARIABLES: Final[list[dict[str, Any]]] = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    {"add_generation_prompt": True, "documents": [{"title": "T", "text": "Some <text>"}]},
]

CHATS: Final = [
    Chat(messages=messages, tools=tools, variables=variables)
    for messages in _TURNS
    for tools in (None, _TOOLS)
    for variables in _VARIABLES
]


def texts(vocabulary: list[str], added: list[str]) -> Iterator[str]:
    """Yield texts on which two tokenizers must agree to be called equal.

    `vocabulary` are words to mix in, `added` the tokenizer's added tokens.
    """
    yield from _HARD
    yield " ".join(vocabulary)
    yield "".join(vocabulary)
    for token in added:
        yield f"a {token} b{token}{token}\n\n{token}\u0338e\u0301{token}"
        yield f"{token[:-1]} {token[1:]}"
    signs = [chr(c) for c in range(sys.maxunicode) if c % 61 == 0 or c < 0x250]
    signs = [c for c in signs if unicodedata.category(c) not in {"Cs", "Cn"}]
    for at in range(0, len(signs), 16):
        yield " ".join(f"a{c}b {c}{c}1{c}\n{c}" for c in signs[at : at + 16])


_HARD: Final = [
    "",
    " ",
    "\n",
    " \n \n\n  x\t\ty \r\n\r\n z   ",
    "I'm you'RE he'll 'S '\u017f we'D 've 'tis it's\u212as",
    "1 12 123 1234 12345 0x1F 3.14159 ١٢٣ ৩৪ ½ ²³ Ⅷ 一二三",
    "e\u0301 é A\u030a Å \u1100\u1161\u11a8 각 ﬁ \u200d\u200b\u0301 >\u0338 \u0041\u0328\u0301 \u0301\u0328",
    "你好,世界。これはテストです。한국어 텍스트 עברית العربية ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🇨🇭 👍🏽 ☃️ \U0001d518\U0001d52b\U0001d526 \U0001f9ff",
    'def f(x):\n    return {"a": [x, None], \'b\': f"{x!r}"}  # 100%\n\n\n',
    "https://example.org/a?b=c&d=%20#e <p class='x'>&amp;</p> a_b-c/d\\e",
    "\u0000\u0001\u007f\u0085\u00a0\u2028\u2029\u3000\ufeff\ufffd",
    "a" * 300 + " " * 300 + "=" * 300 + "\n" * 300 + "ab" * 300 + "7" * 300,
    "AbCdEfGhIjKlMnOpQrStUvWxYz" * 20,
]
