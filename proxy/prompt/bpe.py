"""tiktoken built from a tokenizer.json, where both compute the same.

tiktoken merges the pair of neighbours whose join has the lowest rank, and takes a piece that is a token as it
is. That is what byte-level BPE in `tokenizers` does if ids grow in the order of merges, and every token is a
single byte or the result of a merge (or whole pieces are looked up first there too: ignore_merges). What is
not of this form, or of one of the splitting rules below, is refused; the caller probes the rest.
"""

import re
from collections.abc import Callable
from typing import Any, Final

Core = Callable[[str], bytes]

_GPT2_SPLIT: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDINGS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED: Final = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_MARKED_SIGNS: Final = r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_CASED: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}?"
_CAPITAL: Final = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}?"

_LETTER_BOUND: Final = {
    _GPT2_SPLIT,
    rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}",  # Qwen 2 to 3
    rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}",  # GPT-4, Llama 3
    rf"{_ENDINGS}|{_MARKED}|\p{{N}}|{_MARKED_SIGNS}|{_SPACES}",  # Qwen 3.5
    rf"{_CASED}|{_CAPITAL}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",  # GPT-4o
}
"""Rules under which letters are a piece of their own, with at most one sign before them."""

_BOUNDARY: Final = re.compile(
    r"[ \uff0c\u3002\u3001](?:"
    r"(?<=[A-Za-z] )(?=[A-Za-z])|(?<=[\u4e00-\u9fff][\uff0c\u3002\u3001])(?=[\u4e00-\u9fff])"
    r")"
)
"""Before a space, or an ideographic stop, between two letters. Under the rules above a piece ends before it
whatever comes earlier, and the next begins with it whatever comes later; neither side composes under NFC."""


def boundary(spec: dict[str, Any]) -> re.Pattern[str] | None:
    """Give the places in a text where no token can reach across; None where the rule is not a known one."""
    return _BOUNDARY if _split_rule(spec) in _LETTER_BOUND else None


def convert(spec: dict[str, Any]) -> Core | None:
    """Build a tiktoken encoder from a parsed tokenizer.json; None where it might not be equal."""
    split, ranks = _split_rule(spec), _ranks(spec)
    added = {token["content"]: token["id"] for token in spec.get("added_tokens") or []}
    if split is None or ranks is None or not _plainly_found(spec) or not _plainly_normalised(spec):
        return None
    try:
        # The one way to its ids that builds no Python list; the caller's probe guards what is private here.
        from tiktoken._tiktoken import CoreBPE  # type: ignore[import-not-found]  # noqa: PLC0415

        core = CoreBPE(ranks, added, split)
        core.encode_to_tiktoken_buffer("a b", set())
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
    encode = core.encode_to_tiktoken_buffer
    # To name the few added tokens that are there is quicker than to name all 26, or 256. None begins another.
    found_in = re.compile("|".join(map(re.escape, added))).findall if added else _nothing

    def tokens(text: str) -> bytes:
        return bytes(memoryview(encode(text, set(found_in(text)))))

    return tokens


def _nothing(_: str) -> list[str]:
    return []


def _split_rule(spec: dict[str, Any]) -> str | None:
    """Find the one regular expression that splits text into pieces."""
    pre = spec.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") if pre.get("type") == "Sequence" else [pre]
    match steps:
        case [{"type": "ByteLevel", "add_prefix_space": False, **rest}] if rest.get("use_regex", True):
            return _GPT2_SPLIT
        case [
            {
                "type": "Split",
                "pattern": {"Regex": str(rule)},
                "behavior": "Isolated" | "Removed" as how,
                **split,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        ] if (how == "Isolated") != bool(split.get("invert")):
            return rule
        case _:
            return None


def _ranks(spec: dict[str, Any]) -> dict[bytes, int] | None:
    """Give token bytes to ids, if merging by lowest id is what the merges say."""
    model = spec.get("model") or {}
    plain = model.get("type") == "BPE" and not any(
        model.get(name)
        for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    )
    if not plain or model.get("byte_fallback") or model.get("fuse_unk"):
        return None
    vocabulary: dict[str, int] = model["vocab"]
    added = {token["content"] for token in spec.get("added_tokens") or []}
    try:
        ranks = {
            bytes(_BYTES[c] for c in text): rank for text, rank in vocabulary.items() if text not in added
        }
    except KeyError:
        return None
    if len(set(ranks.values())) != len(ranks) or any(bytes([byte]) not in ranks for byte in range(256)):
        return None
    merged = set()
    last = -1
    for merge in model["merges"]:
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        rank = vocabulary.get(left + right)
        if rank is None or rank < last:
            return None
        last = rank
        merged.add(rank)
    reached = model.get("ignore_merges") or all(
        rank in merged for text, rank in ranks.items() if len(text) > 1
    )
    return ranks if reached else None


def _plainly_found(spec: dict[str, Any]) -> bool:
    """Tell whether both find added tokens alike: each as it is written, none the start of another."""
    tokens = spec.get("added_tokens") or []
    texts = [token["content"] for token in tokens]
    return (
        all(texts)
        and not any(
            token[flag] for token in tokens for flag in ("lstrip", "rstrip", "single_word", "normalized")
        )
        and not any(one is not other and other.startswith(one) for one in texts for other in texts)
    )


def _plainly_normalised(spec: dict[str, Any]) -> bool:
    normaliser = spec.get("normalizer")
    return normaliser is None or normaliser.get("type") == "NFC"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins for bytes: printable Latin-1 stands for itself, the rest is moved to 256 and on."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTES: Final = _byte_alphabet()
