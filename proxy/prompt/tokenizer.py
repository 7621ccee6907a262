"""A model's tokenizer: text to token ids, exactly as the engine's.

Two backings. `tokenizers` reads any tokenizer.json. tiktoken, several times faster and without the GIL, takes
its place where that is provably the same: the structure is one that both compute alike (`bpe.convert`), and a
start-up probe over hard texts came out equal. What tiktoken cannot do (a regex that overflows its stack)
`tokenizers` does.

Token ids travel as bytes: uint32, little-endian.
"""

import json
import re
import unicodedata
from array import array
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import tokenizers

from proxy.prompt import bpe
from proxy.prompt.cuts import Cuts
from proxy.prompt.probes import CHATS, texts
from proxy.prompt.prompts import Unreadable
from proxy.prompt.template import Template

Encode = Callable[[str], bytes]

_FILES: Final = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"]


class TokenizerUnavailable(Exception):
    """There is no usable tokenizer; the message is one sentence that names the fix."""


class Tokenizer:
    """A tokenizer, its special tokens, and where its texts may be cut."""

    def __init__(self, spec: bytes) -> None:
        """Build from the bytes of a tokenizer.json. Raises TokenizerUnavailable."""
        try:
            self._exact = tokenizers.Tokenizer.from_str(spec.decode())
            fields = json.loads(spec)
        except Exception as error:  # `tokenizers` raises plain Exception
            raise TokenizerUnavailable(f"tokenizer.json cannot be read ({error}); fetch it anew.") from error
        self._exact.no_truncation()
        self._exact.no_padding()
        self.fingerprint = blake2b(spec, digest_size=16).digest()
        self.added: list[dict[str, Any]] = fields.get("added_tokens") or []
        self.prefix, self.suffix = self._special_tokens()
        self.cuts = Cuts()
        self.backing = "tokenizers"
        self._fast: Encode | None = None
        self._adopt_tiktoken(fields)

    def encode(self, text: str) -> bytes:
        """Encode a text, special tokens in it included, none added around it."""
        if self._fast is not None:
            try:
                return self._fast(text)
            except ValueError:  # a run of a million spaces overflows the regex's stack
                pass
        return self.encode_exactly(text)

    def encode_exactly(self, text: str) -> bytes:
        """Encode by the reference, `tokenizers`."""
        (encoding,) = self._exact.encode_batch_fast([text], add_special_tokens=False)
        return array("I", encoding.ids).tobytes()

    def cut_at(self, separator: str | None) -> None:
        """Let texts be cut before `separator` too; ignored where a token might reach across it."""
        if separator is not None and self._is_separator(separator):
            self.cuts = Cuts(separator, self.cuts.boundary)

    def _special_tokens(self) -> tuple[bytes, bytes]:
        """Find what the post-processor puts around a text.

        Raises TokenizerUnavailable where that depends on the text.
        """
        found = None
        for text in ("x", "hello world", "a b  c\n1 2"):
            inner = self._exact.encode(text, add_special_tokens=False).ids
            outer = self._exact.encode(text, add_special_tokens=True).ids
            width = len(inner)
            at = next((i for i in range(len(outer) - width + 1) if outer[i : i + width] == inner), None)
            around = None if at is None else (outer[:at], outer[at + width :])
            if around is None or found not in {None, _frozen(around)}:
                raise TokenizerUnavailable(
                    "The tokenizer adds special tokens in a way that is not understood."
                )
            found = _frozen(around)
        prefix, suffix = found or ((), ())
        return array("I", prefix).tobytes(), array("I", suffix).tobytes()

    def _adopt_tiktoken(self, fields: dict[str, Any]) -> None:
        core = bpe.convert(fields)
        if core is None:
            return
        fast = _with_normaliser(core, self._exact.normalizer, [token["content"] for token in self.added])
        vocabulary = [self._exact.decode([i]) for i in range(0, self._exact.get_vocab_size(), 97)]
        try:
            equal = all(
                fast(text) == self.encode_exactly(text)
                for text in texts(vocabulary, [token["content"] for token in self.added[:64]])
            )
        except ValueError:
            return
        if equal:
            self.backing = "tiktoken"
            self._fast = fast
            boundary = bpe.boundary(fields)
            if boundary is not None and not any(
                _ENDS_IN_LETTER_AND_GAP.search(t["content"]) for t in self.added
            ):
                self.cuts = Cuts(None, boundary)

    def _is_separator(self, separator: str) -> bool:
        token = next((token for token in self.added if token["content"] == separator), None)
        return (
            token is not None
            and not any(token[flag] for flag in ("lstrip", "rstrip", "single_word", "normalized"))
            and not any(separator.endswith(separator[:n]) for n in range(1, len(separator)))
            and not any(other is not token and _overlap(separator, other["content"]) for other in self.added)
            and not _depends_on_position(self._exact)
        )


