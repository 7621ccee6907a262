"""A chat template, rendered as the engine renders it.

The reference is transformers' `apply_chat_template`: a sandboxed jinja2 with trim_blocks, lstrip_blocks, loop
controls, {% generation %} as a plain block, `tojson` that escapes nothing, `raise_exception` and
`strftime_now`. minijinja takes its place (several times faster) only where it rendered every probe to the
same text. A template that raises, or is given what it cannot take, raises Unreadable: nothing else leaves
`render`.

Templates that come with a request are code from outside: vLLM refuses them unless started with
--trust-request-chat-template, and so does this, unless told that the engine was.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import minijinja
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from proxy.prompt.content_format import content_format
from proxy.prompt.conversation import Mark, Parts, conversation
from proxy.prompt.probes import CHATS
from proxy.prompt.prompts import Chat, Message, Unreadable

Render = Callable[[Mapping[str, Any]], str]

_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "


class Template:
    """The templates of one model.

    `sources` has one entry, "default", or also "tool_use", which is taken for requests with tools. `tokens`
    are the special tokens a template may name (bos_token, eos_token). `defaults` are variables that the
    engine was started with (--default-chat-template-kwargs); a request's own go before them.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str],
        tokens: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        *,
        trust_requests: bool = False,
    ) -> None:
        self.sources = {"default": sources} if isinstance(sources, str) else dict(sources)
        self.tokens = dict(tokens or {})
        self.defaults = dict(defaults or {})
        self.trust_requests = trust_requests
        self._compiled = {name: Compiled(source, self.tokens) for name, source in self.sources.items()}
        self._foreign = lru_cache(maxsize=8)(lambda source: Compiled(source, self.tokens, fast=False))
        identity = json.dumps([self.sources, self.tokens, self.defaults], sort_keys=True).encode()
        self.fingerprint = blake2b(identity, digest_size=16).digest()

    @property
    def engine(self) -> str:
        """Which renderer is in use: "minijinja", or "jinja2" where a probe came out differently."""
        return "minijinja" if all(one.is_fast for one in self._compiled.values()) else "jinja2"

    def accepts(self, chat: Chat) -> bool:
        """Tell whether `render` may be asked; not for a request's own template that nobody vouches for."""
        return chat.template is None or self.trust_requests

    def render(self, chat: Chat, mark: Mark) -> str:
        """Render a chat to the engine's prompt text, with marks where media are. Raises Unreadable."""
        try:
            if chat.template is not None:
                compiled = self._foreign(self.sources.get(chat.template, chat.template))
            elif chat.tools is not None and "tool_use" in self._compiled:
                compiled = self._compiled["tool_use"]
            else:
                compiled = self._compiled["default"]
            return compiled.render(chat, self.defaults, mark)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable from error


