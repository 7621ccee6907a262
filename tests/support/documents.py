"""The commands that the documents tell a person to run."""

import re
import shlex
from typing import NamedTuple

from tests.support.tools import ROOT

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    "deploy/FAQ.md",
    "deploy/README.md",
    "deploy/SCALE.md",
    "policies/README.md",
]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "bench" / "results").rglob("*.md"))
"""Results, each with the command that made it."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (python -m bench .*)$", re.MULTILINE)
_TABLE = re.compile(r"^\| `python -m bench …` \|.*\n(?:\|.*\n)*", re.MULTILINE)
_ROW = re.compile(r"^\| `([a-z][^`]*)` \|", re.MULTILINE)
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_INLINE = re.compile(r"(?<!`)`((?:(?:\.venv/bin/)?warmroute|make|python -m bench|pip) [^`\n]+)`(?!`)")
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"[a-z-]+: ")


class Command(NamedTuple):
    """One simple command: what a pipe or && leads to is another."""

    document: str
    words: list[str]
    variables: dict[str, str]
    line: str = ""
    """As a shell gets it, with what it is piped to."""
    block: int = 0
    """What has the same number follows one after the other."""

    @property
    def program(self) -> str:
        return self.words[0].rpartition("/")[2] if self.words else ""


def commands(text: str, document: str = "") -> list[Command]:
    """Those of its shell blocks, of bench's table, and those in backticks that begin with one of ours."""
    plain = _FENCE.sub("", text)
    blocks = [
        block.replace("\\\n", " ").splitlines()
        for language, block in _FENCE.findall(text)
        if language in ("", "sh") and not _HEADER.match(block)
    ]
    blocks += [[line] for line in (*_INDENTED.findall(plain), *_INLINE.findall(_TABLE.sub("", plain)))]
    for table in _TABLE.findall(plain):
        blocks += [[f"python -m bench {row}"] for row in _ROW.findall(table) if not row.startswith("python")]
    return [
        each._replace(document=document, line=each.line or line, block=number)
        for number, lines in enumerate(blocks)
        for line in (re.sub(r"\s+# .*", "", line) for line in lines)
        for each in _split(line)
    ]


def every_command() -> list[Command]:
    """Of all documents there are."""
    return [
        command
        for name in (*DOCUMENTS, *PAGES)
        if (ROOT / name).exists()
        for command in commands((ROOT / name).read_text(), name)
    ]


def _split(line: str) -> list[Command]:
    inner = [each._replace(line=part) for part in _SUBSTITUTION.findall(line) for each in _split(part)]
    outer = _SUBSTITUTION.sub("SUBSTITUTED", line).replace("(umask", "umask")
    lexer = shlex.shlex(outer, posix=True, punctuation_chars=";|&<>")
    lexer.whitespace_split = True
    found: list[Command] = []
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&"):
            variables = {}
            while words and (given := _ASSIGNMENT.fullmatch(words[0])):
                variables[given[1]] = given[2]
                words.pop(0)
            if words or variables:
                found.append(Command("", [each.rstrip(")") for each in words], variables))
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
    return [*inner, *found]