_ENDS_IN_LETTER_AND_GAP: Final = re.compile(r"[A-Za-z] |[\u4e00-\u9fff][\uff0c\u3002\u3001]")
"""What an added token must not hold if texts are to be cut at `bpe.boundary`."""


def _frozen(around: tuple[list[int], list[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(around[0]), tuple(around[1])


def _overlap(one: str, other: str) -> bool:
    """Tell whether an occurrence of one can share characters with an occurrence of the other."""
    if one in other or other in one:
        return True
    shorter = min(len(one), len(other))
    return any(one.endswith(other[:n]) or other.endswith(one[:n]) for n in range(1, shorter))


def _depends_on_position(exact: tokenizers.Tokenizer) -> bool:
    """Tell whether the start of a text is treated unlike the start of a piece after a special token."""
    return '"prepend_scheme":"first"' in exact.to_str().replace(" ", "")


def _with_normaliser(core: bpe.Core, normaliser: Any, added: list[str]) -> Encode:
    """Normalise (NFC) between added tokens only: '>' and U+0338 would compose into another character."""
    if normaliser is None:
        return core
    between = re.compile("(" + "|".join(map(re.escape, added)) + ")") if added else None

    def encode(text: str) -> bytes:
        if text.isascii() or unicodedata.is_normalized("NFC", text):
            return core(text)
        pieces = [text] if between is None else between.split(text)
        pieces[::2] = [normaliser.normalize_str(piece) for piece in pieces[::2]]
        if between is None:
            return core(pieces[0])
        return b"".join(core(piece) for piece in pieces if piece)

    return encode


def load(source: str | Path, **template_options: Any) -> tuple[Tokenizer, Template | None]:
    """Load a tokenizer and its chat template (None, if it has none).

    `source` is a directory with tokenizer.json, and tokenizer_config.json or chat_template.jinja beside it;
    or the name of a model on the hub, which is downloaded once. `template_options` are Template's. Raises
    TokenizerUnavailable.
    """
    directory = Path(source).expanduser()
    if not directory.is_dir():
        directory = _download(str(source))
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerUnavailable(
            f"{path} does not exist; name a directory that holds the model's tokenizer.json."
        )
    tokenizer = Tokenizer(path.read_bytes())
    template = _read_template(directory, template_options)
    if template is not None:
        tokenizer.cut_at(_separator(tokenizer, template))
    return tokenizer, template


def _download(name: str) -> Path:
    fix = "name a directory that holds its tokenizer.json, or make the hub reachable"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise TokenizerUnavailable(f"There is no directory {name}; {fix}.")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - costs a second, and most starts need none of it

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:
        raise TokenizerUnavailable(f"The tokenizer of {name} could not be fetched; {fix}.") from error


def _read_template(directory: Path, options: dict[str, Any]) -> Template | None:
    try:
        path = directory / "tokenizer_config.json"
        config = json.loads(path.read_text()) if path.is_file() else {}
        path = directory / "chat_template.jinja"
        sources = path.read_text() if path.is_file() else config.get("chat_template")
        if isinstance(sources, list):
            sources = {one["name"]: one["template"] for one in sources}
        if not sources:
            return None
        tokens = {name: _content(config[name]) for name in _TOKEN_NAMES if config.get(name) is not None}
        return Template(sources, tokens, **options)
    except Exception as error:
        raise TokenizerUnavailable(f"The chat template in {directory} cannot be read ({error}).") from error


_TOKEN_NAMES: Final = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
]


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _separator(tokenizer: Tokenizer, template: Template) -> str | None:
    """Find the special token that begins each turn: of those that come at least once a message, the first."""
    chat = next(chat for chat in CHATS if len(chat.messages) == 3)
    try:
        text = template.render(chat, lambda _: "")
    except Unreadable:
        return None
    often = [
        token["content"] for token in tokenizer.added if text.count(token["content"]) >= len(chat.messages)
    ]
    return min(often, key=text.index, default=None)


def ids(tokens: bytes) -> list[int]:
    """Token ids of encoded tokens, for people and comparisons."""
    return array("I", tokens).tolist()