class Compiled:
    """One template's source, ready to render."""

    def __init__(self, source: str, tokens: dict[str, Any], *, fast: bool = True) -> None:
        environment = _jinja2_environment()
        tree = environment.parse(source)
        self.parts: Parts = content_format(tree)
        self._tokens = tokens
        self._source = source
        self._knows_developer = '"developer"' in source or "'developer'" in source
        self._render: Render = environment.from_string(source).render
        self._system_first: bool | None = None
        quick = _minijinja(source) if fast else None
        self.is_fast = quick is not None and all(
            _outcome(self._render, context) == _outcome(quick, context)
            for context in (self._context(probe, {}, _no_media) for probe in CHATS)
        )
        if quick is not None and self.is_fast:
            self._render = quick

    def render(self, chat: Chat, defaults: Mapping[str, Any], mark: Mark) -> str:
        """Render one chat; may raise whatever the template raises."""
        context = self._context(chat, defaults, mark)
        if context.pop("continue_final_message", False):
            if context.get("add_generation_prompt"):
                raise Unreadable
            return self._unfinished(context)
        return self._render(context)

    def _context(self, chat: Chat, defaults: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
        """Gather all that the template may read; later ones override."""
        context = {**self._tokens, "tools": chat.tools, "documents": None, **defaults}
        context |= {
            name: value for name, value in chat.variables.items() if value is not None and value != "auto"
        }
        prepared = conversation(chat.messages, self.parts, mark)
        context["messages"] = self._ordered(prepared, merge=chat.merge_system)
        return context

    def _unfinished(self, context: dict[str, Any]) -> str:
        """Render up to the end of the last message's content, which the model is to continue.

        As transformers does: tag the end, render, cut at the tag, and with it whatever the template trimmed.
        """
        *earlier, final = context["messages"]
        last = dict(final)
        content = last["content"]
        if isinstance(content, list):
            at = max((i for i, part in enumerate(content) if "text" in part), default=-1)
            if at < 0:
                raise Unreadable
            text = content[at]["text"]
            last["content"] = [*content[:at], content[at] | {"text": text + _TAG}, *content[at + 1 :]]
        else:
            text = content
            last["content"] = content + _TAG
        rendered = self._render(context | {"messages": [*earlier, last]})
        at = rendered.rfind(_TAG.strip())
        if at < 0 or text.strip() not in rendered:
            raise Unreadable
        return rendered[:at] if rendered.startswith(_TAG, at) else rendered[:at].rstrip()

    def _ordered(self, messages: list[Message], *, merge: bool) -> list[Message]:
        """Turn developer messages into system ones where the template knows none, and join as engines do."""
        if not self._knows_developer and "developer" in [message["role"] for message in messages]:
            renamed = [
                {k: v for k, v in message.items() if k != "tools"} | {"role": "system"}
                if message["role"] == "developer"
                else message
                for message in messages
            ]
            return _joined(renamed, "\n\n")
        if (
            merge
            and any(message["role"] == "system" for message in messages[1:])
            and self._wants_system_first()
        ):
            return _joined(messages, "")
        return messages

    def _wants_system_first(self) -> bool:
        """Find out whether the template refuses a later system message (`_detect_merge_inline_system`)."""
        if self._system_first is None:
            pair = [{"role": "system", "content": "t"}, {"role": "user", "content": "t"}]
            try:
                self._render({"messages": pair + pair, "add_generation_prompt": False})
                self._system_first = False
            except Exception:  # noqa: BLE001 - as above
                self._system_first = True
        return self._system_first


def _joined(messages: list[Message], separator: str) -> list[Message]:
    """Join all system messages into one at the front, if they are not so already."""
    systems = [_plain(message.get("content", "")) for message in messages if message["role"] == "system"]
    if all(message["role"] != "system" for message in messages[1:]):
        return messages
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": separator.join(text for text in systems if text)}, *others]


def _plain(content: Any) -> str:
    return (
        content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
    )


def _no_media(_: dict[str, Any]) -> NoReturn:
    raise Unreadable


def _outcome(render: Render, context: Mapping[str, Any]) -> str | None:
    """What a template makes of a context: its text, or None where it raises."""
    try:
        return render(context)
    except Exception:  # noqa: BLE001 - as above; that both raise is agreement
        return None


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks answers for training; for a prompt it is a plain block."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # jinja2 asks only what is in it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def tojson(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it either way
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON as transformers' filter does; its keyword names are what templates use."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    """The engine's day and ours are the same day, except where their time zones differ."""
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - local time is what transformers writes


def _jinja2_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _minijinja(source: str) -> Render | None:
    """Compile with minijinja; None where it does not know the template's syntax."""
    environment = minijinja.Environment()
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.add_filter("tojson", tojson)
    environment.add_global("raise_exception", _raise_exception)
    environment.add_global("strftime_now", _strftime_now)
    try:
        environment.add_template("chat", source)  # a name that ends in .html would have it escape
    except minijinja.TemplateError:
        return None
    return lambda context: environment.render_template("chat", **context)
